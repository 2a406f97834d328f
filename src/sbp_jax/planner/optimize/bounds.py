"""A kernel closed in on from both sides: bounds by message passing, plans read off it, what neither needs struck.

Costs may be moved between a node's choices and its edges without changing what any plan costs; the sum of all separate
minima is then a lower bound. Sequential tree-reweighted message passing (TRW-S: Kolmogorov, IEEE TPAMI 28(10), 2006)
moves them node by node, there and back, so that the bound only grows. With a plan of cost U, a choice whose every plan
provably costs more than U goes (reduced-cost fixing); after a few sweeps each time, so that the next ones have less to
do. Most often the bound is nearly tight long before the best plan is read off: so a guess below U takes its place on a
copy, which then is small enough to be solved exactly. Either its plan is the best of all, or none is so cheap, the
guess is a bound, and its plan most likely a good one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..budget import EQUAL, Budget
from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from .presolve import Reduction, unreduced

_SWEEPS = 5
# So many sweeps, and more while each raises the bound by more than this part.
_PROVING_SWEEPS = 15
_MOST_SWEEPS = 80
_CONVERGED = 1e-4
_ROUNDS = 40
# A round is worth another where it leaves at most this part of the gap, or of the pairs.
_WORTH = 0.99
_IDLE = 3
# A round that leaves more than this part of the pairs is slow. Then the program takes over with so many times as many
# pairs as otherwise: it needs about 4 microseconds for each, a round on a small transformer's step 0.2 seconds.
_SLOW = 0.7
# Work of a sweep for each edge beside its entries: a few calls on small arrays.
_EDGE_WORK = 400
_FEW_IF_SLOW = 2.5
# A guess is this far from the bound to the best plan: the first that leaves so few pairs of choices.
_GUESSES = (0.6, 0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.015, 0.008, 0.004)
_FEW_GUESSED = 40_000
_GUESS_SECONDS = 3.0
# After one that found nothing better the next comes when so much of the pairs is left.
_AGAIN = 0.5

Choice = dict[int, int]
# Of a sweep at a node: its costs and what it was given, their sum, the part for each neighbour ahead, the part of the
# node's least that counts for the bound; by neighbour the edge's costs, what it gave, what it gets.
_Pass = tuple[np.ndarray, np.ndarray, float, float, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]


@dataclass(slots=True)
class Closing:
    """The best plan seen (``choice`` of the whole problem, its ``objective``) and the bound of a reduction's optimum.

    ``evaluate`` costs a whole plan, ``improve`` makes a kernel's choice better one node at a time,
    ``exact`` solves a small kernel within a budget: its choice, and a bound without the constant (None: no guesses).
    """

    evaluate: Callable[[list[int]], float]
    improve: Callable[[Reduction, Choice], Choice]
    exact: Callable[[Reduction, Budget], tuple[Choice | None, float]] | None
    gap: float
    budget: Budget
    choice: list[int] | None = None
    objective: float = IMPOSSIBLE
    bound: float = -math.inf
    seen: list[list[int]] = field(default_factory=list)
    # Of the last sweeps: a bound, what each choice costs beyond it at least, and which choices those are.
    there: float = -math.inf
    spare: dict[int, np.ndarray] = field(default_factory=dict)
    kept: dict[int, np.ndarray] = field(default_factory=dict)
    guessed: bool = False

    def offer(self, choice: list[int]) -> None:
        """Take a plan if it is the best."""
        self.seen.append(choice)
        cost = self.evaluate(choice)
        if cost < self.objective:
            self.choice, self.objective = choice, cost

    @property
    def done(self) -> bool:
        """Whether the gap is closed."""
        return self.budget.closes(self.objective, self.bound, self.gap)

    def run(self, r: Reduction, few_pairs: int) -> None:
        """Strike and reduce in place until the gap is closed, few pairs are left, little is gained or time is up."""
        last_gap, last_pairs, idle = math.inf, math.inf, 0
        guessed_at = math.inf
        for _ in range(_ROUNDS):
            if not (consistent(r) and r.nodes):
                self.bound = max(self.bound, self.objective if r.nodes else min(self.objective, r.constant))
                if not r.nodes:
                    self.offer(r.expand({}))
                return
            before = pairs(r)
            if before <= few_pairs or self.budget.over:
                return
            self.bound = max(self.bound, self._round(r))
            if self.done:
                return
            if pairs(r) <= _AGAIN * guessed_at and pairs(r) > few_pairs:
                known = self.objective
                self._guess(r)
                if self.guessed and self.objective == known:
                    guessed_at = pairs(r)
            gap, left = self.objective - self.bound, pairs(r)
            idle = 0 if gap <= _WORTH * last_gap or left <= _WORTH * last_pairs else idle + 1
            if self.done or idle >= _IDLE or (left <= _FEW_IF_SLOW * few_pairs and left > _SLOW * before):
                return
            last_gap, last_pairs = gap, left

    def _round(self, r: Reduction) -> float:
        """A few sweeps, the plan read off, what costs more than the best plan struck; the bound."""
        m = _Messages(r)
        there = back = -math.inf
        for _ in range(_SWEEPS):
            there, back = m.sweep(forwards=True), m.sweep(forwards=False)
            self.budget.spend(2 * m.work)
            if self.budget.over:
                break
        self.offer(r.expand(self.improve(r, m.read())))
        bound = back + r.constant
        most = self.objective
        self.there, self.spare = there + r.constant, {n: t - t.min() for n, t in m.total.items()}
        self.kept = {n: r.kept[n] for n in r.nodes}
        m.move()
        changed = m.strike(most - r.constant - there + EQUAL * abs(most)) if most < IMPOSSIBLE else []
        if changed:
            r.shrink(self.budget, [n for c in changed for n in (c, *r.around[c])])
        return bound

    def _rows(self, r: Reduction) -> list[tuple[int, np.ndarray]]:
        return [(n, np.searchsorted(self.kept[n], r.kept[n])) for n in r.nodes]

    def _guess(self, r: Reduction) -> None:
        """Solve exactly what a plan may have that is cheaper than a guess."""
        self.guessed, gap = False, self.objective - self.bound
        if self.exact is None or not gap < IMPOSSIBLE / 2:
            return
        parts = np.array(_GUESSES)
        most_spare = self.bound + parts * gap - self.there
        spare = {n: self.spare[n][k] for n, k in self._rows(r)}
        count = {n: (x[:, None] <= most_spare).sum(axis=0) for n, x in spare.items()}
        left = sum((count[a] * count[b] for a, b in r.edges), np.zeros(len(parts), np.int64))
        few = np.flatnonzero(left <= _FEW_GUESSED)
        if not len(few):
            return
        most = self.bound + float(parts[few[0]]) * gap
        kept = {n: x <= most - self.there for n, x in spare.items()}
        self.guessed, trial = True, r.copy()
        for n, k in kept.items():
            if not k.any():
                self.bound = max(self.bound, most)
                return
            trial.keep(n, k)
        if not consistent(trial):
            self.bound = max(self.bound, most)
            return
        trial.shrink(self.budget)
        choice, bound = self.exact(trial, self.budget.some(_GUESS_SECONDS))
        if choice is not None:
            self.offer(trial.expand(choice))
        # No plan is cheaper than the guess, or the best of those is found.
        self.bound = max(self.bound, min(bound + trial.constant, most, self.objective))


def spares(problem: CostGraph, budget: Budget) -> tuple[float, list[np.ndarray]]:
    """A lower bound, and what each choice of each node costs beyond it at least, as far as some sweeps prove.

    Sweeps go on while the bound grows, up to a number, or until the budget is over.
    """
    r = unreduced(problem)
    if not consistent(r):
        return -math.inf, [np.zeros(len(c)) for c in problem.nodes]
    m = _Messages(r)
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


def pairs(r: Reduction) -> int:
    """How many pairs of choices the edges have."""
    return sum(m.size for m in r.edges.values())


def consistent(r: Reduction) -> bool:
    """Strike choices that cannot be had, or have nothing to go with at a neighbour; False if a node has none left."""
    pending = dict.fromkeys(r.nodes)
    while pending:
        n = next(iter(pending))
        del pending[n]
        keep = r.nodes[n] < IMPOSSIBLE / 2
        for a in r.around[n]:
            keep &= r.matrix(n, a).min(axis=1, initial=IMPOSSIBLE) < IMPOSSIBLE / 2
        if not keep.any():
            return False
        if not keep.all():
            r.keep(n, keep)
            pending.update(dict.fromkeys(r.around[n]))
    return True


class _Messages:
    """What each edge gives the choices of its ends: ``given[a, b]`` those of ``b``.

    ``given[a, b]`` is a row of ``gathered[b]``, after the costs of ``b``: one sum gives all that ``b`` has. Sweeps
    write in place, for there are many and their arrays are small.
    """

    def __init__(self, r: Reduction) -> None:
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
        self.work = pairs(r) + _EDGE_WORK * (len(r.edges) + len(r.nodes))
        self._forwards = [self._passes(n, self.later[n]) for n in self.order]
        self._backwards = [self._passes(n, self.earlier[n]) for n in reversed(self.order)]

    def _passes(self, n: int, ahead: list[int]) -> _Pass:
        to = [(self.matrix[n, a], self.given[a, n], self.given[n, a]) for a in ahead]
        return self.gathered[n], self.total[n], self.part[n], 1.0 - len(ahead) * self.part[n], to

    def sweep(self, forwards: bool) -> float:
        """Every node gives the neighbours ahead of it equal parts of what it has; the bound then."""
        bound, add, least = 0.0, np.add.reduce, np.minimum.reduce
        for gathered, total, part, counted, ahead in self._forwards if forwards else self._backwards:
            add(gathered, axis=0, out=total)
            # What a node gives away is counted where it arrives.
            bound += float(least(total)) * counted
            if ahead:
                share = part * total
                for m, back, given in ahead:
                    least(m + (share - back)[:, None], axis=0, out=given)
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

    def strike(self, most: float) -> list[int]:
        """Strike the choices whose totals are more than ``most`` above the least; the nodes that had some."""
        changed = []
        for n, total in self.total.items():
            keep = total - total.min() <= most
            if not keep.all() and keep.any():
                self.r.keep(n, keep)
                changed.append(n)
        return changed
