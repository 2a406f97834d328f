"""Exact: reductions, then a 0-1 program (``solve.py``); a memory limit by prices (``fit.py``).

Where a limit leaves a gap open in the time there is, a fixed strategy may be the better plan: then it is the answer.
"""

import time
from dataclasses import replace

from ...errors import PlanError
from ..search import Found
from ..shortage import TooSmall
from .base import Task, register
from .experts import cheapest
from .timed import timed_search

# A gap of less is as good as none; beyond so many pairs of choices, one of less than the other.
_OPEN = 1e-3
_MOST_PAIRS = 200_000
_OPEN_IF_MANY = 0.03
# With so many, the part of the time that is for the search among all plans.
_FIRST = 0.4


@register("ilp")
def ilp(task: Task) -> Found | None:
    """The cheapest plan, proven; past the time limit the best one seen."""
    start = time.monotonic()
    many = task.problem.pairs > _MOST_PAIRS
    first = task
    if many and task.time_limit is not None and task.limit_bytes is not None and not task.thorough:
        first = replace(task, time_limit=_FIRST * task.time_limit)
    try:
        found = timed_search(first)
    except PlanError as error:
        if isinstance(error, TooSmall) or task.thorough:
            raise
        # None was found in time, and the time was not the user's: a strategy's plan late is better than none.
        known = cheapest(replace(task, time_limit=None))
        if known is None:
            raise
        task.notes.append(_told(known[0]))
        return known[1]
    if found is None or task.limit_bytes is None or (found.solution.timed_out and task.thorough):
        return found
    open_at = _OPEN_IF_MANY if many else _OPEN
    if found.seconds - found.bound <= max(open_at, task.gap) * found.seconds:
        return found
    left = None if task.time_limit is None else task.time_limit - (time.monotonic() - start)
    better = cheapest(replace(task, below=found.seconds, time_limit=left))
    if better is None:
        return found
    name, expert = better
    task.notes.append(_told(name))
    solution = replace(expert.solution, bound=found.solution.bound)
    return Found(solution, expert.seconds, min(found.bound, expert.seconds), found.free_seconds)


def _told(name: str) -> str:
    return f"the cheapest plan found that fits is of the family of {name}"
