"""A program that makes again what spares so many bytes: those of micro-batches in flight, in a stage of a pipeline."""

from dataclasses import replace

from ...plan import PlanData, Recomputed
from ...trace import Program, fingerprint, recompute
from ..costs.op_cost import CostModel
from ..make import make_plan
from ..request import Request
from .min_cut import Ladder, Sizes, find_turn


def plan_again(
    program: Program, request: Request, base: PlanData, spared_bytes: float, name: str = "function"
) -> PlanData | None:
    """The plan, without a limit, of a program that makes again what spares so many bytes over its turn.

    They are bytes of the ``base`` plan; it is as many as can be, if not so many. None where nothing can be spared.
    """
    model = CostModel(request.cluster, request.placement.shape, uneven=request.uneven)
    sizes = Sizes(program, base, model)
    turn = find_turn(program, sizes)
    rungs = [] if turn is None else Ladder(program, base, turn, sizes).rungs()
    if turn is None or not rungs:
        return None
    rung = next((r for r in rungs if r.saved_bytes >= spared_bytes), rungs[-1])
    new, origin = recompute(program, turn.node, rung.nodes)
    pins = {k: request.pins[o] for k, o in enumerate(origin) if o in request.pins}
    plan = make_plan(new, replace(request, pins=pins, memory_limit_bytes=None, prepared=[]), name)
    plan.fingerprint = fingerprint(program)
    plan.recomputed = Recomputed(turn.node, tuple(sorted(rung.nodes)))
    plan.notes.append(f"to fit, {len(rung.nodes)} nodes are run again in the backward part")
    return plan
