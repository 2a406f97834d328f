"""The cheapest plan of a kernel by elimination, exact, on assignments that cost little more than a bound.

Each node's costs and each edge's are a relation: the assignments of its nodes, with what they cost beyond the least.
Nodes are eliminated one by one: the relations that speak of a node are joined, and of the assignments that differ in
that node alone the cheapest stays (bucket elimination: Dechter, Artificial Intelligence 113, 1999; nonserial dynamic
programming: Bertelè and Brioschi, 1972). No cost is negative, so an assignment that costs more than the slack is in no
plan within it and goes at once. After message passing (``bounds.py``) that leaves few, also where a node in the middle
of an elimination has many neighbours.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..budget import Budget
from .presolve import Presolved

# Parts of the slack, for sums that are not quite what they would be in another order.
_ROUNDING = 1e-9
# Keys of assignments are whole numbers below this.
_MOST_KEYS = 2**62
# Work at a node, and at an edge of it, beside the entries that are looked at.
_NODE_WORK = 900
_LINE_WORK = 600
# Work of a join beside the assignments it looks at: some twenty calls on arrays.
_JOIN_WORK = 15_000
# What sorting and joining an assignment takes, in entries of a matrix.
_ROW_WORK = 25


class TooMany(Exception):
    """More assignments are within the slack than allowed, or than the budget is for."""


@dataclass(slots=True)
class _Relation:
    """Assignments: ``columns[i]`` are the choices of node ``scope[i]``, ``cost`` what each costs."""

    scope: list[int]
    columns: list[np.ndarray]
    cost: np.ndarray

    def column(self, n: int) -> np.ndarray:
        return self.columns[self.scope.index(n)]


@dataclass(frozen=True, slots=True)
class _Step:
    """The best choice of an eliminated node for each assignment of its neighbours."""

    node: int
    relation: _Relation
    best: np.ndarray


def cheapest(r: Presolved, slack: float, most_rows: int, budget: Budget) -> dict[int, int] | None:
    """The cheapest choice of a kernel, if it costs at most ``slack`` more than ``r.floor()``; None: none does.

    Raises ``TooMany`` where a join has more than ``most_rows`` assignments within the slack, or the budget is over.
    """
    few, most = r.copy(), r.floor() + slack * (1 + _ROUNDING)
    few.log = []
    if not prune(few, most, budget):
        return None
    for n in [n for n, c in few.nodes.items() if len(c) == 1]:
        few.condition(n)
    left = most - few.floor()
    if left < 0:
        return None
    found = _Elimination(few, left, most_rows, budget).run() if few.nodes else {}
    if found is None:
        return None
    whole = few.expanded(found)
    return {n: int(np.searchsorted(r.kept[n], k)) for n, k in whole.items()}


def prune(r: Presolved, most: float, budget: Budget) -> bool:
    """Strike the choices of which it shows at their node and its edges that plans with them cost more than ``most``;
    False if a node has none left."""
    lowest = np.minimum.reduce
    cheapest_choice = {n: lowest(c) for n, c in r.nodes.items()}
    spare = {n: c - cheapest_choice[n] for n, c in r.nodes.items()}
    least = {e: lowest(m, axis=None) for e, m in r.edges.items()}
    slack = most - r.constant - float(sum(cheapest_choice.values()) + sum(least.values()))
    # By node and neighbour: what each choice of the node costs there at least, beyond the edge's least.
    lines: dict[tuple[int, int], np.ndarray] = {}
    pending = dict.fromkeys(r.nodes)
    while pending:
        n = next(iter(pending))
        del pending[n]
        total, work = spare[n].copy(), _NODE_WORK
        for a in r.around[n]:
            line = lines.get((n, a))
            if line is None:
                m = r.matrix(n, a)
                line = lowest(m + spare[a], axis=1) - least[(n, a) if n < a else (a, n)]
                lines[n, a] = line
                work += _LINE_WORK + m.size
            total += line
        budget.spend(work)
        keep = total <= slack
        if not keep.any():
            return False
        if not keep.all():
            r.keep(n, keep)
            spare[n] = spare[n][keep]
            for a in r.around[n]:
                lines.pop((a, n), None)
                if (n, a) in lines:
                    lines[n, a] = lines[n, a][keep]
            pending.update(dict.fromkeys(r.around[n]))
    return True


class _Elimination:
    def __init__(self, r: Presolved, slack: float, most_rows: int, budget: Budget) -> None:
        self.slack, self.most_rows, self.budget = slack * (1 + _ROUNDING), most_rows, budget
        self.sizes = {n: len(c) for n, c in r.nodes.items()}
        self.relations: dict[int, list[_Relation]] = {n: [] for n in r.nodes}
        for n, cost in r.nodes.items():
            spare = cost - cost.min()
            kept = np.flatnonzero(spare <= self.slack)
            self._add(_Relation([n], [kept], spare[kept]))
        for (a, b), m in r.edges.items():
            spare = m - m.min()
            rows, columns = np.nonzero(spare <= self.slack)
            budget.spend(m.size)
            self._add(_Relation([a, b], [rows, columns], spare[rows, columns]))

    def _add(self, relation: _Relation) -> None:
        for n in relation.scope:
            self.relations[n].append(relation)

    def run(self) -> dict[int, int] | None:
        steps: list[_Step] = []
        waiting = {n: self._size(n) for n in self.relations}
        total = 0.0
        while waiting:
            n = min(waiting, key=lambda n: (waiting[n], n))
            del waiting[n]
            joined = self._joined(n)
            if not len(joined.cost):
                return None
            step = self._project(joined, n)
            steps.append(step)
            if step.relation.scope:
                self._add(step.relation)
                for o in step.relation.scope:
                    waiting[o] = self._size(o)
            else:
                total += float(step.relation.cost[0])
                if total > self.slack:
                    return None
        choice: dict[int, int] = {}
        for step in reversed(steps):
            at = np.ones(len(step.best), bool)
            for o, column in zip(step.relation.scope, step.relation.columns, strict=True):
                at &= column == choice[o]
            choice[step.node] = int(step.best[at.argmax()])
        return choice

    def _size(self, n: int) -> float:
        """How many assignments the relations of a node can have together (logarithm): what is eliminated when."""
        scope = {o for relation in self.relations[n] for o in relation.scope}
        return sum(math.log(self.sizes[o]) for o in scope)

    def _joined(self, n: int) -> _Relation:
        """All relations of a node as one; they go."""
        waiting = sorted(self.relations.pop(n), key=lambda x: len(x.cost))
        for relation in waiting:
            for o in relation.scope:
                if o != n:
                    self.relations[o] = [x for x in self.relations[o] if x is not relation]
        joined = waiting.pop(0)
        while waiting and len(joined.cost):
            scope = set(joined.scope)
            at = max(range(len(waiting)), key=lambda k: (len(scope.intersection(waiting[k].scope)), -k))
            joined = self._join(joined, waiting.pop(at))
        return joined

    def _join(self, a: _Relation, b: _Relation) -> _Relation:
        """The assignments of both within the slack."""
        shared = [n for n in a.scope if n in b.scope]
        keys = self._keys([np.concatenate([a.column(n), b.column(n)]) for n in shared], shared)
        _, ranks = np.unique(keys, return_inverse=True)
        # In one order by key and cost, so that what is within the slack is a range for each assignment of ``a``.
        wide = 4 * self.slack
        ordered = ranks[len(a.cost) :] * wide + b.cost
        order = np.argsort(ordered, kind="stable")
        ordered, mine = ordered[order], ranks[: len(a.cost)] * wide
        first = np.searchsorted(ordered, mine - _ROUNDING * self.slack)
        end = np.searchsorted(ordered, mine + (self.slack - a.cost) + _ROUNDING * self.slack, side="right")
        count = np.maximum(end - first, 0)
        total = int(count.sum())
        self.budget.spend(_JOIN_WORK + _ROW_WORK * (total + len(a.cost) + len(b.cost)))
        if total > self.most_rows or self.budget.over:
            raise TooMany
        from_a = np.repeat(np.arange(len(a.cost)), count)
        from_b = order[np.arange(total) - np.repeat(np.cumsum(count) - count - first, count)]
        new = [n for n in b.scope if n not in shared]
        columns = [c[from_a] for c in a.columns] + [b.column(n)[from_b] for n in new]
        return _Relation([*a.scope, *new], columns, a.cost[from_a] + b.cost[from_b])

    def _project(self, joined: _Relation, n: int) -> _Step:
        """Eliminate a node: for each assignment of the others its best choice."""
        scope = [o for o in joined.scope if o != n]
        columns = [joined.column(o) for o in scope]
        keys = self._keys(columns, scope) if scope else np.zeros(len(joined.cost), np.int64)
        order = np.lexsort((joined.cost, keys))
        ordered = keys[order]
        best = order[np.r_[True, ordered[1:] != ordered[:-1]]]
        self.budget.spend(_JOIN_WORK + _ROW_WORK * len(keys))
        return _Step(n, _Relation(scope, [c[best] for c in columns], joined.cost[best]), joined.column(n)[best])

    def _keys(self, columns: list[np.ndarray], scope: list[int]) -> np.ndarray:
        """One number for each assignment."""
        keys, most = np.zeros(len(columns[0]) if columns else 0, np.int64), 1
        for column, n in zip(columns, scope, strict=True):
            if most * self.sizes[n] >= _MOST_KEYS:
                keys = np.unique(keys, return_inverse=True)[1]
                most = len(keys) + 1
            keys = keys * self.sizes[n] + column
            most *= self.sizes[n]
        return keys
