"""Megatron's: tensor parallelism on the last mesh axis, data parallelism on those before it.

Shoeybi et al., "Megatron-LM", arXiv:1909.08053. The batch is whole along the last axis and split over the others;
parameters are whole over the others and split along the last as costs least, optimizer state like its parameter.
On a mesh of one axis all of it is tensor parallelism.
"""

from ..restrict import Restriction, whole
from ..search import Found
from ..zero import follow
from .base import Task, register
from .family import best_of_family, family, kept, split_data


def restriction(task: Task) -> Restriction:
    """Parameters whole but on the last axis, state like them, data split over the axes before it."""
    r = family(task, "megatron")
    before = range(len(r.anatomy.axis_sizes) - 1)
    r.wish(kept(task), whole(r.anatomy.axis_sizes, before), "whole but on the last axis")
    split_data(r, before)
    follow(r)
    return r


@register("megatron")
def megatron(task: Task) -> Found | None:
    """The best plan of tensor parallelism on the last axis and data parallelism on the others."""
    return best_of_family(task, restriction(task))
