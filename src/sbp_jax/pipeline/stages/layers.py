"""The ops of a program, in order, clustered into layers: few bytes between layers, about the same work in each.

Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning", arXiv 2201.12023,
section 5.2, operator clustering. There G(k, r), the largest number of bytes that one of r layers over the first k ops
receives, is the least over i of max(G(i-1, r-1), C(i, k)), where the layer of ops i to k may have at most (1 + delta)
times the mean flops of a layer; among equal ones the most uniform is taken. Here C depends on the cut alone (all values
that are alive across it), so that the least G is found without their table: by bisection over the bytes of the cuts,
each step a greedy walk. What the table is needed for is uniformity: the least sum of squares over all cuts that are not
above this G.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import PlanError
from .squares import least_squares, nearest_to_middle

# Sums of flops are rounded: layers above the bound by less than this part of it are within it.
_ROUNDING = 1e-9
# Points times layers up to which the most uniform cuts are searched exactly: about a second of work.
_EXACT = 20_000_000
_BISECTIONS = 60

Numbers = Sequence[float] | np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Layers:
    """Ops in layers.

    Attributes:
        bounds: where layers begin, with 0 and the number of ops at its ends: layer r has the ops from bounds[r] to
            before bounds[r + 1].
        flops: of each layer.
        crossing_bytes: of each cut, in order: one fewer than there are layers.
        delta: every layer has at most (1 + delta) times total flops / layers asked for. What was asked, or more.
        note: how delta was relaxed; empty where it was not.
    """

    bounds: tuple[int, ...]
    flops: tuple[float, ...]
    crossing_bytes: tuple[float, ...]
    delta: float
    note: str

    @property
    def count(self) -> int:
        """How many layers there are."""
        return len(self.flops)

    @property
    def largest_crossing_bytes(self) -> float:
        """The most bytes that cross a cut; 0 for one layer."""
        return max(self.crossing_bytes, default=0.0)


def cluster_layers(flops: Numbers, crossing_bytes: Numbers, layers: int, *, delta: float = 0.5) -> Layers:
    """Cut a chain of ops into at most so many layers.

    First the largest number of bytes across a cut is minimised, where every layer has at most (1 + delta) times the
    mean flops; this is exact for any number of ops. Then the variance of the layers' flops is, where layers that are
    not used count as empty; this is exact while ops times layers are at most twenty million (200 layers of 100,000 ops;
    of cuts between which no flops lie only the cheapest counts). Above that, the flops are divided into as many windows
    of equal flops as keep to this, the cheapest cut of each is a candidate, and every cut that is found is then moved
    to the best of all places between its neighbours until none moves. Equal cuts: the fewest bytes, then the first.

    Where no cuts keep to delta, it becomes the smallest with which some do, and ``Layers.note`` says so.

    Args:
        flops: of each op, in topological order.
        crossing_bytes: for each op but the last, the bytes of all values that are alive between it and the next.
        layers: at most so many; one layer, without any cut, is the best if delta permits it.
        delta: how much more than the mean a layer may have, as a part of the mean.

    Raises:
        PlanError: no ops, lists whose lengths do not fit, numbers that are negative or not finite, layers below 1.
    """
    work, cost = _checked(flops, crossing_bytes, layers, delta)
    if not work.any():
        note = f"all {len(work)} ops have 0 flops: one layer"
        return Layers((0, len(work)), (0.0,), (), delta, note)
    # In units of the mean flops of a layer.
    reached = np.concatenate(([0.0], np.cumsum(work)))
    reached *= layers / reached[-1]
    cuts = _one_for_each_point(reached, cost)
    points, point_cost = reached[cuts], cost[cuts - 1]
    bound, note = 1.0 + delta, ""
    if _walk(points, layers, bound, reached[-1]) is None:
        bound = _smallest_bound(points, layers, reached[-1])
        note = _relaxed(work, layers, delta, bound - 1.0)
        delta = bound - 1.0
    limit = _smallest_limit(points, point_cost, layers, bound, reached[-1])
    kept = np.flatnonzero(point_cost <= limit)
    found = kept[_most_uniform(points[kept], point_cost[kept], layers, bound, reached[-1])]
    bounds = (0, *(int(k) for k in cuts[found]), len(work))
    sums = tuple(float(work[a:b].sum()) for a, b in itertools.pairwise(bounds))
    return Layers(bounds, sums, tuple(float(c) for c in point_cost[found]), delta, note)


def _checked(
    flops: Numbers, crossing_bytes: Numbers, layers: int, delta: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    work, cost = np.asarray(flops, float), np.asarray(crossing_bytes, float)
    if work.ndim != 1 or not len(work):
        raise PlanError(f"flops has shape {work.shape}: give one number for each op, of at least one op")
    if cost.shape != (len(work) - 1,):
        raise PlanError(
            f"crossing_bytes has shape {cost.shape}, flops has {len(work)} ops: give {len(work) - 1} numbers, "
            "one for each cut between an op and the next"
        )
    for name, numbers in (("flops", work), ("crossing_bytes", cost)):
        wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
        if len(wrong):
            raise PlanError(f"{name}[{wrong[0]}] is {numbers[wrong[0]]:g}: give finite numbers of at least 0")
    if layers < 1:
        raise PlanError(f"layers={layers}: give at least 1")
    if not (np.isfinite(delta) and delta >= 0):
        raise PlanError(f"delta={delta}: give a finite number of at least 0; 0.5 lets a layer be half above the mean")
    return work, cost


def _one_for_each_point(reached: np.ndarray[Any, Any], cost: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The cuts to consider: of those between which no flops lie, the cheapest, then the first; none at the ends."""
    cuts = np.arange(1, len(reached) - 1)
    cuts = cuts[(reached[cuts] > 0) & (reached[cuts] < reached[-1])]
    cuts = cuts[np.lexsort((cuts, cost[cuts - 1], reached[cuts]))]
    is_first = np.ones(len(cuts), bool)
    is_first[1:] = reached[cuts[1:]] != reached[cuts[:-1]]
    return cuts[is_first]


