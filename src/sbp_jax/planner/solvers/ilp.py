"""Exact: reductions, then a 0-1 program (``solve.py``); a memory limit by prices (``search.py``)."""

from ..search import Found, Search
from .base import Task, register


@register("ilp")
def ilp(task: Task) -> Found | None:
    """The cheapest plan, proven."""
    return Search(task.problem, task.footprint, task.gap, task.time_limit, task.progress).run(task.limit_bytes)
