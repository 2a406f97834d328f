"""Memory for methods that know none: bytes at the points where plans overflow cost more and more until one fits."""

from collections.abc import Callable

from ..costs.cost_graph import CostGraph, penalised
from ..memory.infeasible import TooSmall
from ..optimize.program import Solution
from ..optimize.search import Found
from .task import Task

# Rounds, each of which doubles the price at one point. Set by hand.
_ROUNDS = 30


def until_it_fits(task: Task, method: Callable[[CostGraph], Solution | None], name: str) -> Found | None:
    """What ``method`` finds where bytes have prices, doubled at each overflow; None where pins allow no plan."""
    solution = method(task.problem)
    if solution is None:
        return None
    # Without prices the method's bound holds for every plan that fits, too.
    limit, bound, price = task.limit_bytes, solution.bound, {}
    memory = task.footprint.over_time(solution.choice)
    smallest = float(memory.max(initial=0.0))
    first = solution.objective / max(smallest, 1.0)
    for _ in range(_ROUNDS):
        if limit is None or memory.max(initial=0.0) <= limit:
            return Found(solution, task.problem.evaluate(solution.choice), bound)
        worst = int(memory.argmax())
        price[worst] = 2 * price.get(worst, first)
        found = method(penalised(task.problem, [(p, task.footprint.at(t)) for t, p in price.items()]))
        if found is None:
            break
        solution, memory = found, task.footprint.over_time(found.choice)
        smallest = min(smallest, float(memory.max()))
    raise TooSmall(
        f"the {name} solver found no plan that fits into {limit:.0f} bytes per device; the smallest it found holds "
        f"{smallest:.0f}. Raise memory_limit, or use solver='ilp'",
        smallest,
    )
