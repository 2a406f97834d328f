"""The seconds of all routes at once: shortest paths between all signatures of a tensor, by compiled code.

What moves there are depends on a tensor's rank and the mesh alone, which of them a tensor can make on what divides;
and of two moves of one kind on the same axes, from pieces of the same size, the costs are equal. So the graph is made
once for a rank and a mesh, and a tensor only fills in the prices, few as they are. ``routes.paths`` finds the same
for one signature at a time, with the steps.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from ..cluster import Cluster
from ..signature import Component, Partial, Signature, Split, broadcast, partial_sum
from .table import Step, moves


@dataclass(frozen=True, slots=True)
class _Graph:
    """Every signature of tensors of one rank, and the moves between them where everything divides.

    ``cuts[s, d]``: into how many pieces signature ``s`` cuts dim ``d``. Moves are sorted by where they start and end;
    ``price`` is the number of each one's kind of cost in ``prices``, ``first`` the first of those with the same ends.
    """

    signatures: tuple[Signature, ...]
    at: dict[Signature, int]
    cuts: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    price: np.ndarray
    first: np.ndarray
    prices: dict[object, int]


@functools.lru_cache(maxsize=256)
def _graph(ndim: int, mesh: tuple[int, ...], extra: tuple[Partial, ...], cluster: Cluster) -> _Graph:
    components: list[Component] = [broadcast, partial_sum, *extra, *(Split(d) for d in range(ndim))]
    signatures = tuple(
        Signature(found) for found in itertools.product(*([broadcast] if n == 1 else components for n in mesh))
    )
    at = {s: k for k, s in enumerate(signatures)}
    cuts = np.ones((len(signatures), ndim), np.int64)
    for k, s in enumerate(signatures):
        for n, c in zip(mesh, s, strict=True):
            if isinstance(c, Split):
                cuts[k, c.dim] *= n
    shape = (math.prod(mesh),) * ndim  # divides whatever the signature
    prices: dict[object, int] = {}
    edges = sorted(
        (k, at[step.dst], prices.setdefault(_price(step, mesh), len(prices)))
        for k, s in enumerate(signatures)
        for step in moves(s, shape, 1, mesh, cluster, extra)
    )
    src, dst, price = np.array(edges, np.int64).reshape(-1, 3).T
    starts = np.ones(len(edges), bool)
    starts[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    return _Graph(signatures, at, cuts, src, dst, price, np.flatnonzero(starts), prices)


def _price(step: Step, mesh: tuple[int, ...]) -> object:
    """What a move's cost depends on, besides the tensor's bytes."""
    pieces = math.prod(n for n, c in zip(mesh, step.src, strict=True) if isinstance(c, Split))
    gathers, cuts, ops = (
        any(isinstance(s[i], kind) for i in step.axes)
        for s, kind in ((step.src, Split), (step.dst, Split), (step.src, Partial))
    )
    return step.kind, step.axes, pieces, gathers, cuts, ops


def seconds_matrix(
    states: Sequence[Signature], shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...], cluster: Cluster,
    extra: tuple[Partial, ...],
) -> np.ndarray:  # fmt: skip
    """Seconds between every two of ``states``, which all divide ``shape`` and are B on axes of one device."""
    where = [_graph(len(shape), mesh, extra, cluster).at[s] for s in states]
    return _all_pairs(shape, itemsize, mesh, cluster, extra)[np.ix_(where, where)]


_KNOWN: dict[object, np.ndarray] = {}
_MOST_KNOWN = 128


def _all_pairs(
    shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...], cluster: Cluster, extra: tuple[Partial, ...]
) -> np.ndarray:
    graph = _graph(len(shape), mesh, extra, cluster)
    even = (np.array(shape, np.int64).reshape(1, -1) % graph.cuts == 0).all(axis=1)
    # Tensors of the same bytes that divide alike move alike.
    key = (even.tobytes(), math.prod(shape) * itemsize, len(shape), mesh, cluster, extra)
    if key in _KNOWN:
        return _KNOWN[key]
    valid = even[graph.src] & even[graph.dst]
    price = np.full(len(graph.prices), np.inf)
    for k in np.flatnonzero(valid):
        if np.isinf(price[graph.price[k]]):
            for step in moves(graph.signatures[graph.src[k]], shape, itemsize, mesh, cluster, extra):
                price[graph.prices[_price(step, mesh)]] = step.seconds
    cost = np.minimum.reduceat(np.where(valid, price[graph.price], np.inf), graph.first) if len(valid) else price[:0]
    there = np.isfinite(cost)
    src, dst, n = graph.src[graph.first][there], graph.dst[graph.first][there], len(even)
    matrix = sparse.csr_matrix((cost[there], (src, dst)), shape=(n, n))
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[key] = csgraph.dijkstra(matrix)
    return _KNOWN[key]
