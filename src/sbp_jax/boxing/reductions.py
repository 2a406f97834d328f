"""The cheapest program of collectives that sums over several mesh axes: synthesised, and proven by what devices hold.

Xie, Norman, Grewe and Vytiniotis, "Synthesizing Optimal Parallelism Placement and Reduction Strategies on Hierarchical
Systems for Deep Learning" (P2), MLSys 2022, arXiv:2110.10548: a collective has a meaning, by which a program either is
a sum over all devices or is not; of those that are, the cheapest by the cost model is taken.

What a device holds: of each chunk of the tensor, the set of devices whose terms are in it. There are as many chunks as
devices, numbered by positions along the axes as devices are. All conditions are on one axis at a time and say nothing
of how long it is, so programs are looked for with two devices along each axis, and priced with as many as there are.
"""

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..cluster import ROOTED, Cluster
from ..errors import SbpError
from ..signature import Broadcast, Partial
from .routes import Route
from .table import move_cost

_PLAIN = ("all_reduce", "reduce_scatter", "all_gather")
_KINDS = (*_PLAIN, *ROOTED)
# Axes of a sum: with two devices each, 16 devices hold 16 chunks.
_MOST_AXES = 4
# Terms are bits of a number.
_MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Collective:
    """One step of a program: groups along ``axes`` of the mesh, all of them, or those at the first position along
    ``leaders`` alone. ``bytes``: what each device sends."""

    kind: str
    axes: tuple[int, ...]
    leaders: tuple[int, ...] = ()
    bytes: float = 0.0
    seconds: float = 0.0

    def words(self, names: Sequence[str]) -> str:
        """The step with the axes' names."""
        of = f" of the first along {' x '.join(names[a] for a in self.leaders)}" if self.leaders else ""
        return f"{self.kind} along {' x '.join(names[a] for a in self.axes)}{of}"


@dataclass(frozen=True, slots=True)
class Reduction:
    """A program that sums over ``axes`` of a ``mesh``, and the seconds of one all_reduce over all of them."""

    mesh: tuple[int, ...]
    axes: tuple[int, ...]
    steps: tuple[Collective, ...]
    plain_seconds: float

    @property
    def seconds(self) -> float:
        """Predicted seconds in all."""
        return sum(s.seconds for s in self.steps)

    @property
    def has_root(self) -> bool:
        """Whether in some step devices of a group do different things, which no boxing does."""
        return any(s.kind in ROOTED or s.leaders for s in self.steps)

    def words(self, names: Sequence[str]) -> str:
        """The steps in order, with the axes' names."""
        return ", ".join(s.words(names) for s in self.steps)

    def __str__(self) -> str:
        text = self.words([f"axis{a}" for a in range(len(self.mesh))])
        return f"{text}: {self.seconds:.3g} s, one all_reduce {self.plain_seconds:.3g} s"


@functools.lru_cache(maxsize=4096)
def reduction(
    moved_bytes: float, mesh: tuple[int, ...], axes: tuple[int, ...], cluster: Cluster, rooted: bool = True
) -> Reduction:
    """The cheapest program that leaves on every device the sum of ``moved_bytes`` from each along ``axes``.

    ``rooted``: with ``reduce``, ``broadcast`` and steps of some groups only. Raises ``SbpError`` for no axis of more
    than one device, and for more than four.
    """
    real = tuple(a for a in sorted(axes) if mesh[a] > 1)
    if not 1 <= len(real) <= _MOST_AXES:
        raise SbpError(
            f"a sum over axes {tuple(axes)} of mesh {'x'.join(map(str, mesh))}: programs are for 1 to {_MOST_AXES} "
            f"axes of more than one device, and there are {len(real)}. Take neighbouring axes as one"
        )
    small = (2,) * len(real)
    steps = tuple(_instructions(len(real), rooted))
    sent, plain = _price("all_reduce", real, 1.0, moved_bytes, mesh, cluster)
    known = (
        reduction(moved_bytes, mesh, real, cluster, rooted=False) if rooted
        else Reduction(mesh, real, (Collective("all_reduce", real, (), sent, plain),), plain)
    )  # fmt: skip
    order = itertools.count()
    start, goal = _start(small), _goal(small)
    best: dict[bytes, tuple[float, int]] = {start.tobytes(): (0.0, 0)}
    queue: list[tuple[float, int, int, np.ndarray, tuple[Collective, ...]]] = [(0.0, 0, next(order), start, ())]
    while queue:
        seconds, _, _, here, program = heapq.heappop(queue)
        if (seconds, len(program)) > best[here.tobytes()]:
            continue
        if (here == goal).all():
            return Reduction(mesh, real, program, plain)
        for kind, along, leaders in steps:
            after = after_step(here, kind, along, leaders)
            if after is None:
                continue
            part = _part(after if kind == "all_gather" else here, leaders, [mesh[a] for a in real])
            group = tuple(real[a] for a in along)
            sent, more = _price(kind, group, part, moved_bytes, mesh, cluster)
            key, cost = after.tobytes(), (seconds + more, len(program) + 1)
            if cost[0] < known.seconds and (key not in best or cost < best[key]):
                best[key] = cost
                step = Collective(kind, group, tuple(real[a] for a in leaders), sent, more)
                heapq.heappush(queue, (*cost, next(order), after, (*program, step)))
    return known


