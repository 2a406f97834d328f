"""Data parallelism: every device keeps the whole state, the batch is split over all axes."""

from ..restrict import Restriction, whole
from ..search import Found
from .base import Task, register
from .family import best_of_family, family, kept, split_data


def restriction(task: Task) -> Restriction:
    """State whole, data split on one dim over all axes; which dim is the solver's choice."""
    r = family(task, "data_parallel")
    axes = range(len(r.anatomy.axis_sizes))
    r.wish(kept(task), whole(r.anatomy.axis_sizes, axes), "whole")
    split_data(r, axes)
    return r


@register("data_parallel")
def data_parallel(task: Task) -> Found | None:
    """The best plan that keeps the state whole and splits the batch."""
    return best_of_family(task, restriction(task))
