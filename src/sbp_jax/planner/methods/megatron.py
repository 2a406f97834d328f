"""Megatron's: tensor parallelism on the last mesh axis, data parallelism on those before it.

Shoeybi et al., "Megatron-LM", arXiv:1909.08053. On the axes before the last the batch is split, as data parallelism
does it. On the last axis the batch is whole, and parameters and features are split as costs least, optimizer state like
its parameter; no dimension that the data have is (rows of an image, positions of a sequence). On a mesh of one axis all
of it is tensor parallelism.
"""

from ..catalogue import register
from ..optimize.search import Found
from .families import best_of_family, family, kept, split_batch, split_data
from .restriction import Restriction, whole
from .task import Task
from .zero_stages import follow


def restriction(task: Task) -> Restriction:
    """Parameters whole but on the last axis, state like them, the batch split over the axes before it."""
    r = family(task, "megatron")
    before = range(len(r.roles.axis_sizes) - 1)
    constant = [leaf for leaf in kept(task) if leaf.batch is None]
    r.wish(constant, whole(r.roles.axis_sizes, before), "whole but on the last axis")
    split_batch(r, before, state_whole=True)
    follow(r)
    return r


def wide(task: Task) -> Restriction:
    """Parameters whole but on the last axis, state like them, data split on one dim over the axes before it."""
    r = family(task, "megatron")
    before = range(len(r.roles.axis_sizes) - 1)
    r.wish(kept(task), whole(r.roles.axis_sizes, before), "whole but on the last axis")
    split_data(r, before)
    follow(r)
    return r


@register(
    "megatron", decides="parameters split on the last axis, the batch on the others", leaves_open=True,
    paper="Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3",
)  # fmt: skip
def megatron(task: Task) -> Found | None:
    """The best plan of tensor parallelism on the last axis and data parallelism on the others."""
    return best_of_family(task, restriction(task))
