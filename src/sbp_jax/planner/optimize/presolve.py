"""Making the problem smaller without changing its optimum: what only follows is clustering away, what loses is struck.

* A node with one neighbour, or two, is minimised out: its best answer to each choice of theirs becomes their
  cost (node and edge elimination: Jia, Zaharia and Aiken, "Beyond data and model parallelism", and OptCNN,
  arXiv:1802.04924, section 5).
* A choice is struck when another of the same node is at least as good whatever the neighbours do
  (dead-end elimination: Goldstein, Biophys. J. 66 (1994)).

What is left, the kernel, goes to the 0-1 solver; ``Presolved.expand`` answers for the rest.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..budget import Budget
from ..costs.cost_graph import CostGraph
from .reductions import MOST_COMPARED, MOST_ENTRIES, best_answers, unbeaten

# Work at a node beside the entries that are looked at.
_NODE_WORK = 2_000
# With more pairs of choices than this, choices are struck where a comparison looks at so much, the rest is left to
# bounds. On five small models that is a tenth of the comparisons; they take a fifth of the time of all, and strike as
# many choices as the others together. Plans of thirty took 8 % less.
_FEW_PAIRS = 100_000
_LEAST_COMPARED = 100_000
_NONE = np.zeros(0, np.int64)


@dataclass(slots=True)
class _Eliminated:
    """A node minimised out: for its neighbours' choices, its best one. ``kept`` are the choices of the node, then
    of the neighbours, that were left at the time: later strikes renumber them.
    """

    node: int
    neighbours: tuple[int, ...]
    best: np.ndarray
    kept: tuple[np.ndarray, ...]


@dataclass(slots=True)
class Presolved:
    """The kernel of a problem and how to get back. ``kept`` are each node's surviving choices, ``place`` where it is
    in the program's order."""

    nodes: dict[int, np.ndarray]
    edges: dict[tuple[int, int], np.ndarray]
    kept: list[np.ndarray]
    constant: float = 0.0
    log: list[_Eliminated] = field(default_factory=list)
    around: dict[int, set[int]] = field(default_factory=dict)
    place: dict[int, int] = field(default_factory=dict)

    def copy(self) -> "Presolved":
        """Another that may be presolved further on its own."""
        around = {n: set(x) for n, x in self.around.items()}
        return Presolved(
            dict(self.nodes), dict(self.edges), list(self.kept), self.constant, list(self.log), around, self.place
        )

    def among(self, kept: Mapping[int, np.ndarray]) -> "Presolved":
        """Another one with these choices of each node alone (their numbers here, rising)."""
        few = self.copy()
        few.nodes = {n: c[kept[n]] for n, c in self.nodes.items()}
        few.edges = {(a, b): m[kept[a][:, None], kept[b]] for (a, b), m in self.edges.items()}
        for n in few.nodes:
            few.kept[n] = self.kept[n][kept[n]]
        return few

    def expand(self, kernel_choice: Mapping[int, int]) -> list[int]:
        """The choice of every node of the original problem, from the kernel's (in surviving choices)."""
        choice = self.expanded(kernel_choice)
        return [choice[n] for n in range(len(self.kept))]

    def expanded(self, kernel_choice: Mapping[int, int]) -> dict[int, int]:
        """The choice of every node that the log knows, from the kernel's."""
        choice = {n: int(self.kept[n][k]) for n, k in kernel_choice.items()}
        for step in reversed(self.log):
            own, *others = step.kept
            at = tuple(int(kept.searchsorted(choice[n])) for n, kept in zip(step.neighbours, others, strict=True))
            choice[step.node] = int(own[step.best[at]])
        return choice

    def value(self, choice: Mapping[int, int]) -> float:
        """What a choice of the kernel costs, the constant included."""
        total = self.constant + sum(float(c[choice[n]]) for n, c in self.nodes.items())
        return total + sum(float(m[choice[a], choice[b]]) for (a, b), m in self.edges.items())

    def nearest(self, choice: Sequence[int]) -> dict[int, int]:
        """A plan of the original problem as a choice of the kernel; a node's cheapest where what it has was struck."""
        found = {}
        for n in self.nodes:
            at = int(np.searchsorted(self.kept[n], choice[n]))
            has = at < len(self.kept[n]) and self.kept[n][at] == choice[n]
            found[n] = at if has else int(self.nodes[n].argmin())
        return found

    def freed(self, free: Collection[int], choice: Mapping[int, int]) -> "Presolved":
        """The problem of the ``free`` nodes, the others keeping their choice."""
        nodes, edges = {n: self.nodes[n].copy() for n in sorted(free)}, {}
        for n in nodes:
            for a in self.around[n]:
                if a not in nodes:
                    nodes[n] += self.matrix(n, a)[:, choice[a]]
                elif n < a:
                    edges[n, a] = self.edges[n, a]
        kept = [_NONE] * len(self.kept)
        for n, c in nodes.items():
            kept[n] = np.arange(len(c))
        around = {n: self.around[n] & nodes.keys() for n in nodes}
        return Presolved(nodes, edges, kept, around=around, place=self.place)

    @property
    def pairs(self) -> int:
        """How many pairs of choices the edges have."""
        return sum(m.size for m in self.edges.values())

    def shrink_for_bounds(self, budget: Budget, changed: Iterable[int] | None = None) -> None:
        """``shrink``, but while there are many pairs of choices strike where much goes at once; bounds do the rest."""
        few = self.pairs <= _FEW_PAIRS
        self.shrink(budget, changed, 0 if few else _LEAST_COMPARED)
        if not few and self.pairs <= _FEW_PAIRS:
            self.shrink(budget)

    def shrink(self, budget: Budget, changed: Iterable[int] | None = None, least_compared: int = 0) -> None:
        """Eliminate and strike until nothing more goes or the budget is over, beginning at nodes that have ``changed``
        (all). Strike where a comparison looks at ``least_compared`` or more.
        """
        pending = dict.fromkeys(self.nodes if changed is None else changed)
        while pending and not budget.over:
            n = next(iter(pending))
            del pending[n]
            if n not in self.nodes:
                continue
            if len(self.nodes[n]) == 1:
                pending.update(dict.fromkeys(self.condition(n)))
                budget.spend(_NODE_WORK)
            elif len(self.around[n]) <= 2 and (entries := self._entries(n)) <= MOST_ENTRIES:
                pending.update(dict.fromkeys(self.eliminate(n)))
                budget.spend(_NODE_WORK + entries)
            elif least_compared <= (compared := self._compared(n)) <= MOST_COMPARED:
                budget.spend(_NODE_WORK + compared)
                if self.strike(n):
                    pending[n] = None
                    pending.update(dict.fromkeys(self.around[n]))

    def keep(self, n: int, kept: np.ndarray) -> None:
        """Leave only some choices of a node (a mask)."""
        self.nodes[n] = self.nodes[n][kept]
        self.kept[n] = self.kept[n][kept]
        for a in self.around[n]:
            if n < a:
                self.edges[n, a] = self.edges[n, a][kept, :]
            else:
                self.edges[a, n] = self.edges[a, n][:, kept]

    def _entries(self, n: int) -> int:
        """The pairs of choices that minimising a node out leaves, times its own choices."""
        return math.prod(len(self.nodes[k]) for k in (n, *self.around[n]))

    def _compared(self, n: int) -> int:
        """What comparing a node's choices looks at."""
        return len(self.nodes[n]) ** 2 * sum(len(self.nodes[a]) for a in self.around[n])

    def floor(self) -> float:
        """A lower bound of the problem's optimum: every node and edge of the kernel at its own cheapest."""
        costs = [*self.nodes.values(), *self.edges.values()]
        return self.constant + sum(float(c.min()) for c in costs)

    def _record(self, n: int, neighbours: Sequence[int], best: np.ndarray) -> None:
        kept = tuple(self.kept[k] for k in (n, *neighbours))
        self.log.append(_Eliminated(n, tuple(neighbours), best, kept))

    def matrix(self, a: int, b: int) -> np.ndarray:
        """The edge's costs with ``a``'s choices as rows."""
        return self.edges[a, b] if a < b else self.edges[b, a].T

    def _put(self, a: int, b: int, matrix: np.ndarray) -> None:
        if a > b:
            a, b, matrix = b, a, matrix.T
        known = self.edges.get((a, b))
        self.edges[a, b] = matrix if known is None else known + matrix
        self.around[a].add(b)
        self.around[b].add(a)

    def _drop_edge(self, a: int, b: int) -> None:
        del self.edges[(a, b) if a < b else (b, a)]
        self.around[a].discard(b)
        self.around[b].discard(a)

    def eliminate(self, n: int) -> list[int]:
        """Minimise a node of at most two neighbours out; the neighbours."""
        neighbours = sorted(self.around[n])
        least, best = best_answers(self.nodes.pop(n), *(self.matrix(a, n) for a in neighbours))
        self._record(n, neighbours, best)
        if not neighbours:
            self.constant += float(least)
        elif len(neighbours) == 1:
            (a,) = neighbours
            self.nodes[a] = self.nodes[a] + least
        else:
            a, b = neighbours
            self._put(a, b, least)
        for a in neighbours:
            self._drop_edge(a, n)
        return neighbours

    def condition(self, n: int) -> list[int]:
        """A node with one choice left tells its neighbours what it costs them, and goes."""
        cost, neighbours = self.nodes.pop(n), sorted(self.around[n])
        self.constant += float(cost[0])
        self._record(n, (), np.asarray(0))
        for a in neighbours:
            self.nodes[a] = self.nodes[a] + self.matrix(a, n)[:, 0]
            self._drop_edge(a, n)
        return neighbours

    def strike(self, n: int) -> bool:
        """Remove the choices of a node that another one beats whatever its neighbours choose."""
        cost = self.nodes[n]
        tolerance = 1e-12 * max(1e-6, float(np.abs(cost).max()))
        matrices = [self.matrix(n, a) for a in self.around[n]]
        some, others = _may_beat(cost, matrices, tolerance)
        if not len(some):
            return False
        # At least this much is lost by some against others, choice by choice.
        worse = cost[some] - cost[others]
        for m in matrices:
            worse += (m[some] - m[others]).min(axis=1)
        beaten_by = np.zeros((len(cost), len(cost)), bool)
        beaten_by[some, others] = worse >= -tolerance
        if not beaten_by.any():
            return False
        self.keep(n, unbeaten(cost, beaten_by))
        return True


