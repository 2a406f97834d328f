"""Dynamic programming: nodes are eliminated one after the other, each into a table over its neighbours' choices.

Jia, Lin, Qi and Aiken, "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks" (OptCNN, ICML
2018), eliminate nodes of at most two neighbours, and edges beside each other; Elango, "PaSE: Parallelization
Strategies for Efficient DNN Training" (IPDPS 2021), any node, in an order that keeps the tables small: bucket
elimination (Dechter, 1999). Here the node whose table is smallest goes next.

Where tables would be large, choices that are in no best plan are struck first: a lower bound proves that every plan
with them costs more than one that is known (``optimize/closing.py``). Exact, until a table would be too large even so:
then one of its nodes is fixed at a choice that local improvement found, and the bound is all that is proven.
"""

import heapq
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ..budget import Budget
from ..catalogue import register
from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from ..optimize.closing import Closing
from ..optimize.presolve import Presolved, presolve
from ..optimize.program import Solution, improve
from ..optimize.reductions import MOST_ENTRIES
from ..optimize.search import Found
from .priced import until_it_fits
from .task import Task

_MOST_DIMS = 30  # numpy stops at 64
# Tables of more entries together are made smaller first. Set by hand: some 20 ms, a round of striking.
_MOST_IN_ALL = 2_000_000
# Where nodes had to be fixed: from what was found, others are fixed, so often. Set by hand.
_ROUNDS = 4


@register(
    "dp", promises="exact",
    paper="Jia et al., OptCNN, ICML 2018, arXiv:1802.04924, section 5 (elimination); Elango, PaSE, IPDPS 2021",
)  # fmt: skip
def dp(task: Task) -> Found | None:
    """The cheapest plan by elimination; where memory is short, bytes cost more until it fits."""
    return until_it_fits(task, eliminate, "dp")


@dataclass(frozen=True, slots=True)
class _Order:
    """What is done to each node, in turn: eliminated into a table over its neighbours, or (None) fixed.

    ``entries``: of all tables together.
    """

    steps: list[tuple[int, tuple[int, ...] | None]]
    entries: float

    @property
    def fixed(self) -> set[int]:
        """The nodes that are not decided by a table."""
        return {n for n, around in self.steps if around is None}


def _order(
    r: Presolved, widest: int, by_dependents: bool, avoid: Collection[int] = (), most: float = math.inf
) -> _Order:  # fmt: skip
    """The order in which nodes go; only its begin where tables have more than ``most`` entries together, or one is too
    large. Of nodes that have to be fixed, none of ``avoid`` if it can be.
    """
    sizes = {n: len(c) for n, c in r.nodes.items()}
    near = {n: set(r.around[n]) for n in r.nodes}
    counts_neighbours = by_dependents or widest < _MOST_DIMS

    def key(n: int) -> tuple[int, float]:
        entries = float(sizes[n])
        for a in near[n]:
            entries *= sizes[a]
        return len(near[n]) if counts_neighbours else 0, entries

    keys = {n: key(n) for n in near}
    queue = [(at, n) for n, at in keys.items()]
    heapq.heapify(queue)
    steps: list[tuple[int, tuple[int, ...] | None]] = []
    total, left = 0.0, sum(math.log(k) for k in sizes.values())
    whole = math.log(MOST_ENTRIES) * (1 + 1e-12)
    while queue:
        at, n = heapq.heappop(queue)
        if n not in near or at != keys[n]:
            continue  # gone, or queued again since
        around, entries = near[n], at[1]
        too_wide = len(around) > widest and left > whole
        if entries > MOST_ENTRIES or len(around) > _MOST_DIMS or too_wide:
            gone = max(sorted(around), key=lambda a: (a not in avoid, len(near[a]), sizes[a]))
            changed = near.pop(gone)
            steps.append((gone, None))
            if most < math.inf:
                break
        else:
            gone, changed = n, near.pop(n)
            steps.append((gone, tuple(sorted(changed))))
            total += entries
            if total > most:
                break
            for a in changed:
                near[a] |= changed
                near[a].discard(a)
        left -= math.log(sizes[gone])
        for a in changed:
            near[a].discard(gone)
            keys[a] = key(a)
            heapq.heappush(queue, (keys[a], a))
    return _Order(steps, total)


