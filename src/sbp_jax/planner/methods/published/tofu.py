"""Tofu: every mesh axis is a cut of its own, found by dynamic programming, one after the other.

Wang, Huang and Li, "Supporting Very Large Models using Automatic Dataflow Graph Partitioning", EuroSys 2019,
arXiv:1807.08887, section 5: k devices are cut in two recursively, each time at least cost for the cuts already made.
An axis of 2 devices is such a cut; one of more is one cut into as many pieces, where the paper would take several.
"""

from collections.abc import Sequence

from ...catalogue import register
from ...costs.cost_graph import CostGraph
from ...optimize.search import Found
from ..dp import eliminate
from ..priced import until_it_fits
from ..task import Task
from .axis_by_axis import signatures_of, split_axis_by_axis


@register(
    "tofu", decides="one mesh axis after the other", promises="none",
    paper="Wang, Huang, Li: Supporting Very Large Models using Automatic Dataflow Graph Partitioning, EuroSys 2019, "
    "arXiv:1807.08887, section 5",
)  # fmt: skip
def tofu(task: Task) -> Found | None:
    """The plan of axes cut in turn, outermost first; where memory is short, bytes cost more until it fits."""
    signatures, axes = signatures_of(task, "tofu"), range(len(task.roles.axis_sizes))

    def cut(problem: CostGraph) -> Sequence[int] | None:
        found = eliminate(problem)
        return None if found is None else found.choice

    return until_it_fits(task, lambda problem: split_axis_by_axis(problem, signatures, axes, cut), "tofu")