def is_sum(steps: Sequence[Collective], mesh: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether a program leaves the whole sum over ``axes`` on every device. Of up to 64 devices.

    Every step's condition is checked: whoever reduces holds the same chunks, of terms that have not met yet; whoever
    gathers holds different ones; whoever is broadcast to loses nothing.
    """
    sizes = tuple(mesh[a] for a in axes)
    if math.prod(sizes) > _MOST_DEVICES:
        raise SbpError(f"{'x'.join(map(str, sizes))} devices: what is held is followed for up to {_MOST_DEVICES}")
    at = {a: k for k, a in enumerate(axes)}
    state: np.ndarray | None = _start(sizes)
    for s in steps:
        state = after_step(state, s.kind, tuple(at[a] for a in s.axes), tuple(at[a] for a in s.leaders))
        if state is None:
            return False
    return bool((state == _goal(sizes)).all())


def of_route(route: Route) -> tuple[Collective, ...] | None:
    """A route from partial sums to whole values as a program; None for another, or one with other steps."""
    changed = [k for k, (a, b) in enumerate(zip(route.src, route.dst, strict=True)) if a != b]
    is_reduced = all(isinstance(route.src[k], Partial) and isinstance(route.dst[k], Broadcast) for k in changed)
    if not is_reduced or any(s.kind not in _PLAIN for s in route.steps):
        return None
    return tuple(Collective(s.kind, s.axes, (), s.bytes, s.seconds) for s in route.steps)


def after_step(state: np.ndarray, kind: str, along: Sequence[int], leaders: Sequence[int] = ()) -> np.ndarray | None:
    """What devices hold after a step; None where its condition is not met, or it changes nothing.

    ``state``: by position of the device, then of the chunk, the terms in it as bits of a number; 0: not held.
    """
    n = state.ndim // 2
    rest = [a for a in range(n) if a not in along]
    some = tuple(slice(0, 1) if a in leaders else slice(None) for a in range(n))
    order = (*along, *rest, *(n + a for a in along), *(n + a for a in rest))
    moved = state[some].transpose(order)
    p = math.prod(moved.shape[: len(along)])
    groups = moved.reshape(p, -1, p, moved[(0,) * n].size // p)
    made = _by_groups(groups, kind)
    if made is None or (made == groups).all():
        return None
    after = state.copy()
    after[some] = made.reshape(moved.shape).transpose(np.argsort(order))
    return after


def _by_groups(groups: np.ndarray, kind: str) -> np.ndarray | None:
    """The same for groups: by device of the group, group, chunk along the group's axes, chunk along the others."""
    held = groups != 0
    p = len(groups)
    if kind == "broadcast":
        is_less = ((groups | groups[:1]) == groups[:1]).all()
        return np.repeat(groups[:1], p, axis=0) if is_less and held[0].any(axis=(1, 2)).all() else None
    if not held.any(axis=(2, 3)).all():
        return None
    total = np.bitwise_or.reduce(groups, axis=0)
    if kind == "all_gather":
        return np.repeat(total[None], p, axis=0) if (held.sum(axis=0) <= 1).all() else None
    if not (held == held[:1]).all() or not _disjoint(groups):
        return None
    if kind == "all_reduce":
        return np.repeat(total[None], p, axis=0)
    made = np.zeros_like(groups)
    if kind == "reduce":
        made[0] = total
        return made
    if not (held == held[:, :, :1]).all():  # cut already along these axes
        return None
    for k in range(p):
        made[k, :, k] = total[:, k]
    return made


def _disjoint(groups: np.ndarray) -> bool:
    met = np.zeros_like(groups[0])
    for terms in groups:
        if (met & terms).any():
            return False
        met |= terms
    return True


def _start(sizes: Sequence[int]) -> np.ndarray:
    """Every device holds its own term of every chunk."""
    n = math.prod(sizes)
    own = (np.uint64(1) << np.arange(n, dtype=np.uint64)).reshape(*sizes, *(1 for _ in sizes))
    return np.ascontiguousarray(np.broadcast_to(own, (*sizes, *sizes)))


def _goal(sizes: Sequence[int]) -> np.ndarray:
    """Every device holds all terms of every chunk."""
    return np.full((*sizes, *sizes), np.uint64((1 << math.prod(sizes)) - 1))


def _instructions(n: int, rooted: bool) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Every step over ``n`` axes: groups along some of them; all groups, or along the axes inside those the first
    alone (the paper's forms "parallel" and "master")."""
    for size in range(1, n + 1):
        for along in itertools.combinations(range(n), size):
            inside = tuple(range(along[-1] + 1, n))
            for leaders in ((), inside) if rooted and inside else ((),):
                for kind in _KINDS if rooted else _PLAIN:
                    yield kind, along, leaders


def _part(state: np.ndarray, leaders: Sequence[int], sizes: Sequence[int]) -> float:
    """The part of the tensor that a device which takes part holds: 1 of the pieces along each axis that cuts it."""
    n = len(sizes)
    some = tuple(slice(0, 1) if a in leaders else slice(None) for a in range(n))
    held = (state[some] != 0).reshape(-1, *state.shape[n:])
    held = held[int(held.reshape(len(held), -1).sum(axis=1).argmax())]
    cut = [size for a, size in enumerate(sizes) if not held.all(axis=a).any()]
    return 1.0 / math.prod(cut)


def _price(
    kind: str, group: tuple[int, ...], part: float, moved_bytes: float, mesh: tuple[int, ...], cluster: Cluster
) -> tuple[float, float]:
    return move_cost(kind, group, part * moved_bytes, kind == "all_gather", mesh, cluster)
