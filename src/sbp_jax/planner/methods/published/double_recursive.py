"""Double recursion: over the mesh's axes (depth), and over the ops by importance (breadth); in linear time.

Wang, Li, Tachon, Wang, Yang, Limet and Robert, "Efficient and Systematic Partitioning of Large and Deep Neural Networks
for Parallelization", Euro-Par 2021, section 4 (D-Rec; MindSpore's auto-parallel): for each cut of the devices in turn,
the op that costs most takes what is cheapest beside the ops before it, then the next. The paper's cost of an op holds
its gradients'; these are ops of their own here, which an op does not see before they are decided: when all are, one op
at a time changes to what its neighbours suit.
"""

from collections.abc import Sequence

import numpy as np

from ...catalogue import register
from ...costs.cost_graph import CostGraph
from ...optimize.presolve import without_presolve
from ...optimize.program import improve
from ...optimize.search import Found
from ..priced import until_it_fits
from ..task import Task
from .axis_by_axis import signatures_of, split_axis_by_axis


@register(
    "double_recursive", decides="one mesh axis after the other, on each the ops by importance", promises="none",
    paper="Wang et al.: Efficient and Systematic Partitioning of Large and Deep Neural Networks for Parallelization, "
    "Euro-Par 2021, section 4",
)  # fmt: skip
def double_recursive(task: Task) -> Found | None:
    """The plan of both recursions; where memory is short, bytes cost more until it fits."""
    signatures, axes = signatures_of(task, "double_recursive"), range(len(task.roles.axis_sizes))
    return until_it_fits(
        task, lambda problem: split_axis_by_axis(problem, signatures, axes, by_importance), "double_recursive"
    )


def by_importance(problem: CostGraph) -> Sequence[int]:
    """Each node's cheapest choice beside those decided before it, the node with the largest costs first.

    A node is as important as its dearest choice, edges to others at their cheapest included.
    """
    r = without_presolve(problem)
    importance = {
        n: float(c[c < c.min() + 1e5].max()) + sum(float(r.matrix(n, a).min(axis=1).max()) for a in sorted(r.around[n]))
        for n, c in r.nodes.items()
    }
    found: dict[int, int] = {}
    cost = {n: c.copy() for n, c in r.nodes.items()}
    for n in sorted(r.nodes, key=lambda n: (-importance[n], n)):
        undecided = [a for a in sorted(r.around[n]) if a not in found]
        ahead = sum((r.matrix(n, a).min(axis=1) for a in undecided), np.zeros(len(cost[n])))
        k = found[n] = int((cost[n] + ahead).argmin())
        for a in undecided:
            cost[a] += r.matrix(a, n)[:, k]
    found = improve(r, found)
    return [found[n] for n in range(len(problem.nodes))]
