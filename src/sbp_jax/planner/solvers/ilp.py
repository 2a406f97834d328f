"""Exact: reductions, then a 0-1 program (``solve.py``); a memory limit by prices (``search.py``)."""

from ..search import Found
from .base import Task, register
from .timed import timed_search


@register("ilp")
def ilp(task: Task) -> Found | None:
    """The cheapest plan, proven; past the time limit the best one seen."""
    return timed_search(task)
