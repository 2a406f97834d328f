"""Cost graphs so small that every plan can be tried."""

import itertools

import numpy as np

from sbp_jax.planner.costs.cost_graph import IMPOSSIBLE, CostGraph


def problem(seed: int, n: int = 7, dense: float = 0.5, forbid: float = 0.0) -> CostGraph:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, size=n)
    nodes = [random.integers(0, 20, size=k).astype(float) for k in sizes]
    edges = {}
    for a, b in itertools.combinations(range(n), 2):
        if random.random() < dense:
            m = random.integers(0, 20, size=(sizes[a], sizes[b])).astype(float)
            edges[a, b] = np.where(random.random(m.shape) < forbid, IMPOSSIBLE, m)
    return CostGraph(nodes, edges)


def cheapest(p: CostGraph) -> float:
    return min(p.evaluate(choice) for choice in itertools.product(*(range(len(c)) for c in p.nodes)))
