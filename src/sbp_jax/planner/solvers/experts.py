"""The fixed strategies at once: what a plan falls back on when there is no time to search."""

from dataclasses import replace

from ..quick import quick
from ..search import Found
from . import data_parallel, megatron, zero3
from .base import Task
from .family import best_of_family

_QUICK = {"data_parallel": data_parallel.restriction, "megatron": megatron.restriction, "zero3": zero3.restriction}


def fallback(task: Task) -> tuple[str, Found] | None:
    """The best of the fixed strategies, each found in one sweep, and its name; None where none is possible or fits.

    Where the roles of the arguments are not known, one sweep over all plans takes their place.
    """
    found: dict[str, Found | None] = {"sweep": quick(task.problem, task.footprint, task.limit_bytes)}
    if task.anatomy.known:
        alone = replace(task, notes=[])
        found |= {name: best_of_family(alone, rule(alone), exact=False) for name, rule in _QUICK.items()}
    possible = {name: one for name, one in found.items() if one is not None}
    return min(possible.items(), key=lambda item: item[1].seconds, default=None)
