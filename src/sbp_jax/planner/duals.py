"""A lower bound and good plans fast: costs moved between nodes and edges until their separate minima add up to most.

Any cost may be moved from a node's choices to its edges and back without changing what any plan costs; the sum of all
separate minima is then a lower bound. Sequential tree-reweighted message passing (TRW-S: Kolmogorov, IEEE TPAMI 28(10),
2006) moves costs node by node, forwards and backwards, so that the bound only grows; between, plans are read off and
improved. With a plan of cost U, a choice whose every plan provably costs more than U can be struck (reduced-cost
fixing): what is left for the 0-1 program is small, often nothing.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .reduce import Reduction

_ROUNDS = 120
_EVERY = 5
_SLOW = 1e-4
_EQUAL = 1e-9


@dataclass(slots=True)
class Bounded:
    """The best choice for a kernel's nodes, its value and the bound (both without the kernel's constant), and by node
    which choices may still be in a better plan."""

    choice: dict[int, int]
    value: float
    bound: float
    open: dict[int, np.ndarray]


def bound_kernel(
    r: Reduction, start: dict[int, int], value_of: Callable[[dict[int, int]], float],
    improve: Callable[[Reduction, dict[int, int]], dict[int, int]], gap: float, deadline: float = math.inf,
) -> Bounded:  # fmt: skip
    """Message passing on a kernel from a first choice, until the gap is closed, little is gained, or time is up."""
    best, value = start, value_of(start)
    m = _Messages(r, value)
    bound = m.bound()
    last = bound
    for k in range(_ROUNDS):
        m.sweep(forwards=True)
        m.sweep(forwards=False)
        bound = max(bound, m.bound())
        if k % _EVERY == 0:
            found = improve(r, m.read())
            cost = value_of(found)
            if cost < value:
                best, value = found, cost
            if value - bound <= max(gap, _EQUAL) * abs(value) or time.monotonic() > deadline:
                break
            if k and bound - last <= _SLOW * abs(value):
                break
            last = bound
    return Bounded(best, value, bound, m.undecided(value))


class _Messages:
    """The kernel's costs, moved about. Entries dearer than the best plan known need not be told apart."""

    def __init__(self, r: Reduction, value: float) -> None:
        most = 2.0 * abs(value) + 1e-12
        self.order = sorted(r.nodes)
        self.node = {n: np.minimum(c, most) for n, c in r.nodes.items()}
        self.edge = {e: np.minimum(c, most) for e, c in r.edges.items()}
        self.before = {n: [a for a in sorted(r.around[n]) if a < n] for n in self.order}
        self.after = {n: [a for a in sorted(r.around[n]) if a > n] for n in self.order}
        self.share = {n: 1.0 / max(1, len(self.before[n]), len(self.after[n])) for n in self.order}

    def view(self, n: int, a: int) -> np.ndarray:
        """The costs between two nodes, rows are ``n``'s choices; written to, they change."""
        return self.edge[n, a] if n < a else self.edge[a, n].T

    def sweep(self, forwards: bool) -> None:
        for n in self.order if forwards else reversed(self.order):
            theta = self.node[n]
            for a in (*self.before[n], *self.after[n]):
                m = self.view(n, a)
                least = m.min(axis=1)
                theta = theta + least
                m -= least[:, None]
            onward = self.after[n] if forwards else self.before[n]
            if onward:
                part = self.share[n] * theta
                for a in onward:
                    m = self.view(n, a)
                    m += part[:, None]
                theta = theta - len(onward) * part
            self.node[n] = theta

    def bound(self) -> float:
        return sum(float(c.min()) for c in self.node.values()) + sum(float(m.min()) for m in self.edge.values())

    def read(self) -> dict[int, int]:
        """A choice for each node in order, beside those before it."""
        found: dict[int, int] = {}
        for n in self.order:
            cost = self.node[n].copy()
            for a in self.before[n]:
                cost += self.view(n, a)[:, found[a]]
            for a in self.after[n]:
                cost += self.view(n, a).min(axis=1)
            found[n] = int(cost.argmin())
        return found

    def undecided(self, value: float) -> dict[int, np.ndarray]:
        """By node the choices that a plan of at most ``value`` may have."""
        total = self.bound()
        found: dict[int, np.ndarray] = {}
        for n in self.order:
            own = self.node[n] - self.node[n].min()
            for a in (*self.before[n], *self.after[n]):
                m = self.view(n, a)
                own = own + (m.min(axis=1) - m.min())
            found[n] = total + own <= value + _EQUAL * abs(value)
        return found
