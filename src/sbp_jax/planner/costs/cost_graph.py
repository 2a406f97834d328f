"""The planning problem as pairwise costs, in plain arrays: a vector for each node, a matrix for each linked pair.

What the nodes stand for is no matter here: of a program, ``assemble.py`` says it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

# Where there is no way: more than any step takes, small enough to add up without losing the rest.
IMPOSSIBLE = 1e6


@dataclass(slots=True)
class CostGraph:
    """Costs by choice of each node, and by the choices of a pair of nodes (``a < b``, rows are ``a``'s choices).

    ``beside``: nodes whose place in the order of nodes is right after another one, not at their own number. Searches
    go through the nodes in this order.
    """

    nodes: list[np.ndarray]
    edges: dict[tuple[int, int], np.ndarray]
    beside: dict[int, int] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """How many pairs of choices have a cost: the size of the 0-1 program."""
        return sum(m.size for m in self.edges.values())

    @property
    def order(self) -> list[int]:
        """All nodes, those that are ``beside`` another one right after it."""
        return sorted(range(len(self.nodes)), key=lambda n: (self.beside.get(n, n), n))

    def connect(self, a: int, b: int, matrix: np.ndarray) -> None:
        """Add costs for the choices of ``a`` (rows) and ``b`` (columns) together."""
        if a == b:
            self.nodes[a] = self.nodes[a] + np.diag(matrix)
            return
        if a > b:
            a, b, matrix = b, a, matrix.T
        known = self.edges.get((a, b))
        self.edges[a, b] = matrix if known is None else known + matrix

    def evaluate(self, choice: Sequence[int]) -> float:
        """Seconds a step of one choice for each node."""
        total = sum(float(c[k]) for c, k in zip(self.nodes, choice, strict=True))
        return total + sum(float(m[choice[a], choice[b]]) for (a, b), m in self.edges.items())


def costless(graph: CostGraph) -> CostGraph:
    """The same graph where only what is impossible costs anything."""

    def clear(x: np.ndarray) -> np.ndarray:
        return np.where(x >= IMPOSSIBLE / 2, IMPOSSIBLE, 0.0)

    return replace(graph, nodes=[clear(c) for c in graph.nodes], edges={k: clear(m) for k, m in graph.edges.items()})


def sliced(graph: CostGraph, kept: Sequence[np.ndarray], tied: Sequence[tuple[int, int, np.ndarray]] = ()) -> CostGraph:
    """Only the kept choices; what is tied is added to what decides it, and has one choice that costs nothing."""
    decider = {b: (a, follows[kept[a]]) for a, b, follows in tied}

    def place(n: int) -> tuple[int, np.ndarray]:
        return decider.get(n, (n, kept[n]))

    nodes = [np.zeros(1) if n in decider else c[kept[n]] for n, c in enumerate(graph.nodes)]
    for b, (a, own) in decider.items():
        nodes[a] = nodes[a] + graph.nodes[b][own]
    result = replace(graph, nodes=nodes, edges={})
    for (a, b), m in graph.edges.items():
        (x, rows), (y, columns) = place(a), place(b)
        result.connect(x, y, m[np.ix_(rows, columns)])
    return result


def penalised(graph: CostGraph, weights: Sequence[tuple[float, CostGraph]]) -> CostGraph:
    """Seconds plus weighted bytes."""
    total = replace(graph, nodes=[c.copy() for c in graph.nodes], edges=dict(graph.edges))
    for price, bytes_at in weights:
        if price:
            total.nodes = [a + price * b for a, b in zip(total.nodes, bytes_at.nodes, strict=True)]
            for (a, b), m in bytes_at.edges.items():
                total.connect(a, b, price * m)
    return total
