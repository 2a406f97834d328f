"""Lower bounds of a kernel by message passing, and what each choice costs beyond them at least.

Costs may be moved between a node's choices and its edges without changing what any plan costs; the sum of all separate
minima is then a lower bound. Sequential tree-reweighted message passing (TRW-S: Kolmogorov, IEEE TPAMI 28(10), 2006)
moves them node by node, there and back, so that the bound only grows.
"""

import math

import numpy as np

from ..budget import Budget
from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from .presolve import Presolved, without_presolve

# So many sweeps, and more while each raises the bound by more than this part.
_PROVING_SWEEPS = 15
_MOST_SWEEPS = 80
_CONVERGED = 1e-4
# Work of a sweep for each edge beside its entries: a few calls on small arrays.
_EDGE_WORK = 400

Choice = dict[int, int]
# Of a sweep at a node: its costs and what it was given, their sum (and as a column), the part for each neighbour ahead,
# the part of the node's least that counts for the bound; by neighbour the edge's costs, what it gave (as a column) and
# what it gets.
_Pass = tuple[np.ndarray, np.ndarray, np.ndarray, float, float, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]


def spares(problem: CostGraph, budget: Budget) -> tuple[float, list[np.ndarray]]:
    """A lower bound, and what each choice of each node costs beyond it at least, as far as some sweeps prove.

    Sweeps go on while the bound grows, up to a number, or until the budget is over.
    """
    r = without_presolve(problem)
    if not consistent(r):
        return -math.inf, [np.zeros(len(c)) for c in problem.nodes]
    m = PresolvedMessages(r)
    bound = before = -math.inf
    for k in range(_MOST_SWEEPS):
        bound = m.sweep(forwards=True)
        m.sweep(forwards=False)
        budget.spend(2 * m.work)
        if k >= _PROVING_SWEEPS and (bound - before <= _CONVERGED * abs(bound) or budget.over):
            break
        before = bound
    found = [np.full(len(c), math.inf) for c in problem.nodes]
    # While the last sweep passed a node, the bound was at least that of the sweep before: what was spare then, counts.
    for n, total in m.total.items():
        found[n][r.kept[n]] = total - total.min()
    return bound + r.constant, found


def proving_work(problem: CostGraph) -> float:
    """What ``spares`` spends at least."""
    return 2.0 * _PROVING_SWEEPS * problem.pairs


def consistent(r: Presolved) -> bool:
    """Strike choices that cannot be had, or have nothing to go with at a neighbour; False if a node has none left."""
    pending = dict.fromkeys(r.nodes)
    while pending:
        n = next(iter(pending))
        del pending[n]
        keep = r.nodes[n] < IMPOSSIBLE / 2
        for a in r.around[n]:
            keep &= np.minimum.reduce(r.matrix(n, a), axis=1, initial=IMPOSSIBLE) < IMPOSSIBLE / 2
        if not keep.any():
            return False
        if not keep.all():
            r.keep(n, keep)
            pending.update(dict.fromkeys(r.around[n]))
    return True


class PresolvedMessages:
    """What each edge gives the choices of its ends: ``given[a, b]`` those of ``b``.

    ``given[a, b]`` is a row of ``gathered[b]``, after the costs of ``b``: one sum gives all that ``b`` has. Sweeps
    write in place, for there are many and their arrays are small.
    """

    def __init__(self, r: Presolved) -> None:
        self.r = r
        self.order = sorted(r.nodes, key=r.place.__getitem__)
        at = {n: k for k, n in enumerate(self.order)}
        self.given: dict[tuple[int, int], np.ndarray] = {}
        self.gathered: dict[int, np.ndarray] = {}
        for n, cost in r.nodes.items():
            self.gathered[n] = rows = np.zeros((1 + len(r.around[n]), len(cost)))
            rows[0] = cost
            self.given |= {(a, n): row for a, row in zip(r.around[n], rows[1:], strict=True)}
        self.matrix: dict[tuple[int, int], np.ndarray] = {}
        for (a, b), m in r.edges.items():
            self.matrix[a, b], self.matrix[b, a] = m, m.T
        self.later = {n: [a for a in r.around[n] if at[a] > at[n]] for n in self.order}
        self.earlier = {n: [a for a in r.around[n] if at[a] < at[n]] for n in self.order}
        self.part = {n: 1.0 / max(len(self.later[n]), len(self.earlier[n]), 1) for n in self.order}
        self.total = {n: np.empty(len(r.nodes[n])) for n in self.order}
        # Of one sweep.
        self.work = r.pairs + _EDGE_WORK * (len(r.edges) + len(r.nodes))
        self._forwards = [self._passes(n, self.later[n]) for n in self.order]
        self._backwards = [self._passes(n, self.earlier[n]) for n in reversed(self.order)]

    def _passes(self, n: int, ahead: list[int]) -> _Pass:
        to = [(self.matrix[n, a], self.given[a, n][:, None], self.given[n, a]) for a in ahead]
        total, part = self.total[n], self.part[n]
        return self.gathered[n], total, total[:, None], part, 1.0 - len(ahead) * part, to

    def sweep(self, forwards: bool) -> float:
        """Every node gives the neighbours ahead of it equal parts of what it has; the bound then."""
        bound, add, least = 0.0, np.add.reduce, np.minimum.reduce
        for gathered, total, column, part, counted, ahead in self._forwards if forwards else self._backwards:
            add(gathered, axis=0, out=total)
            # What a node gives away is counted where it arrives.
            bound += float(least(total)) * counted
            if ahead:
                share = part * column
                for m, back, given in ahead:
                    least(m + (share - back), axis=0, out=given)
        return bound

    def read(self) -> Choice:
        """A choice for every node in order: the best by what is chosen already, and by the messages of the rest."""
        choice: Choice = {}
        for n in self.order:
            total = self.r.nodes[n].copy()
            for a in self.r.around[n]:
                total += self.matrix[n, a][:, choice[a]] if a in choice else self.given[a, n]
            choice[n] = int(total.argmin())
        return choice

    def move(self) -> None:
        """Put what was moved, the last sweep being one back, into the costs."""
        for (a, b), m in self.r.edges.items():
            moved = m - self.given[b, a][:, None] - self.given[a, b]
            if a in self.earlier[b]:
                moved += self.part[b] * self.total[b]
            else:
                moved += (self.part[a] * self.total[a])[:, None]
            self.r.edges[a, b] = moved
        for n, total in self.total.items():
            self.r.nodes[n] = total * (1.0 - len(self.earlier[n]) * self.part[n])

    def within(self, most: float) -> dict[int, np.ndarray]:
        """By node which choices have totals at most ``most`` above the least: all, where none would be left."""
        found = {n: total - total.min() <= most for n, total in self.total.items()}
        return {n: keep if keep.any() else ~keep for n, keep in found.items()}

    @property
    def choices(self) -> int:
        """How many choices the nodes have together."""
        return sum(len(total) for total in self.total.values())
