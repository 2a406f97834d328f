"""OneFlow's way: from each node's own cheapest choice, one node at a time changes to what suits its neighbours.

Li et al., "Auto-parallelism in OneFlow"; the repository's ``auto_parallel`` calls it the one-ring strategy, after
merging nodes and edges as ``reduce.py`` does. Nothing is proven: the bound is 0.
"""

from ...errors import PlanError
from ..memory import penalised
from ..problem import IMPOSSIBLE, Problem
from ..reduce import reduce
from ..search import Found
from ..solve import Solution, improve
from .base import Task, register

_ROUNDS = 30


@register("greedy")
def greedy(task: Task) -> Found | None:
    """A plan that no change of one node makes cheaper; where memory is short, bytes cost more until it fits."""
    solution = _descend(task.problem)
    if solution is None:
        return None
    limit, price = task.limit_bytes, {}
    memory = task.footprint.over_time(solution.choice)
    smallest = float(memory.max(initial=0.0))
    first = solution.objective / max(smallest, 1.0)
    for _ in range(_ROUNDS):
        if limit is None or memory.max(initial=0.0) <= limit:
            return Found(solution, task.problem.evaluate(solution.choice), 0.0)
        worst = int(memory.argmax())
        price[worst] = 2 * price.get(worst, first)
        found = _descend(penalised(task.problem, [(p, task.footprint.at(t)) for t, p in price.items()]))
        if found is None:
            break
        solution, memory = found, task.footprint.over_time(found.choice)
        smallest = min(smallest, float(memory.max()))
    raise PlanError(
        f"the greedy solver found no plan that fits into {limit:.0f} bytes per device; the smallest it found holds "
        f"{smallest:.0f}. Raise memory_limit, or use solver='ilp'"
    )


def _descend(problem: Problem) -> Solution | None:
    kernel = reduce(problem)
    start = {n: int(c.argmin()) for n, c in kernel.nodes.items()}
    choice = kernel.expand(improve(kernel, start))
    objective = problem.evaluate(choice)
    return None if objective >= IMPOSSIBLE else Solution(tuple(choice), objective, 0.0, len(kernel.nodes), 0)