def eliminate(problem: CostGraph, widest: int = _MOST_DIMS, by_dependents: bool = False) -> Solution | None:
    """The best choice, proven where no table grew too large; else the best one found, and what bounds prove.

    ``widest``: nodes of more neighbours are not eliminated but where what is left is small enough to be tried whole.
    ``by_dependents``: the node with the fewest neighbours goes next, however large its table is.
    """
    r = presolve(problem)
    size = len(r.nodes)
    known = Closing(problem.evaluate, improve, None, 0.0, Budget(), bound=r.floor())
    known.offer(r.expand(improve(r, {n: int(c.argmin()) for n, c in r.nodes.items()})))

    def is_small(r: Presolved) -> bool:
        order = _order(r, widest, by_dependents, most=_MOST_IN_ALL)
        return not order.fixed and order.entries <= _MOST_IN_ALL

    if not is_small(r):
        known.run(r, 0, is_small)
    if r.nodes and not known.done:
        _eliminated_in_turn(r, known, widest, by_dependents)
    if known.choice is None or known.objective >= IMPOSSIBLE:
        return None
    bound = known.objective if known.done else max(known.bound, 0.0)
    return Solution(tuple(known.choice), known.objective, bound, size, 0)


def _eliminated_in_turn(r: Presolved, known: Closing, widest: int, by_dependents: bool) -> None:
    """Eliminate all nodes; where some have to be fixed, a few times, from what was found, with others fixed."""
    cheapest = {n: int(c.argmin()) for n, c in r.nodes.items()}
    start = improve(r, cheapest if known.choice is None else r.nearest(known.choice))
    value, fixed = r.value(start), set[int]()
    for _ in range(_ROUNDS):
        order = _order(r, widest, by_dependents, fixed)
        found, now = _eliminated(r, order, start), order.fixed
        if not now:
            known.offer(r.expand(found))
            known.bound = known.objective
            return
        found = improve(r, found)
        if r.value(found) < value:
            start, value = found, r.value(found)
        elif now <= fixed:
            break  # nothing better, and nothing else to fix
        fixed |= now
    known.offer(r.expand(start))


def _eliminated(r: Presolved, order: _Order, start: Mapping[int, int]) -> dict[int, int]:
    """The best choice with the nodes that are fixed at what ``start`` says."""
    of: dict[int, list[tuple[tuple[int, ...], np.ndarray]]] = {n: [] for n in r.nodes}
    # A table is kept with the first of its nodes to go.
    turn = {n: k for k, (n, _) in enumerate(order.steps)}

    def add(scope: tuple[int, ...], table: np.ndarray) -> None:
        if scope:
            of[min(scope, key=turn.__getitem__)].append((scope, table))

    for n, c in r.nodes.items():
        add((n,), c)
    for (a, b), m in r.edges.items():
        add((a, b), m)
    best: list[np.ndarray | int] = []
    for n, around in order.steps:
        if around is None:
            for scope, table in of.pop(n):
                rest = tuple(a for a in scope if a != n)
                add(rest, np.take(table, start[n], axis=scope.index(n)))
            best.append(start[n])
            continue
        axis = {a: k for k, a in enumerate((*around, n))}
        total = np.zeros([len(r.nodes[a]) for a in axis])
        for scope, table in of.pop(n):
            by_axis = sorted(range(len(scope)), key=lambda d: axis[scope[d]])
            shape = [1] * total.ndim
            for d in by_axis:
                shape[axis[scope[d]]] = table.shape[d]
            total += table.transpose(by_axis).reshape(shape)
        best.append(total.argmin(axis=-1))
        add(around, total.min(axis=-1))
    chosen: dict[int, int] = {}
    for (n, around), found in zip(reversed(order.steps), reversed(best), strict=True):
        chosen[n] = int(found[tuple(chosen[a] for a in around or ())]) if isinstance(found, np.ndarray) else found
    return chosen
