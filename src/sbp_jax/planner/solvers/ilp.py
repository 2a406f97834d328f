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


@register("ilp")
def ilp(task: Task) -> Found | None:
    """The cheapest plan, proven; past the time limit the best one seen."""
    start = time.monotonic()
    try:
        found = timed_search(task)
    except PlanError as error:
        if isinstance(error, TooSmall) or task.thorough:
            raise
        # None was found in time, and the time was not the user's: a strategy's plan late is better than none.
        known = cheapest(replace(task, time_limit=None))
        if known is None:
            raise
        task.notes.append(_told(known[0]))
        return known[1]
    if found is None or found.solution.timed_out or task.limit_bytes is None:
        return found
    open_at = _OPEN if task.problem.pairs <= _MOST_PAIRS else _OPEN_IF_MANY
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
    return f"the cheapest plan found that fits is of the family of solver={name!r}"
