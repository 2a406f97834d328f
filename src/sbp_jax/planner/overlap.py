"""A plan, or one whose boxing hides better behind its compute: more of planning, on hardware that overlaps."""

import time
from dataclasses import replace

from ..plan import PlanData
from ..simulate import simulate
from ..trace import Program, recompute
from .budget import Budget
from .effort import usual
from .make import make_plan
from .memory.infeasible import TooSmall
from .remat.known import again_from
from .remat.search import plan_to_fit
from .request import Request
from .rewrite import as_rewritten


def hide_boxing(program: Program, plan: PlanData, request: Request, name: str = "function") -> PlanData:
    """``plan``, or one for the same program and request whose simulated step is shorter.

    What is asked for in other terms than the step's seconds stays as it is: OneFlow's weights, less memory, a fixed
    strategy, a plan that does not fit. A rewritten program was taken for its sum of compute and boxing: the program as
    it was written is planned so, too, and stays where its simulated step is at least as short.
    """
    if not _may_gain(plan, request):
        return plan
    found = _shortest(program, plan, request, name)
    if plan.rewritten is None:
        return found
    start = time.perf_counter()
    as_written = _as_written(program, request, found, name)
    if as_written is None or _seconds(found, request) < _seconds(as_written, request):
        found.planning_seconds += time.perf_counter() - start
        return found
    priced = plan.statistics["programs_priced"]
    as_written.notes.append(f"rewrite: no program with a shorter simulated step was found among {priced:.0f} priced")
    as_written.notes += [n for n in plan.notes if n.startswith("mesh ")]
    as_written.statistics["programs_priced"], as_written.only_even = priced, plan.only_even
    return as_written


def _as_written(program: Program, request: Request, found: PlanData, name: str) -> PlanData | None:
    """The plan of a program without substitutions, hidden as that of the rewritten one is; None where none fits."""
    try:
        plan = plan_to_fit(program, replace(request, rewrite=None, budget=_left(request, found)), name)
    except TooSmall:  # the time limit is over: it did fit
        return None
    plan.planning_seconds += found.planning_seconds
    if _overflows(plan):
        return None
    return _shortest(program, plan, request, name) if _may_gain(plan, request) else plan


def _seconds(plan: PlanData, request: Request) -> float:
    return simulate(plan, request.cluster).step_seconds


def _overflows(plan: PlanData) -> bool:
    return any(n.startswith("does not fit") for n in plan.notes)


def _left(request: Request, plan: PlanData) -> Budget:
    """The budget of a request after a plan: the clock counts what that took."""
    if request.time_limit is None:
        return request.budget
    return replace(request.budget, seconds=max(0.0, request.time_limit - plan.planning_seconds))


def _shortest(program: Program, plan: PlanData, request: Request, name: str) -> PlanData:
    """``plan``, or one that hides more. A thorough search proves more of what it minimises, which is a model of the
    step: the plan of a search by default is looked at, too."""
    if not request.thorough:
        return _hidden(program, plan, request, name)
    by_default = replace(request, thorough=False, budget=usual(request.budget))
    found = _hidden(program, plan, by_default, name)
    if not _may_gain(found, request):
        return found
    spent = found.planning_seconds
    more = _hidden(program, replace(plan, planning_seconds=spent), request, name)
    best = more if _seconds(more, request) < _seconds(found, request) else found
    best.planning_seconds = more.planning_seconds
    return best


def _hidden(program: Program, plan: PlanData, request: Request, name: str) -> PlanData:
    start = time.perf_counter()
    program, request = as_rewritten(program, request, plan)
    pins, again = request.pins, plan.recomputed
    made = program
    if again is not None:
        made, origin = recompute(program, again.turn, again.nodes)
        pins = {k: pins[o] for k, o in enumerate(origin) if o in pins}
    begin = again_from(plan, len(made.nodes))
    asked = replace(request, pins=pins, budget=_left(request, plan), shorter_than=plan, find_start=begin)
    found = make_plan(made, asked, name)
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
    in_time = request.time_limit is None or plan.planning_seconds < request.time_limit
    return request.hides and bool(plan.timeline.runs) and not _overflows(plan) and in_time
