"""What a request asks of the search: a ZeRO stage, a memory limit that may not be firm, less memory, an end in time."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from .lean import leaner
from .reduce import unreduced
from .request import Request
from .restrict import Narrowed, narrow
from .search import Found
from .shortage import OutOfTime, TooSmall
from .solvers import Task, fallback, lookup
from .zero import zero


@dataclass(frozen=True, slots=True)
class Decided:
    """The plan found, the method that found it, what is to be told."""

    found: Found
    solver: str
    notes: list[str]


def decide(task: Task, asked: Request) -> Decided | None:
    """The plan for a request; None where pins allow none. Raises ``TooSmall`` where memory does."""
    narrowed: Narrowed | None = None
    if asked.zero_stage is not None:
        restriction = zero(task.anatomy, asked.zero_stage)
        task.notes.extend(f"zero_stage={asked.zero_stage}: {note}" for note in restriction.notes)
        narrowed = narrow(task.problem, task.footprint, restriction)
        anatomy = task.anatomy.among(narrowed.kept, {b for _, b, _ in narrowed.tied})
        task = replace(
            task, problem=narrowed.problem, footprint=narrowed.footprint, find_anatomy=lambda: anatomy
        )  # fmt: skip
    method = lookup(asked.solver)

    def search(task: Task) -> Decided | None:
        return _in_time(task, asked, method)

    try:
        decided = search(task)
    except TooSmall as error:
        if asked.limit_is_firm or task.limit_bytes is None:
            raise
        # The limit is only the device's own: a plan that does not fit is better than none.
        task = replace(task, limit_bytes=None, notes=[*task.notes, f"does not fit by the memory model: {error}"])
        decided = search(task)
    if decided is None:
        return None
    # Whatever the method proves, nothing is cheaper than every node and edge at its own cheapest.
    bound = max(decided.found.bound, min(decided.found.seconds, unreduced(task.problem).floor()))
    decided = replace(decided, found=replace(decided.found, bound=bound))
    if asked.prefer_less_memory:
        found, note = leaner(task, decided.found, method)
        decided = replace(decided, found=found, notes=[*decided.notes, note])
    if narrowed is not None:
        solution = replace(decided.found.solution, choice=narrowed.widen(decided.found.solution.choice))
        decided = replace(decided, found=replace(decided.found, solution=solution))
    return decided


def _in_time(task: Task, asked: Request, method: Callable[[Task], Found | None]) -> Decided | None:
    """What the method finds; where there is no time for it, the best of the fixed strategies and a first guess."""
    found = None
    if task.time_limit is None or task.time_limit > 0:
        found = method(task)
        if found is None or not found.solution.timed_out:
            return found and Decided(found, asked.solver, task.notes)
    best, name = found, asked.solver
    known = fallback(task)
    if known is not None and (best is None or known[1].seconds < best.seconds):
        name, best = known
    if best is None:
        if task.limit_bytes is not None:
            raise OutOfTime(
                f"time_limit={asked.time_limit:.4g} s is too short to find a plan that fits into "
                f"{task.limit_bytes:.0f} bytes per device. Raise time_limit, or memory_limit", math.inf,
            )  # fmt: skip
        return (again := method(replace(task, time_limit=None))) and Decided(again, asked.solver, task.notes)
    bound = max(best.bound, 0.0 if found is None else found.bound, unreduced(task.problem).floor())
    gap = 1 - min(1.0, bound / best.seconds) if best.seconds else 0.0
    note = (
        f"time_limit={asked.time_limit:.4g} s is too short to search: the plan is the best known one "
        f"({name}), at most {gap:.0%} of it could be saved (proven). Raise time_limit for a better one"
    )
    warnings.warn(note, UserWarning, stacklevel=2)
    best = Found(replace(best.solution, timed_out=True), best.seconds, min(bound, best.seconds))
    return Decided(best, name, [*task.notes, note])
