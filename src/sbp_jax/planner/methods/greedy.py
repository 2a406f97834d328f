"""OneFlow's way: from each node's own cheapest choice, one node at a time changes to what suits its neighbours.

The repository's ``auto_parallel`` eliminates nodes and edges as ``optimize/presolve.py`` does, then adjusts one node
and its ring of neighbours at a time (``SbpGraph::GreedyStrategy``). Nothing is proven: the bound is 0.
"""

from ..catalogue import register
from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from ..optimize.presolve import presolve
from ..optimize.program import Solution, improve
from ..optimize.search import Found
from .priced import until_it_fits
from .task import Task


@register("greedy", paper="Yuan et al., OneFlow, arXiv:2110.15032; SbpGraph::GreedyStrategy of its repository")
def greedy(task: Task) -> Found | None:
    """A plan that no change of one node makes cheaper; where memory is short, bytes cost more until it fits."""
    return until_it_fits(task, _descend, "greedy")


def _descend(problem: CostGraph) -> Solution | None:
    kernel = presolve(problem)
    start = {n: int(c.argmin()) for n, c in kernel.nodes.items()}
    choice = kernel.expand(improve(kernel, start))
    objective = problem.evaluate(choice)
    return None if objective >= IMPOSSIBLE else Solution(tuple(choice), objective, 0.0, len(kernel.nodes), 0)
