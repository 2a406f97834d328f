"""A plan at once: one sweep over the program, then one node at a time improved. For when there is no time to search.

The sweep gives each node, in the program's order, the choice that is cheapest beside those already made, counting for
the others the best they could do.
"""

from typing import Any

import numpy as np

from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from .presolve import Presolved, without_presolve
from .program import Solution, improve
from .search import Found


def sweep(problem: CostGraph, footprint: Any, limit_bytes: float | None) -> Found | None:
    """A plan in time linear in the problem; None where it finds none that is possible and fits."""
    r = without_presolve(problem)
    choice = improve(r, _sweep(r, problem))
    ordered = tuple(choice[n] for n in range(len(problem.nodes)))
    seconds = problem.evaluate(ordered)
    if seconds >= IMPOSSIBLE:
        return None
    if limit_bytes is not None and footprint.over_time(ordered).max(initial=0.0) > limit_bytes:
        return None
    return Found(Solution(ordered, seconds, 0.0, len(problem.nodes), 0), seconds, 0.0)


def _sweep(r: Presolved, problem: CostGraph) -> dict[int, int]:
    found: dict[int, int] = {}
    for n in problem.order:
        cost = r.nodes[n].copy()
        for a in r.around[n]:
            m = r.matrix(n, a)
            cost = cost + (m[:, found[a]] if a in found else m.min(axis=1))
        found[n] = int(np.argmin(cost))
    return found
