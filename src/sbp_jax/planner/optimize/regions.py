"""Large-neighbourhood search: the best choices of a region of nodes, all others keeping theirs, region after region.

(Shaw, "Using constraint programming and local search methods to solve vehicle routing problems", CP 1998.) A region is
solved exactly: elimination finds the best of what costs less than what is there (``elimination.py``). Changing one node
at a time ends where a layer as a whole would have to change; a region holds some layers.
"""

import math
from collections.abc import Callable

from ..budget import EQUAL, Budget
from ..costs.cost_graph import CostGraph
from .bounds import Choice, PresolvedMessages, consistent
from .elimination import TooMany, cheapest, prune
from .presolve import Presolved, without_presolve

# Nodes of a region: of the first ones, and the most (160 and 320 were mostly too many, docs/decisions/0016).
FIRST, MOST = 40, 80
# Sweeps of messages on a region before it is tried with more assignments.
_SWEEPS = 15
# The first slack of an elimination as a part of what a region could save at most; it grows by this factor until the
# best is found.
_FIRST_SLACK, _GROW = 1 / 16, 4
# Assignments that an elimination may have at once: before sweeps of messages, after them.
_FEW_ROWS, _MOST_ROWS = 20_000, 200_000
# Work at a node or an edge of all regions together: a few steps of Python.
LOOK_WORK = 300
# Sweeps before regions, or until one raises the bound by less than this part.
_SETTLING_SWEEPS = 40
_SETTLED = 5e-4


def improve_regions(
    r: Presolved, choice: Choice, size: int, gap: float, tried: set[int], budget: Budget,
    takes: Callable[[Choice], bool] = lambda _: True,
) -> tuple[Choice, bool]:  # fmt: skip
    """A choice of a kernel that is at least as good: the best of regions of ``size`` nodes; and whether each node was
    in one without a gain, or the choice is within the gap. ``tried`` are the nodes that were: it is kept from call to
    call. ``takes`` says whether a choice that costs less is taken.

    ``r``'s costs are those that message passing has moved (``PresolvedMessages.move``): what a node or an edge costs
    beyond its least says where a region may gain.
    """
    choice = dict(choice)
    floor, cost = r.floor(), r.value(choice)
    excess = _excess(r, choice, budget)
    while cost - floor > gap * abs(cost):
        seeds = [n for n in excess if n not in tried and excess[n] > EQUAL * abs(cost)]
        if not seeds:
            tried.clear()
            break
        if budget.over:
            return choice, False
        region = around(r, max(seeds, key=lambda n: (excess[n], -n)), size)
        tried |= region
        better = _best_in(r, choice, region, EQUAL * abs(cost), budget)
        if better and takes(choice | better):
            choice |= better
            cost = r.value(choice)
            excess = _excess(r, choice, budget)
            tried.clear()
    return choice, True


def _excess(r: Presolved, choice: Choice, budget: Budget) -> dict[int, float]:
    """By node: what it and its edges cost beyond their least."""
    budget.spend(LOOK_WORK * (len(r.nodes) + len(r.edges)))
    found = {n: float(c[choice[n]] - c.min()) for n, c in r.nodes.items()}
    for (a, b), m in r.edges.items():
        more = float(m[choice[a], choice[b]] - m.min())
        found[a] += more
        found[b] += more
    return found


def around(r: Presolved, seed: int, size: int) -> set[int]:
    """So many nodes around one: next comes the one with the largest part of its neighbours inside."""
    region, front = {seed}, dict.fromkeys(sorted(r.around[seed]), 1)
    while front and len(region) < size:
        n = max(front, key=lambda n: (front[n] / len(r.around[n]), -n))
        del front[n]
        region.add(n)
        for a in r.around[n]:
            if a not in region:
                front[a] = front.get(a, 0) + 1
    return region


def _best_in(r: Presolved, choice: Choice, region: set[int], least_gain: float, budget: Budget) -> Choice | None:
    """The best choices of a region; None where those that it has are, or where that is not found."""
    part = r.freed(region, choice)
    most = part.value({n: choice[n] for n in region}) - least_gain
    if not prune(part, most, budget):  # also what is impossible
        return None
    try:
        found = _within(part, most, _FEW_ROWS, budget)
    except TooMany:
        messages = PresolvedMessages(part)
        for _ in range(_SWEEPS):
            messages.sweep(forwards=True)
            messages.sweep(forwards=False)
        budget.spend(2 * _SWEEPS * messages.work)
        messages.move()
        if not prune(part, most, budget):
            return None
        try:
            found = _within(part, most, _MOST_ROWS, budget)
        except TooMany:
            return None
    return None if found is None else part.expanded(found)


def _within(part: Presolved, most: float, most_rows: int, budget: Budget) -> Choice | None:
    """The best choice of at most a cost; None: there is none."""
    slack = most - part.floor()
    if slack < 0:
        return None
    some = _FIRST_SLACK * slack
    while True:
        found = cheapest(part, min(some, slack), most_rows, budget)
        if found is not None or some >= slack or budget.over:
            return found
        some *= _GROW


def settled(problem: CostGraph, budget: Budget) -> Presolved | None:
    """A problem as a kernel whose costs message passing has moved; None where every choice is impossible."""
    r = without_presolve(problem)
    if not consistent(r):
        return None
    messages, bound = PresolvedMessages(r), -math.inf
    for k in range(_SETTLING_SWEEPS):
        before, bound = bound, messages.sweep(forwards=True)
        messages.sweep(forwards=False)
        budget.spend(2 * messages.work)
        if budget.over or (k % 5 == 4 and bound - before <= _SETTLED * abs(bound)):
            break
    messages.move()
    return r
