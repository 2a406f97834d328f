"""ZeRO-3: data parallelism with parameters, optimizer state and gradients split over all axes.

Parameters are gathered where they are used.

Rajbhandari et al., "ZeRO", SC 2020.
"""

from ..optimize.search import Found
from .families import best_of_family, family, split_batch, split_data
from .restriction import Restriction, whole
from .task import Task, register
from .zero_stages import split_kept


def restriction(task: Task) -> Restriction:
    """All that counts examples split on the batch dimension; parameters, optimizer state and gradients split along
    every axis that divides them."""
    r = family(task, "zero3")
    axes = range(len(r.roles.axis_sizes))
    constant = [x for x in r.roles.buffers if x.batch is None]
    r.wish(constant, whole(r.roles.axis_sizes, axes), "whole")
    split_kept(r, 3, axes)
    split_batch(r, axes, state_whole=False)
    return r


def wide(task: Task) -> Restriction:
    """Data split on one dim; parameters, optimizer state and gradients split along every axis that divides them."""
    r = family(task, "zero3")
    axes = range(len(r.roles.axis_sizes))
    r.wish(r.roles.buffers, whole(r.roles.axis_sizes, axes), "whole")
    split_kept(r, 3, axes)
    split_data(r, axes)
    return r


@register("zero3")
def zero3(task: Task) -> Found | None:
    """The best plan that splits the batch, parameters, optimizer state and gradients."""
    return best_of_family(task, restriction(task))
