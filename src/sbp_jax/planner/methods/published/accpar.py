"""AccPar: on every axis each layer is cut by batch, by inputs or by outputs; never repeated.

Song, Chen, Qian, Li and Chen, "AccPar: Tensor Partitioning for Heterogeneous Deep Learning Accelerators", HPCA 2020,
sections 4 and 5: of a matrix product's three dimensions one is cut at each level of a hierarchy, by dynamic programming
over the layers. Levels are mesh axes here, outermost first. The paper gives unequal devices pieces in proportion to
their speed; the devices of a mesh are alike, so that pieces are equal. For unlike devices see
``sbp.place_ops(fn, ..., solver="accpar_ratios")``.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...catalogue import register
from ...costs.cost_graph import CostGraph, Subset
from ...optimize.program import Solution
from ...optimize.search import Found
from ..dp import eliminate
from ..priced import until_it_fits
from ..task import Task
from .axis_by_axis import Codes, signatures_of, split_axis_by_axis


@register(
    "accpar", decides="on one mesh axis after the other, which of three dimensions cuts a layer", promises="none",
    paper="Song, Chen, Qian, Li, Chen: AccPar: Tensor Partitioning for Heterogeneous Deep Learning Accelerators, "
    "HPCA 2020, sections 4 and 5",
)  # fmt: skip
def accpar(task: Task) -> Found | None:
    """The plan in which work is repeated as little as can be; where memory is short, bytes cost more until it fits."""
    roles, signatures = task.roles, signatures_of(task, "accpar")
    layers = {flow.node for flow in roles.flows if any(is_matrix for way in flow.dims for _, _, is_matrix in way)}
    kept = [
        _cut(signatures[n], range(len(roles.axis_sizes))) if n in layers else np.arange(len(c))
        for n, c in enumerate(task.problem.nodes)
    ]
    only = Subset(kept)
    codes = [[signatures[n][int(k)] for k in some] for n, some in enumerate(kept)]

    def cut(problem: CostGraph) -> Sequence[int] | None:
        found = eliminate(problem)
        return None if found is None else found.choice

    def method(problem: CostGraph) -> Solution | None:
        found = split_axis_by_axis(only.of(problem), codes, range(len(roles.axis_sizes)), cut)
        return None if found is None else replace(found, choice=only.widen(found.choice))

    return until_it_fits(task, method, "accpar")


def _cut(codes: Codes, axes: Sequence[int]) -> np.ndarray:
    """The choices of a layer that repeat its work along the fewest axes: along those all its values are whole."""
    repeated = np.array([sum(all(code[a] == -1 for code in way) for a in axes) for way in codes])
    return np.flatnonzero(repeated == repeated.min())
