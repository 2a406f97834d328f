"""Data parallelism: every device keeps the whole state, the batch is split over all axes.

Activations stay split on the batch from the arguments to the loss, and back: only what is summed over examples is
reduced (gradients, the loss, statistics). ``planner/graph/batch.py`` says how the batch dimension is found.
"""

from ..catalogue import register
from ..optimize.search import Found
from .families import best_of_family, family, kept, split_batch, split_data
from .restriction import Restriction, whole
from .task import Task


def restriction(task: Task) -> Restriction:
    """State whole, all that counts examples split on the batch dimension over all axes."""
    r = family(task, "data_parallel")
    axes = range(len(r.roles.axis_sizes))
    constant = [leaf for leaf in kept(task) if leaf.batch is None]
    # What zero_stage, or a pin, splits cannot be whole; then its gradients and updates need not be either.
    can_be_whole = [leaf for leaf in constant if any(max(code, default=-1) < 0 for code in leaf.codes)]
    r.wish(can_be_whole, whole(r.roles.axis_sizes, axes), "whole")
    split_batch(r, axes, state_whole=len(can_be_whole) == len(constant))
    return r


def wide(task: Task) -> Restriction:
    """State whole, data split on one dim over all axes; which dim, and all between, is the search's choice."""
    r = family(task, "data_parallel")
    axes = range(len(r.roles.axis_sizes))
    r.wish(kept(task), whole(r.roles.axis_sizes, axes), "whole")
    split_data(r, axes)
    return r


@register("data_parallel", decides="state whole, the batch split over all axes", leaves_open=True)
def data_parallel(task: Task) -> Found | None:
    """The best plan that keeps the state whole and splits the batch."""
    return best_of_family(task, restriction(task))
