"""The plan of one stage: the planner's own, with what a part of a pipeline asks besides."""

from dataclasses import replace
from typing import Protocol

from ...placement import Placement
from ...plan import PlanData
from ...planner import Request, plan_again, plan_to_fit
from ...planner.constraints import Among
from ...planner.pins import Pins
from ...rules.widen import B
from ...trace import recompute
from ..programs.stage_program import StageProgram

_WITH_EVERY_PART = ("part", "number")


class RequestOn(Protocol):
    """What is asked of a plan on a placement; ``pinned``: with the signatures that the user fixed there."""

    def __call__(self, where: Placement, pinned: bool = True) -> Request: ...


def stage_pins(source: StageProgram, where: Placement, pins: Pins) -> Pins:
    """Pins of a stage's program: the step's own, by node of the step, and the order of the micro-batches.

    What comes and goes with every micro-batch is one after the other in time, never split over devices.
    """
    found = {k: pins[o] for k, o in enumerate(source.origin) if o in pins}
    program = source.program
    for ops, ports in ((program.input_ops, source.takes), (program.output_ops, source.gives)):
        for op, port in zip(ops, ports, strict=True):
            if port.kind in _WITH_EVERY_PART:
                n = len((op.outs or op.ins)[0].shape)
                axes = (frozenset((B, *range(1, n))),) * len(where.shape)
                found[op.index] = (Among(axes, "not split over micro-batches"), op.label)
    return found


def plan_stage(source: StageProgram, where: Placement, request: Request, pins: Pins, name: str) -> PlanData:
    """Plan a stage for its devices. ``pins`` are the step's, by node of the step."""
    return plan_to_fit(source.program, _asked(source, where, request, pins), name)


def plan_stage_again(
    source: StageProgram, where: Placement, request: Request, pins: Pins, name: str, base: PlanData, spared_bytes: float
) -> PlanData | None:
    """The plan of a stage that makes again what spares so many bytes of a micro-batch in flight; see ``plan_again``."""
    return plan_again(source.program, _asked(source, where, request, pins), base, spared_bytes, name)


def _asked(source: StageProgram, where: Placement, request: Request, pins: Pins) -> Request:
    return replace(request, placement=where, pins=stage_pins(source, where, pins), prepared=[])


def as_planned(source: StageProgram, plan: PlanData) -> StageProgram:
    """The stage's program as its plan runs it: with what is made again in the backward part."""
    if plan.recomputed is None:
        return source
    program, of = recompute(source.program, plan.recomputed.turn, plan.recomputed.nodes)
    known = {v.id for op in source.program.nodes for v in op.outs}
    nodes = zip(program.nodes, of, strict=True)
    again = frozenset(k for k, (op, o) in enumerate(nodes) if o >= 0 and any(v.id not in known for v in op.outs))
    return replace(source, program=program, origin=[source.origin[o] if o >= 0 else -1 for o in of], again=again)
