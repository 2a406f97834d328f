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


@dataclass(frozen=True, slots=True)
class Subset:
    """Some of the choices of a cost graph, and that graph with no others.

    ``kept`` are each node's choices. ``tied`` are nodes decided by another one, in the order to work them out: (what
    decides, the node, for each choice of the first the node's own, all in the whole graph's numbers).
    """

    kept: Sequence[np.ndarray]
    tied: Sequence[tuple[int, int, np.ndarray]] = ()

    def of(self, graph: CostGraph) -> CostGraph:
        """Their costs. What is tied is added to what decides it, and has one choice that costs nothing."""
        places, followers = self.places, self.followers
        nodes = [np.zeros(1) if n in followers else c[self.kept[n]] for n, c in enumerate(graph.nodes)]
        for _, b, _ in self.tied:
            a, own = places[b]
            nodes[a] = nodes[a] + graph.nodes[b][own]
        result = replace(graph, nodes=nodes, edges={})
        for (a, b), m in graph.edges.items():
            (x, rows), (y, columns) = places[a], places[b]
            result.connect(x, y, m[rows[:, None], columns])
        return result

    @property
    def places(self) -> list[tuple[int, np.ndarray]]:
        """For each node what decides it, itself or another, and its own choice for each one kept of that."""
        found = list(enumerate(self.kept))
        for a, b, follows in self.tied:
            found[b] = a, follows[self.kept[a]]
        return found

    @property
    def followers(self) -> set[int]:
        """The nodes that another one decides."""
        return {b for _, b, _ in self.tied}

    def pairs(self, graph: CostGraph) -> int:
        """How many pairs of choices have a cost, ties left aside."""
        return sum(len(self.kept[a]) * len(self.kept[b]) for a, b in graph.edges)

    def widen(self, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice among those kept, as one among all."""
        followers = self.followers
        found = [0 if n in followers else int(k[c]) for n, (k, c) in enumerate(zip(self.kept, choice, strict=True))]
        for a, b, follows in self.tied:
            found[b] = int(follows[found[a]])
        return tuple(found)

    def number(self, choice: Sequence[int]) -> tuple[int, ...] | None:
        """A choice among all, as one among those kept; None where it is none of them."""
        followers = self.followers
        pairs = zip(self.kept, choice, strict=True)
        own = tuple(0 if n in followers else int(np.searchsorted(k, c)) for n, (k, c) in enumerate(pairs))
        inside = all(c < len(k) for k, c in zip(self.kept, own, strict=True))
        return own if inside and self.widen(own) == tuple(choice) else None


def penalised(graph: CostGraph, weights: Sequence[tuple[float, CostGraph]]) -> CostGraph:
    """Seconds plus weighted bytes."""
    total = replace(graph, nodes=[c.copy() for c in graph.nodes], edges=dict(graph.edges))
    for price, bytes_at in weights:
        if price:
            total.nodes = [a + price * b for a, b in zip(total.nodes, bytes_at.nodes, strict=True)]
            for (a, b), m in bytes_at.edges.items():
                total.connect(a, b, price * m)
    return total
