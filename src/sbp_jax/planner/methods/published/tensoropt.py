"""TensorOpt: not one plan but the frontier of seconds against memory.

Cai, Ma, Shi, Wu, Xu, Zhang and Cheng, "TensorOpt: Exploring the Tradeoffs in Distributed DNN Training with
Auto-Parallelism", TPDS 2022, arXiv:2004.10856, section 4 (frontier tracking). Its frontiers add up layer by layer; a
step's peak here is the largest of many points in time, so the frontier is followed by prices: bytes at the points where
plans peak cost more and more. Of the plans met those are kept that no other is better than in both.
"""

from dataclasses import replace

from ...catalogue import Option, register
from ...costs.cost_graph import penalised
from ...memory.infeasible import TooSmall
from ...optimize.program import solve
from ...optimize.search import Found
from ..task import Task

# A plan within this of the best at given prices is a point of the frontier as well.
_GAP = 0.01


@register(
    "tensoropt", decides="plans from the quickest to the smallest", promises="none",
    paper="Cai et al.: TensorOpt: Exploring the Tradeoffs in Distributed DNN Training with Auto-Parallelism, TPDS "
    "2022, arXiv:2004.10856, section 4",
    options=(
        Option("points", 12, "prices of memory that are tried", least=1, most=1000),
        Option("factor", 3.0, "from one price to the next", least=1.01),
    ),
)  # fmt: skip
def tensoropt(task: Task) -> Found | None:
    """The quickest plan of the frontier that fits; ``plan.frontier`` has all: (seconds a step, bytes at the peak)."""
    first = solve(task.problem, max(task.gap, _GAP), task.budget)
    if first is None:
        return None
    met = [first]
    memory = task.footprint.over_time(first.choice)
    peak = float(memory.max(initial=0.0))
    price, points = 0.01 * first.objective / max(peak, 1.0), {int(memory.argmax())} if len(memory) else set[int]()
    plans = {(task.problem.evaluate(first.choice), peak): first}
    for k in range(task.options["points"] if points else 0):
        task.progress(f"frontier, {k + 1} of {task.options['points']} prices")
        weights = [(price / len(points), task.footprint.at(t)) for t in sorted(points)]
        found = solve(penalised(task.problem, weights), _GAP, task.budget.again())
        if found is None:
            break
        met.append(found)
        memory = task.footprint.over_time(found.choice)
        plans.setdefault((task.problem.evaluate(found.choice), float(memory.max())), found)
        points.add(int(memory.argmax()))
        price *= task.options["factor"]
    frontier = [p for p in sorted(plans) if not any(q[0] <= p[0] and q[1] < p[1] for q in plans)]
    limit = task.limit_bytes
    fitting = [p for p in frontier if limit is None or p[1] <= limit]
    if not fitting:
        smallest = min(p[1] for p in frontier)
        raise TooSmall(
            f"the tensoropt solver found no plan that fits into {limit:.0f} bytes per device; the smallest on its "
            f"frontier holds {smallest:.0f}. Raise memory_limit, give more points, or use solver='ilp'",
            smallest,
        )
    seconds = fitting[0][0]
    solution = replace(plans[fitting[0]], objective=seconds, bound=min(first.bound, seconds))
    return Found(solution, seconds, min(first.bound, seconds), frontier=tuple(frontier))
