"""Making the kernel smaller by bounds: choices that no optimal plan takes are struck before the 0-1 program is made.

The kernel is a sum of costs of nodes and of pairs of nodes. Moving costs between an edge and its ends changes no
plan's total, but raises what is plainly a lower bound: the sum of every node's and edge's smallest entry. Sequential
tree-reweighted message passing moves them well (TRW-S: Kolmogorov, "Convergent tree-reweighted message passing for
energy minimization", IEEE PAMI 28(10), 2006). With a plan at hand that costs U, a choice whose own bound is more
than U is in no plan better than it, and goes; so does what then follows or loses (``reduce.py``). Nothing here is
approximate: whatever is left holds an optimal plan.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from .problem import IMPOSSIBLE
from .reduce import Reduction, shrink

_SWEEPS = 6
_ROUNDS = 12
# A further round comes only where the last one left at most this part of the pairs, or of the gap.
_WORTH = 0.8
# The 0-1 program of a kernel of fewer pairs of choices is solved at once.
_FEW_PAIRS = 20_000
# Of the best plan's cost: what rounding may do to a bound.
_TOLERANCE = 1e-9

Choice = dict[int, int]
Messages = dict[tuple[int, int], np.ndarray]


def tighten(r: Reduction, improve: Callable[[Reduction, Choice], Choice]) -> None:
    """Strike choices of a kernel, in place, until little is left or bounds rise no more.

    ``improve`` makes a choice of every node better, one node at a time.
    """
    if not _possible(r):
        return
    before = gap_before = gap = np.inf
    for _ in range(_ROUNDS):
        pairs = _pairs(r)
        if pairs < _FEW_PAIRS or (pairs > _WORTH * before and gap > _WORTH * gap_before):
            return
        before, gap_before = pairs, gap
        sweeps = _sweep(r)
        upper = _value(r, improve(r, _read(r, sweeps.given)))
        if upper >= IMPOSSIBLE / 2:
            return
        gap = upper - sweeps.back
        if _strike(r, sweeps, upper):
            shrink(r, strike=False)


def _pairs(r: Reduction) -> int:
    return sum(m.size for m in r.edges.values())


def _possible(r: Reduction) -> bool:
    """Strike choices that cannot be had, or have nothing to go with at a neighbour; False if a node has none left."""
    pending = dict.fromkeys(r.nodes)
    while pending:
        n = next(iter(pending))
        del pending[n]
        keep = r.nodes[n] < IMPOSSIBLE / 2
        for a in r.around[n]:
            keep &= r.matrix(n, a).min(axis=1) < IMPOSSIBLE / 2
        if not keep.any():
            return False
        if not keep.all():
            r.keep_only(n, keep)
            pending.update(dict.fromkeys(r.around[n]))
    return True


@dataclass(slots=True)
class _Sweeps:
    """Messages after several sweeps there and back: ``given[a, b]`` is what the edge gives each choice of ``b``.

    ``total`` is what a node had in all when the last sweep back came by, ``there`` the bound before that sweep,
    ``back`` the one after it; ``part`` of its total a node gave each neighbour of ``earlier``.
    """

    given: dict[tuple[int, int], np.ndarray]
    total: dict[int, np.ndarray]
    part: dict[int, float]
    earlier: dict[int, list[int]]
    there: float = 0.0
    back: float = 0.0


def _sweep(r: Reduction) -> _Sweeps:
    order = list(r.nodes)
    place = {n: k for k, n in enumerate(order)}
    given = {}
    for a, b in r.edges:
        given[a, b], given[b, a] = np.zeros(len(r.nodes[b])), np.zeros(len(r.nodes[a]))
    later = {n: [a for a in r.around[n] if place[a] > place[n]] for n in order}
    earlier = {n: [a for a in r.around[n] if place[a] < place[n]] for n in order}
    part = {n: 1.0 / max(len(later[n]), len(earlier[n]), 1) for n in order}
    s = _Sweeps(given, {}, part, earlier)

    def go(nodes: Iterable[int], ahead: dict[int, list[int]]) -> float:
        bound = 0.0
        for n in nodes:
            s.total[n] = total = _gathered(r, given, n)
            # What a node gives away is counted where it arrives.
            bound += float(total.min()) * (1.0 - len(ahead[n]) * part[n])
            share = part[n] * total
            for a in ahead[n]:
                given[n, a] = (r.matrix(a, n) + (share - given[a, n])).min(axis=1)
        return bound

    for _ in range(_SWEEPS):
        s.there = go(order, later)
        s.back = go(reversed(order), earlier)
    return s


def _gathered(r: Reduction, given: Messages, n: int) -> np.ndarray:
    total = r.nodes[n].copy()
    for a in r.around[n]:
        total += given[a, n]
    return total


def _read(r: Reduction, given: Messages) -> Choice:
    """A choice for every node: the best by what is chosen already, and by the messages of the rest."""
    choice: Choice = {}
    for n in r.nodes:
        total = r.nodes[n].copy()
        for a in r.around[n]:
            total += r.matrix(n, a)[:, choice[a]] if a in choice else given[a, n]
        choice[n] = int(total.argmin())
    return choice


def _value(r: Reduction, choice: Choice) -> float:
    total = sum(float(c[choice[n]]) for n, c in r.nodes.items())
    return total + sum(float(m[choice[a], choice[b]]) for (a, b), m in r.edges.items())


def _strike(r: Reduction, s: _Sweeps, upper: float) -> bool:
    """Put what was moved into the costs; strike what is bounded above ``upper``. Whether any was."""
    for (a, b), m in r.edges.items():
        moved = m - s.given[b, a][:, None] - s.given[a, b]
        if a in s.earlier[b]:
            moved += s.part[b] * s.total[b]
        else:
            moved += s.part[a] * s.total[a][:, None]
        r.edges[a, b] = moved
    most = upper - s.there + _TOLERANCE * abs(upper)
    struck = False
    for n, total in s.total.items():
        r.nodes[n] = total * (1.0 - len(s.earlier[n]) * s.part[n])
        keep = total - total.min() <= most
        if not keep.all():
            r.keep_only(n, keep)
            struck = True
    return struck
