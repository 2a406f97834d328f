"""Presolve: a smaller problem with the same optimum, and the way back from its plans.

Every step is exact with memory:

* a choice that has no possible partner at a neighbour goes (arc consistency);
* a node with one choice left is fixed, its bytes become a constant profile;
* a node that follows from a neighbour (for each choice of the neighbour one of its own is possible) is merged into it,
  with its costs, edges and memory tables;
* a node whose choices all hold the same bytes, with at most two neighbours, is minimised out (node elimination: Jia,
  Zaharia and Aiken, arXiv:1802.04924, section 5);
* a choice goes when another is at least as good whatever the neighbours do, and holds no more bytes in any table
  (dead-end elimination: Goldstein, Biophys. J. 66, 1994).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .instance import Instance
from .reductions import MOST_COMPARED, MOST_ENTRIES, best_answers, unbeaten

Interval = tuple[int, int]


class Impossible(Exception):
    """A node has no possible choice left."""


@dataclass(frozen=True, slots=True)
class _Kept:
    node: int
    positions: np.ndarray


@dataclass(frozen=True, slots=True)
class _Follows:
    """The node's choice by those of others (none: a constant)."""

    node: int
    others: tuple[int, ...]
    choice: np.ndarray


@dataclass(slots=True)
class Kernel:
    """What presolve left: costs, neighbours' matrices (both ways), bytes by interval, the constant cost and profile.

    ``neighbours[a][b]`` has ``a``'s choices as rows. Arrays are shared between copies and never written to.
    """

    costs: dict[int, np.ndarray]
    neighbours: dict[int, dict[int, np.ndarray]]
    held: dict[int, dict[Interval, np.ndarray]]
    held_by_pairs: dict[tuple[int, int], dict[Interval, np.ndarray]]
    base_change: np.ndarray
    limit_bytes: float
    constant: float = 0.0
    log: list[_Kept | _Follows] = field(default_factory=list)
    work: int = 0

    def copy(self) -> "Kernel":
        """Another that may be presolved further on its own; plans of it expand to those of the original problem."""
        return Kernel(
            dict(self.costs), {n: dict(x) for n, x in self.neighbours.items()},
            {n: dict(x) for n, x in self.held.items()}, {k: dict(x) for k, x in self.held_by_pairs.items()},
            self.base_change.copy(), self.limit_bytes, self.constant, list(self.log),
        )  # fmt: skip

    @property
    def pairs(self) -> int:
        """How many pairs of choices the edges have."""
        return sum(m.size for n, x in self.neighbours.items() for o, m in x.items() if n < o)

    @property
    def base(self) -> np.ndarray:
        """The bytes at each point that no choice changes."""
        return np.cumsum(self.base_change[:-1])

    def expand(self, choice: Mapping[int, int]) -> dict[int, int]:
        """The choice of every node that the log knows, from the kernel's."""
        found = dict(choice)
        for step in reversed(self.log):
            if isinstance(step, _Kept):
                found[step.node] = int(step.positions[found[step.node]])
            elif step.others:
                found[step.node] = int(step.choice[tuple(found[o] for o in step.others)])
            else:
                found[step.node] = int(step.choice)
        return found

    def keep(self, n: int, mask: np.ndarray) -> None:
        """Leave only some choices of a node."""
        if not mask.any():
            raise Impossible
        self.costs[n] = self.costs[n][mask]
        self.held[n] = {k: u[mask] for k, u in self.held[n].items()}
        for o, m in self.neighbours[n].items():
            self.neighbours[n][o] = kept = m[mask]
            self.neighbours[o][n] = kept.T
            pair = (n, o) if n < o else (o, n)
            if pair in self.held_by_pairs:
                self.held_by_pairs[pair] = {
                    k: u[mask] if n < o else u[:, mask] for k, u in self.held_by_pairs[pair].items()
                }
        self.note_kept(n, np.flatnonzero(mask))

    def note_kept(self, n: int, positions: np.ndarray) -> None:
        """A node's choices are those at ``positions`` of what it had: for the way back."""
        self.log.append(_Kept(n, positions))

    def presolve(self, changed: Sequence[int] | None = None) -> None:
        """Apply every step until none applies, beginning at the nodes that have ``changed`` (all)."""
        _Presolving(self, self.costs if changed is None else changed).run()

    def pair_tables(self, n: int, o: int) -> dict[Interval, np.ndarray]:
        """The bytes held by the choices of two neighbours together, with ``n``'s choices as rows."""
        found = self.held_by_pairs.get((n, o) if n < o else (o, n), {})
        return found if n < o else {k: u.T for k, u in found.items()}


