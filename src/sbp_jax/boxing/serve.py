"""One value, several signatures wanted: which is boxed from which, at the least cost in all."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from ..cluster import Cluster
from ..signature import Signature
from .routes import cost_matrix

_EXACT = 5


def serve(
    src: Signature, needs: Sequence[Signature], shape: Sequence[int], itemsize: int, mesh: Sequence[int],
    cluster: Cluster,
) -> dict[Signature, Signature]:  # fmt: skip
    """By signature needed, the one it is boxed from: ``src`` or another one needed.

    A value made partial and needed both whole and split, say, is reduced once and then cut. Up to five needs the
    cheapest arborescence is found by trying all; beyond, the nearest need joins first (Prim).
    """
    return dict(_serve(src, tuple(dict.fromkeys(needs)), tuple(shape), itemsize, tuple(mesh), cluster))


@functools.lru_cache(maxsize=16384)
def _serve(
    src: Signature, needs: tuple[Signature, ...], shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...],
    cluster: Cluster,
) -> dict[Signature, Signature]:  # fmt: skip
    wanted = [s for s in needs if s != src]
    states = [src, *wanted]
    seconds, sent = cost_matrix(states, shape, itemsize, mesh, cluster)
    # Bytes break ties between routes of the same time.
    cost = seconds + 1e-18 * np.where(np.isfinite(sent), sent, 0.0)
    parents = _exact(cost) if len(wanted) <= _EXACT else _nearest(cost)
    return {states[i]: states[p] for i, p in parents.items()}


def _exact(cost: np.ndarray) -> dict[int, int]:
    n = len(cost)
    best: tuple[float, dict[int, int]] = (np.inf, dict.fromkeys(range(1, n), 0))
    for choice in itertools.product(range(n), repeat=n - 1):
        total = sum(cost[p, i] for i, p in enumerate(choice, 1))
        if total < best[0] and _reaches_root(choice):
            best = (float(total), dict(enumerate(choice, 1)))
    return best[1]


def _reaches_root(parents: Sequence[int]) -> bool:
    for i in range(1, len(parents) + 1):
        here, hops = i, 0
        while here != 0:
            here, hops = parents[here - 1], hops + 1
            if hops > len(parents):
                return False
    return True


def _nearest(cost: np.ndarray) -> dict[int, int]:
    parents: dict[int, int] = {}
    reached, waiting = [0], set(range(1, len(cost)))
    while waiting:
        p, i = min(((p, i) for p in reached for i in waiting), key=lambda e: cost[e])
        parents[i] = p
        reached.append(i)
        waiting.discard(i)
    return parents
