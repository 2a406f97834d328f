"""A plan, or one whose boxing hides better behind its compute: more of planning, on hardware that overlaps."""

import time
from dataclasses import replace

from ..plan import PlanData
from ..trace import Program, recompute
from .make import make_plan
from .request import Request
from .rewrite import as_rewritten


def hide_boxing(program: Program, plan: PlanData, request: Request, name: str = "function") -> PlanData:
    """``plan``, or one for the same program and request whose simulated step is shorter.

    What is asked for in other terms than the step's seconds stays as it is: OneFlow's weights, less memory, a fixed
    strategy, a plan that does not fit.
    """
    if not _may_gain(plan, request):
        return plan
    start = time.perf_counter()
    program, request = as_rewritten(program, request, plan)
    pins, again = request.pins, plan.recomputed
    made, budget = program, request.budget
    if again is not None:
        made, origin = recompute(program, again.turn, again.nodes)
        pins = {k: pins[o] for k, o in enumerate(origin) if o in pins}
    if request.time_limit is not None:  # the clock counts what the plan took
        budget = replace(budget, seconds=max(0.0, request.time_limit - plan.planning_seconds))
    found = make_plan(made, replace(request, pins=pins, budget=budget, shorter_than=plan), name)
    if found is not plan:
        found.notes = [*found.notes, *(n for n in plan.notes if n.startswith(_KEPT))]
        found.recomputed = again
        found.fingerprint, found.rewritten = plan.fingerprint, plan.rewritten
        found.only_even = plan.only_even
        found.planning_seconds = plan.planning_seconds
        for part in ("build_seconds", "solve_seconds", "work"):
            found.statistics[part] += plan.statistics.get(part, 0.0)
    found.planning_seconds += time.perf_counter() - start
    return found


# Notes that speak of the request, not of what was chosen.
_KEPT = ("mesh ", "rewrite: ", "memory is short:", "to fit,", "time_limit", "the work that")


def _may_gain(plan: PlanData, request: Request) -> bool:
    asked_otherwise = (
        request.solver != "ilp" or request.prefer_less_memory or request.computation_ratio is not None
        or request.wait_seconds or request.forced or not request.share_layers
    )  # fmt: skip
    return bool(
        request.overlap and not asked_otherwise and request.cluster.overlaps and request.placement.size > 1
        and plan.timeline.runs and not any(n.startswith("does not fit") for n in plan.notes)
        and (request.time_limit is None or plan.planning_seconds < request.time_limit)
    )  # fmt: skip