def kernel_of(instance: Instance) -> Kernel:
    """A problem as its own kernel."""
    n = len(instance.costs)
    neighbours: dict[int, dict[int, np.ndarray]] = {i: {} for i in range(n)}
    for (a, b), m in instance.edges.items():
        neighbours[a][b], neighbours[b][a] = m, m.T
    kernel = Kernel(
        dict(enumerate(instance.costs)), neighbours, {i: {} for i in range(n)}, {},
        np.zeros(instance.n_points + 1), instance.limit_bytes,
    )  # fmt: skip
    for t in instance.tables:
        if t.b in (-1, t.a):
            add_bytes(kernel.held[t.a], (t.first, t.end), t.bytes if t.b < 0 else np.diag(t.bytes))
        else:
            pair, of = ((t.a, t.b), t.bytes) if t.a < t.b else ((t.b, t.a), t.bytes.T)
            if pair[1] not in neighbours[pair[0]]:
                neighbours[pair[0]][pair[1]] = zero = np.zeros(of.shape)
                neighbours[pair[1]][pair[0]] = zero.T
            add_bytes(kernel.held_by_pairs.setdefault(pair, {}), (t.first, t.end), of)
    return kernel


def add_bytes(tables: dict[Interval, np.ndarray], key: Interval, held: np.ndarray) -> None:
    """Hold more over an interval."""
    tables[key] = tables[key] + held if key in tables else held


