"""The problem that the search solves: pairwise costs, and bytes that never exceed a limit.

Each node takes one of its choices. A plan costs the sum over nodes and edges. Memory tables say how many bytes a
choice (of a node, or of two nodes together) holds and at which points in time; at every point the sum is at most
``limit``. Nothing here knows what nodes and choices stand for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from ..memory.protocol import FootprintLike, MemoryTable


@dataclass(frozen=True, slots=True)
class Instance:
    """Costs by choice, cost matrices by pair of nodes ``(a, b)`` with ``a < b``, and memory tables with their limit.

    What costs infinitely much is impossible. ``limit_bytes`` holds at each of ``n_points`` points.
    """

    costs: Sequence[np.ndarray]
    edges: Mapping[tuple[int, int], np.ndarray]
    tables: Sequence[MemoryTable] = ()
    limit_bytes: float = np.inf
    n_points: int = 0

    def evaluate(self, choice: Sequence[int]) -> float:
        """The cost of a plan."""
        total = sum(float(c[k]) for c, k in zip(self.costs, choice, strict=True))
        return total + sum(float(m[choice[a], choice[b]]) for (a, b), m in self.edges.items())

    def profile(self, choice: Sequence[int]) -> np.ndarray:
        """The bytes that a plan holds at each point."""
        change = np.zeros(self.n_points + 1)
        for t in self.tables:
            held = float(t.bytes[choice[t.a]] if t.b < 0 else t.bytes[choice[t.a], choice[t.b]])
            change[t.first] += held
            change[t.end] -= held
        return np.cumsum(change[:-1])

    def fits(self, choice: Sequence[int]) -> bool:
        """Whether a plan stays within the limit at every point."""
        return bool(self.profile(choice).max(initial=0.0) <= self.limit_bytes)


def instance_of(problem: CostGraph, footprint: FootprintLike, limit_bytes: float = np.inf) -> Instance:
    """A planning problem whose plans hold at most so many bytes."""

    def possible(x: np.ndarray) -> np.ndarray:
        return np.where(x >= IMPOSSIBLE / 2, np.inf, x)

    tables = list(footprint.by_interval())
    n_points = max((t.end for t in tables), default=0)
    edges = {k: possible(m) for k, m in problem.edges.items()}
    return Instance([possible(c) for c in problem.nodes], edges, tables, limit_bytes, n_points)


def peak_points(tables: Sequence[MemoryTable], n_points: int) -> np.ndarray:
    """The points that decide: at each other one a subset of what one of these holds is held.

    Those are the last points before something ends, if something began since the one before.
    """
    starts, ends = np.zeros(n_points + 1, bool), np.zeros(n_points + 1, bool)
    for t in tables:
        if t.first < t.end:
            starts[t.first] = ends[t.end] = True
    found, began = [], False
    for p in range(n_points):
        began = began or bool(starts[p])
        if began and ends[p + 1]:
            found.append(p)
            began = False
    return np.array(found, np.int64)


def at_peaks(instance: Instance) -> Instance:
    """The same problem with only the points that decide; tables that are never held are dropped."""
    points = peak_points(instance.tables, instance.n_points)
    tables = []
    for t in instance.tables:
        first, end = np.searchsorted(points, [t.first, t.end]).tolist()
        if first < end and t.bytes.any():
            tables.append(MemoryTable(t.a, t.b, t.bytes, first, end))
    return Instance(instance.costs, instance.edges, tables, instance.limit_bytes, len(points))