def without_presolve(problem: CostGraph) -> Presolved:
    """A problem as its own kernel."""
    around: dict[int, set[int]] = {n: set() for n in range(len(problem.nodes))}
    for a, b in problem.edges:
        around[a].add(b)
        around[b].add(a)
    place = {n: k for k, n in enumerate(problem.order)}
    kept = [np.arange(len(c)) for c in problem.nodes]
    return Presolved(dict(enumerate(problem.nodes)), dict(problem.edges), kept, around=around, place=place)


def presolve(problem: CostGraph, budget: Budget | None = None) -> Presolved:
    """The kernel of a problem; its optimum (plus ``constant``) is the problem's.

    When the budget is over it stays as large as it is then: every step is exact on its own.
    """
    r = without_presolve(problem)
    r.shrink(budget or Budget())
    return r


def _may_beat(cost: np.ndarray, matrices: Sequence[np.ndarray], tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of choices of which the second may be at least as good as the first whatever the neighbours choose.

    What the first loses at least is not more than what it loses where it is at its best, or the second at its worst.
    """
    most = cost[:, None] - cost[None, :]
    for m in matrices:
        best, worst = m.argmin(axis=1), m.argmax(axis=1)
        at = np.arange(len(m))
        most += np.minimum(m[at, best][:, None] - m[:, best].T, m[:, worst] - m[at, worst])
    np.fill_diagonal(most, -np.inf)
    some, others = np.nonzero(most >= -2 * tolerance)
    return some, others