class _Presolving:
    """The steps on a kernel. Cheap ones go first; choices are compared only when nothing else is left to do."""

    def __init__(self, kernel: Kernel, changed: Sequence[int] | dict[int, np.ndarray]) -> None:
        self.k = kernel
        self.nodes: dict[int, None] = dict.fromkeys(changed)
        self.links: dict[tuple[int, int], None] = {}
        self.compared: dict[int, None] = {}
        for n in self.nodes:
            for o in kernel.neighbours[n]:
                self._link(n, o)

    def run(self) -> None:
        k = self.k
        for n in list(self.nodes):
            possible = np.isfinite(k.costs[n])
            if not possible.all():
                self._keep(n, possible)
        while True:
            if self.links:
                n, o = self.links.popitem()[0]  # the last one: taking the first of a dict gets slow
                if n in k.costs and o in k.neighbours[n]:
                    self._look_at_link(n, o)
            elif self.nodes:
                n = self.nodes.popitem()[0]
                if n in k.costs:
                    self._look_at(n)
            elif self.compared:
                n = self.compared.popitem()[0]
                if n in k.costs:
                    self._compare(n)
            else:
                return

    def _link(self, n: int, o: int) -> None:
        self.links[(n, o) if n < o else (o, n)] = None

    def _touch(self, n: int) -> None:
        self.nodes[n] = None
        self.compared[n] = None

    def _keep(self, n: int, mask: np.ndarray) -> None:
        self.k.keep(n, mask)
        self._touch(n)
        for o in self.k.neighbours[n]:
            self._link(n, o)
            self.compared[o] = None

    def _look_at_link(self, n: int, o: int) -> None:
        k = self.k
        m = k.neighbours[n][o]
        possible = np.isfinite(m)
        k.work += m.size
        if not possible.all():
            rows, columns = np.asarray(possible.any(axis=1)), np.asarray(possible.any(axis=0))
            if not rows.all():
                self._keep(n, rows)
            if not columns.all():
                self._keep(o, columns)
            if not (rows.all() and columns.all()):
                return
        if m.shape[0] == 1 or m.shape[1] == 1:  # fixed next
            self._touch(n)
            self._touch(o)
            return
        n_follows, o_follows = bool((possible.sum(axis=0) == 1).all()), bool((possible.sum(axis=1) == 1).all())
        if n_follows and o_follows:  # what has more neighbours stays
            n_follows = len(k.neighbours[n]) <= len(k.neighbours[o])
        if n_follows:
            self._merge(n, o, possible.argmax(axis=0))
        elif o_follows:
            self._merge(o, n, possible.argmax(axis=1))
        elif not m.any() and not k.held_by_pairs.get((n, o) if n < o else (o, n)):
            self._drop(n, o)  # an edge that costs nothing

    def _drop(self, n: int, o: int) -> None:
        k = self.k
        del k.neighbours[n][o], k.neighbours[o][n]
        k.held_by_pairs.pop((n, o) if n < o else (o, n), None)
        self._touch(n)
        self._touch(o)

    def _connect(self, n: int, o: int, m: np.ndarray, held: Mapping[Interval, np.ndarray] | None = None) -> None:
        k = self.k
        if o in k.neighbours[n]:
            m = k.neighbours[n][o] + m
        k.neighbours[n][o], k.neighbours[o][n] = m, m.T
        if held:
            tables = k.held_by_pairs.setdefault((n, o) if n < o else (o, n), {})
            for key, u in held.items():
                add_bytes(tables, key, u if n < o else u.T)
        self._link(n, o)
        self._touch(n)
        self._touch(o)

    def _merge(self, n: int, o: int, follows: np.ndarray) -> None:
        """``n`` follows from ``o``: its costs, edges and bytes become those of ``o``."""
        k = self.k
        at = np.arange(len(follows))
        k.costs[o] = k.costs[o] + k.costs[n][follows] + k.neighbours[o][n][at, follows]
        for key, u in k.pair_tables(o, n).items():
            add_bytes(k.held[o], key, u[at, follows])
        for key, u in k.held[n].items():
            add_bytes(k.held[o], key, u[follows])
        self._drop(n, o)
        for q, m in list(k.neighbours[n].items()):
            held = {key: u[follows] for key, u in k.pair_tables(n, q).items()}
            self._drop(n, q)
            self._connect(o, q, m[follows], held)
            k.work += m.size
        self._remove(n, (o,), follows)

    def _remove(self, n: int, others: tuple[int, ...], choice: np.ndarray) -> None:
        k = self.k
        k.log.append(_Follows(n, others, choice))
        del k.costs[n], k.held[n], k.neighbours[n]

    def _settle(self, n: int) -> None:
        """Bytes that every choice of a node holds become constant."""
        k, left = self.k, {}
        for (first, end), u in k.held[n].items():
            least = float(u.min())
            k.base_change[first] += least
            k.base_change[end] -= least
            if (u > least).any():
                left[first, end] = u - least if least else u
        k.held[n] = left

    def _look_at(self, n: int) -> None:
        k = self.k
        possible = np.isfinite(k.costs[n])
        if not possible.all():
            self._keep(n, possible)
            return
        self._settle(n)
        around = k.neighbours[n]
        if len(k.costs[n]) == 1:
            k.constant += float(k.costs[n][0])
            for o, m in list(around.items()):
                k.costs[o] = k.costs[o] + m[0]
                for key, u in k.pair_tables(n, o).items():
                    add_bytes(k.held[o], key, u[0])
                self._drop(n, o)
            self._remove(n, (), np.zeros((), np.int64))
            return
        if k.held[n] or len(around) > 2 or any(k.pair_tables(n, o) for o in around):
            return
        size = len(k.costs[n])
        for o in around:
            size *= len(k.costs[o])
        if size > MOST_ENTRIES:
            return
        k.work += size
        others = tuple(sorted(around))
        least, best = best_answers(k.costs[n], *(around[o].T for o in others))
        for o in others:
            self._drop(n, o)
        if not others:
            k.constant += float(least)
        elif len(others) == 1:
            (o,) = others
            k.costs[o] = k.costs[o] + least
        else:
            o, q = others
            self._connect(o, q, least)
        self._remove(n, others, best)

    def _compare(self, n: int) -> None:
        """Remove choices that another one beats in cost and in bytes."""
        k = self.k
        cost = k.costs[n]
        size = len(cost) ** 2 * sum(len(k.costs[o]) for o in k.neighbours[n])
        if size > MOST_COMPARED:
            return
        k.work += size
        beaten_by = np.ones((len(cost), len(cost)), bool)
        for u in k.held[n].values():
            beaten_by &= u[:, None] >= u[None, :]
        np.fill_diagonal(beaten_by, False)
        if not beaten_by.any():
            return
        worse = cost[:, None] - cost[None, :]
        for o, m in k.neighbours[n].items():
            known = np.where(np.isfinite(m), m, 0.0)
            difference = known[:, None, :] - known[None, :, :]
            infinite = ~np.isfinite(m)
            difference[np.broadcast_to(infinite[None, :, :], difference.shape)] = -np.inf
            difference[np.broadcast_to(infinite[:, None, :], difference.shape)] = np.inf
            worse += difference.min(axis=2)
            for u in k.pair_tables(n, o).values():
                beaten_by &= (u[:, None, :] >= u[None, :, :]).all(axis=2)
        beaten_by &= worse >= 0
        if beaten_by.any():
            self._keep(n, unbeaten(cost, beaten_by))
