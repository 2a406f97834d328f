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
# With so many the search among all plans may take all the time there is; so much more of it is the families'.
_MORE = 0.4


@register("ilp")
def ilp(task: Task) -> Found | None:
    """The cheapest plan, proven; past the time limit the best one seen."""
    start = time.monotonic()
    if not task.thorough and _is_hopeless(task):
        task = replace(task, time_limit=None)  # the answer is the smallest limit that works: that takes what it takes
    many = task.problem.pairs > _MOST_PAIRS
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
    if found is None or task.limit_bytes is None or (found.solution.timed_out and task.thorough):
        return found
    open_at = _OPEN_IF_MANY if many else _OPEN
    if found.seconds - found.bound <= max(open_at, task.gap) * found.seconds:
        return found
    left = None
    if task.time_limit is not None:
        left = task.time_limit - (time.monotonic() - start)
        if many and not task.thorough:
            left = max(left, _MORE * task.time_limit)
    better = cheapest(replace(task, below=found.seconds, time_limit=left))
    if better is None:
        return found
    name, expert = better
    task.notes.append(_told(name))
    solution = replace(expert.solution, bound=found.solution.bound)
    return Found(solution, expert.seconds, min(found.bound, expert.seconds), found.free_seconds)


def _is_hopeless(task: Task) -> bool:
    """Whether every plan holds too much: by each node's and edge's least, where the cheapest nodes peak."""
    if task.limit_bytes is None:
        return False
    point = int(task.footprint.over_time([int(c.argmin()) for c in task.problem.nodes]).argmax())
    held = task.footprint.at(point)
    return sum(c.min() for c in held.nodes) + sum(m.min() for m in held.edges.values()) > task.limit_bytes


def _told(name: str) -> str:
    return f"the cheapest plan found that fits is of the family of {name}"