def _walk(points: np.ndarray[Any, Any], layers: int, bound: float, end: float) -> list[int] | None:
    """Cuts that each reach as far as the bound permits; None where so many layers do not reach the end."""
    at, found, before = 0.0, [], -1
    for _ in range(layers):
        limit = at + bound * (1 + _ROUNDING)
        if end <= limit:
            return found
        far = int(np.searchsorted(points, limit, "right")) - 1
        if far == before:
            return None
        at, before = float(points[far]), far
        found.append(far)
    return None


def _smallest_bound(points: np.ndarray[Any, Any], layers: int, end: float) -> float:
    """The smallest of the largest layers' flops that any cuts reach."""
    low, high = 1.0, float(end)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _walk(points, layers, middle, end) is not None else (middle, high)
    walked = _walk(points, layers, high, end)
    at = np.concatenate(([0.0], points[walked if walked is not None else []], [end]))
    return float(np.diff(at).max())


def _smallest_limit(
    points: np.ndarray[Any, Any], cost: np.ndarray[Any, Any], layers: int, bound: float, end: float
) -> float:
    """The least bytes such that cuts of no more than that keep to the bound; 0 where no cut is needed."""
    limits = np.unique(np.append(cost, 0.0))
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if _walk(points[cost <= limits[middle]], layers, bound, end) is None:
            low = middle + 1
        else:
            high = middle
    return float(limits[low])


def _most_uniform(
    points: np.ndarray[Any, Any], cost: np.ndarray[Any, Any], layers: int, bound: float, end: float
) -> np.ndarray[Any, Any]:
    """Of the points, those to cut at for the least sum of squares."""
    # A little more than the walks have, so that what they find is within it whatever is rounded.
    within = bound * (1 + 2 * _ROUNDING)
    tried = np.arange(len(points))
    is_thinned = len(points) * layers > _EXACT
    if is_thinned:
        windows = max(_EXACT // layers, 1)
        window = np.minimum((points / end * windows).astype(int), windows - 1)
        order = np.lexsort((tried, cost, window))
        _, firsts = np.unique(window[order], return_index=True)
        # With those of the greedy walk there is always a solution.
        walked = _walk(points, layers, bound, end) or []
        tried = np.union1d(order[firsts], np.array(walked, int))
    found = tried[least_squares(np.concatenate(([0.0], points[tried], [end])), layers, within)]
    return nearest_to_middle(points, found, end) if is_thinned else found


def _relaxed(work: np.ndarray[Any, Any], layers: int, asked: float, delta: float) -> str:
    """Why delta was relaxed, and to what."""
    mean, largest = work.sum() / layers, int(work.argmax())
    why = f"no {layers} layers are that even"
    if work[largest] > (1 + asked) * mean:
        why = f"op {largest} alone has {work[largest] / mean:.3g} times the mean flops of {layers} layers"
    return f"delta={asked:g} is not possible: {why}; relaxed to {delta:.3g}, the smallest that is"
