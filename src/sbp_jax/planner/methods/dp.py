"""Dynamic programming: nodes are eliminated one after the other, each into a table over its neighbours' choices.

Jia, Lin, Qi and Aiken, "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks" (OptCNN, ICML
2018), eliminate nodes of at most two neighbours, and edges beside each other; Elango, "PaSE: Parallelization
Strategies for Efficient DNN Training" (IPDPS 2021), any node, in an order that keeps the tables small: bucket
elimination (Dechter, 1999). Here the node whose table is smallest goes next. Exact, until a table would be too large:
then one of its nodes is fixed at a choice that local improvement found, and nothing is proven any more.
"""

import heapq
import math
from collections.abc import Collection

import numpy as np

from ..catalogue import register
from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from ..optimize.presolve import Presolved, presolve
from ..optimize.program import Solution, improve
from ..optimize.reductions import MOST_ENTRIES
from ..optimize.search import Found
from .priced import until_it_fits
from .task import Task

_MOST_DIMS = 30  # numpy stops at 64
# Where nodes had to be fixed: from what was found, others are fixed, so often. Set by hand.
_ROUNDS = 4


@register(
    "dp", promises="exact",
    paper="Jia et al., OptCNN, ICML 2018, arXiv:1802.04924, section 5 (elimination); Elango, PaSE, IPDPS 2021",
)  # fmt: skip
def dp(task: Task) -> Found | None:
    """The cheapest plan by elimination; where memory is short, bytes cost more until it fits."""
    return until_it_fits(task, eliminate, "dp")


class _Tables:
    """Costs as tables over a few nodes each: ``tables[k]`` has one dim for each node of ``scopes[k]``."""

    def __init__(self, r: Presolved) -> None:
        self.sizes = {n: len(c) for n, c in r.nodes.items()}
        self.scopes: dict[int, tuple[int, ...]] = {}
        self.tables: dict[int, np.ndarray] = {}
        self.of: dict[int, set[int]] = {n: set() for n in r.nodes}
        self.count = 0
        for n, c in r.nodes.items():
            self.add((n,), c)
        for (a, b), m in r.edges.items():
            self.add((a, b), m)

    def add(self, scope: tuple[int, ...], table: np.ndarray) -> None:
        self.scopes[self.count], self.tables[self.count] = scope, table
        for n in scope:
            self.of[n].add(self.count)
        self.count += 1

    def take(self, k: int) -> tuple[tuple[int, ...], np.ndarray]:
        scope, table = self.scopes.pop(k), self.tables.pop(k)
        for n in scope:
            self.of[n].discard(k)
        return scope, table

    def bucket(self, n: int) -> tuple[int, ...]:
        """The neighbours of a node: those it shares a table with."""
        return tuple(sorted({a for k in self.of[n] for a in self.scopes[k]} - {n}))

    def entries(self, n: int) -> float:
        size = float(self.sizes[n])
        for a in self.bucket(n):
            size *= self.sizes[a]
        return size

    def fix(self, n: int, choice: int) -> tuple[int, ...]:
        """One choice for a node; its neighbours."""
        around = self.bucket(n)
        for k in list(self.of[n]):
            scope, table = self.take(k)
            rest = tuple(a for a in scope if a != n)
            self.add(rest, np.take(table, choice, axis=scope.index(n)))
        del self.of[n]
        return around


def eliminate(problem: CostGraph, widest: int = _MOST_DIMS, by_dependents: bool = False) -> Solution | None:
    """The best choice, proven where no table grew too large.

    ``widest``: nodes of more neighbours are not eliminated but where what is left is small enough to be tried whole.
    ``by_dependents``: the node with the fewest neighbours goes next, however large its table is.
    """
    r = presolve(problem)
    start = improve(r, {n: int(c.argmin()) for n, c in r.nodes.items()})
    fixed: set[int] = set()
    chosen, value, exact = start, r.value(start), False
    for _ in range(_ROUNDS):
        found, now = _eliminated(r, chosen, widest, by_dependents, fixed)
        exact = not now
        if not exact:
            found = improve(r, found)
        better = r.value(found)
        if exact or better < value:
            chosen, value = found, better
        elif now <= fixed:
            break  # nothing better, and nothing else to fix
        fixed |= now
        if exact:
            break
    choice = tuple(r.expand(chosen))
    objective = problem.evaluate(choice)
    if objective >= IMPOSSIBLE:
        return None
    return Solution(choice, objective, objective if exact else 0.0, len(r.nodes), 0)


def _eliminated(
    r: Presolved, start: dict[int, int], widest: int, by_dependents: bool, avoid: Collection[int]
) -> tuple[dict[int, int], set[int]]:
    """The best choice, and the nodes that were fixed as in ``start`` because tables grew too large; of those there are
    to choose from none of ``avoid`` if it can be."""
    t = _Tables(r)
    log: list[tuple[int, tuple[int, ...], np.ndarray | int]] = []
    fixed: set[int] = set()

    def key(n: int) -> tuple[float, float]:
        entries = t.entries(n)
        around = float(len(t.bucket(n))) if by_dependents or widest < _MOST_DIMS else 0.0
        return around, entries

    queue = [(key(n), n) for n in t.of]
    heapq.heapify(queue)

    def requeue(nodes: tuple[int, ...]) -> None:
        for a in nodes:
            heapq.heappush(queue, (key(a), a))

    while queue:
        at, n = heapq.heappop(queue)
        if n not in t.of or at != key(n):
            continue  # gone, or queued again since
        around, entries = t.bucket(n), at[1]
        too_wide = len(around) > widest and math.prod(t.sizes[a] for a in t.of) > MOST_ENTRIES
        if entries > MOST_ENTRIES or len(around) > _MOST_DIMS or too_wide:
            hub = max(around, key=lambda a: (a not in avoid, len(t.of[a]), t.sizes[a]))
            fixed.add(hub)
            log.append((hub, (), start[hub]))
            requeue(t.fix(hub, start[hub]))
            continue
        total = np.zeros((t.sizes[n], *(t.sizes[a] for a in around)))
        axis = {a: k for k, a in enumerate((n, *around))}
        for k in list(t.of[n]):
            scope, table = t.take(k)
            order = sorted(range(len(scope)), key=lambda d: axis[scope[d]])
            shape = [1] * total.ndim
            for d in order:
                shape[axis[scope[d]]] = table.shape[d]
            total += table.transpose(order).reshape(shape)
        log.append((n, around, total.argmin(axis=0)))
        del t.of[n]
        t.add(around, total.min(axis=0))
        requeue(around)

    chosen: dict[int, int] = {}
    for n, around, best in reversed(log):
        chosen[n] = int(best[tuple(chosen[a] for a in around)]) if isinstance(best, np.ndarray) else int(best)
    return chosen, fixed
