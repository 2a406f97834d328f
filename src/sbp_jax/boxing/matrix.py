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
from .table import Step, move_cost, moves

# Of a move: its collective, the axes, into how many pieces its source is cut, whether some are gathered.
_Price = tuple[str, tuple[int, ...], int, bool]


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
    prices: dict[_Price, int]
    kinds: tuple[tuple[str, tuple[int, ...]], ...]
    """Of the moves, by ``kind``: the collective and its axes."""
    kind: np.ndarray
    gathered: np.ndarray
    """The dim that a move gathers, and the one that it cuts; -1 where there is none."""
    cut: np.ndarray


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
    prices: dict[_Price, int] = {}
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    edges = sorted(
        (
            k, at[step.dst], prices.setdefault(_price(step, mesh), len(prices)),
            kinds.setdefault((step.kind, step.axes), len(kinds)), _dim(step, step.src), _dim(step, step.dst),
        )
        for k, s in enumerate(signatures)
        for step in moves(s, shape, 1, mesh, cluster, extra)
    )  # fmt: skip
    src, dst, price, kind, gathered, cut = np.array(edges, np.int64).reshape(-1, 6).T
    starts = np.ones(len(edges), bool)
    starts[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    return _Graph(
        signatures, at, cuts, src, dst, price, np.flatnonzero(starts), prices, tuple(kinds), kind, gathered, cut
    )


def _dim(step: Step, side: Signature) -> int:
    """The dim that the axes of a move split on one side of it; -1 where they do not, or only change places."""
    component = side[step.axes[0]]
    return component.dim if isinstance(component, Split) and step.kind != "permute" else -1


def _price(step: Step, mesh: tuple[int, ...]) -> _Price:
    """What a move's cost depends on, besides the tensor's bytes."""
    pieces = math.prod(n for n, c in zip(mesh, step.src, strict=True) if isinstance(c, Split))
    gathers = any(isinstance(step.src[i], Split) for i in step.axes)
    return step.kind, step.axes, pieces, gathers


def _price_seconds(price: _Price, elements: int, itemsize: int, mesh: tuple[int, ...], cluster: Cluster) -> float:
    """Seconds of such a move of a tensor that divides (``table._group_elements``)."""
    kind, axes, pieces, gathers = price
    seen = elements / pieces * (math.prod(mesh[a] for a in axes) if gathers and kind != "permute" else 1)
    return move_cost(kind, axes, seen * itemsize, gathers and kind != "permute", mesh, cluster)[1]


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
    found = _KNOWN.get(key)  # looked up once: another thread may forget it right after
    if found is not None:
        return found
    valid = even[graph.src] & even[graph.dst]
    total = math.prod(shape)
    price = np.array([_price_seconds(p, total, itemsize, mesh, cluster) for p in graph.prices])
    return _remember(key, _shortest(graph, np.where(valid, price[graph.price], np.inf)))


def padded_seconds_matrix(
    states: Sequence[Signature], shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...], cluster: Cluster,
    extra: tuple[Partial, ...],
) -> np.ndarray:  # fmt: skip
    """Seconds between every two of ``states`` where pieces may be padded; none of them may be empty."""
    graph = _graph(len(shape), mesh, extra, cluster)
    key = ("padded", shape, itemsize, mesh, cluster, extra)
    found = _KNOWN.get(key)
    if found is None:
        found = _remember(key, _shortest(graph, _padded(graph, shape, itemsize, mesh, cluster)))
    where = [graph.at[s] for s in states]
    return found[np.ix_(where, where)]


def _padded(
    graph: _Graph, shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...], cluster: Cluster
) -> np.ndarray:
    """Seconds of every move, ``inf`` where it cannot be: ``table._group_elements`` for all of them."""
    n = np.array(shape, np.int64).reshape(1, -1)
    stored = -(-n // graph.cuts)
    possible = ((n // graph.cuts >= 1) | (n == 0)).all(axis=1)
    even = n % graph.cuts == 0
    parts = np.array([math.prod(mesh[a] for a in axes) for _, axes in graph.kinds], np.int64)[graph.kind]
    elements = stored[graph.src].prod(axis=1).astype(float)
    valid = possible[graph.src] & possible[graph.dst]
    joint = np.array([len(axes) > 1 and kind != "permute" for kind, axes in graph.kinds])[graph.kind]
    for dims, other in ((graph.gathered, None), (graph.cut, graph.dst)):
        edges = np.flatnonzero(dims >= 0)
        d, before = dims[edges], stored[graph.src[edges], dims[edges]]
        # What is gathered comes in as many pieces as are stored; what is cut goes out in as many.
        after = before if other is None else stored[other[edges], d]
        elements[edges] *= parts[edges] * after / np.maximum(before, 1)
        lines_up = even[graph.src[edges], d] & even[graph.dst[edges], d]
        valid[edges] &= lines_up | ~joint[edges]
    seconds = np.full(len(elements), np.inf)
    for k, (kind, axes) in enumerate(graph.kinds):
        edges = np.flatnonzero((graph.kind == k) & valid)
        for gathers in (False, True):
            some = edges[(graph.gathered[edges] >= 0) == gathers]
            sizes, where = np.unique(np.rint(elements[some]), return_inverse=True)
            costs = [move_cost(kind, axes, size * itemsize, gathers, mesh, cluster)[1] for size in sizes.tolist()]
            seconds[some] = np.array(costs)[where.ravel()] if costs else 0.0
    return seconds


def _shortest(graph: _Graph, seconds: np.ndarray) -> np.ndarray:
    """The seconds of the cheapest ways, given those of every move."""
    cost = np.minimum.reduceat(seconds, graph.first) if len(seconds) else seconds
    there = np.isfinite(cost)
    src, dst, n = graph.src[graph.first][there], graph.dst[graph.first][there], len(graph.signatures)
    return csgraph.dijkstra(sparse.csr_matrix((cost[there], (src, dst)), shape=(n, n)))


def _remember(key: object, found: np.ndarray) -> np.ndarray:
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[key] = found
    return found
