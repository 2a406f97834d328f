"""Points on a line cut into parts of bounded length, with the least sum of the squared lengths.

The square of a length satisfies the quadrangle inequality, with the bound too (too long a part costs infinity), so that
the best last cut moves right with the end: the best ends of a whole row of the table are found by divide and conquer
(Galil and Park, "Dynamic programming with convexity, concavity and sparsity", Theoretical Computer Science 92, 1992),
in O(points * log(points)) for each part more. Here all subproblems of one depth are one pass over arrays.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_SWEEPS = 100


def least_squares(points: Array, parts: int, bound: float) -> Array:
    """Where to cut: indices into ``points[1:-1]``, at most ``parts - 1``, in order.

    ``points`` increase strictly, from the start of the line to its end; no part may be longer than ``bound``. There
    must be cuts that keep to it.
    """
    last = len(points) - 1
    parts = min(parts, last)
    nearest = np.searchsorted(points, points - bound, "left")
    first, furthest = [last], [0]
    for _ in range(parts):
        first.append(int(nearest[first[-1]]))
        furthest.append(int(np.searchsorted(points, points[furthest[-1]] + bound, "right")) - 1)
    # Row r has the ends of r parts from which the remaining ones reach the last point.
    first.reverse()
    # Zero parts end at the first point, and the first point ends any number of parts: they may be fewer.
    least = np.full(last + 1, np.inf)
    least[0] = 0.0
    chosen: list[tuple[int, Array]] = []
    for r in range(1, parts + 1):
        low = max(1, first[r])
        ends = np.arange(low, furthest[r] + 1)
        starts = _best_starts(points, least, ends, np.maximum(nearest[ends], first[r - 1]), furthest[r - 1])
        lengths = points[ends] - points[starts]
        row = np.full(last + 1, np.inf)
        row[0] = 0.0
        row[ends] = least[starts] + lengths * lengths
        chosen.append((low, starts))
        least = row
    found: list[int] = []
    at = last
    while chosen and at:
        low, starts = chosen.pop()
        at = int(starts[at - low])
        found.append(at)
    return np.array(found[-2::-1], int) - 1


def _best_starts(points: Array, least: Array, ends: Array, lowest: Array, highest: int) -> Array:
    """For each end the start of its last part, from ``lowest`` (for each) to ``highest`` (for all), the first if equal.

    Every second, fourth, ... end is done before those between them, whose starts lie between its neighbours' starts.
    """
    count = len(ends)
    best = np.zeros(count + 1, int)
    step = 1 << (count.bit_length() - 1) if count else 0
    while step:
        here = np.arange(step, count + 1, 2 * step)
        to = ends[here - 1]
        right = here + step
        above = np.where(right <= count, best[np.minimum(right, count)], highest)
        low = np.maximum(lowest[here - 1], best[here - step])
        high = np.minimum(np.minimum(to - 1, highest), above)
        lengths = high - low + 1
        offsets = np.cumsum(lengths) - lengths
        start = np.arange(int(lengths.sum())) - np.repeat(offsets - low, lengths)
        length = np.repeat(points[to], lengths) - points[start]
        value = least[start] + length * length
        smallest = np.minimum.reduceat(value, offsets)
        hits = np.flatnonzero(value == np.repeat(smallest, lengths))
        best[here] = start[hits[np.searchsorted(hits, offsets)]]
        step //= 2
    return best[1:]


def nearest_to_middle(points: Array, cuts: Array, end: float) -> Array:
    """Move each cut to the point nearest to the middle of its neighbours, until none moves or after 100 sweeps.

    ``cuts`` are indices into ``points``; both ends of the line, 0 and ``end``, are not among the points. No move makes
    the sum of squares larger, nor the longer of the two parts beside it.
    """
    cuts = cuts.copy()
    for _ in range(_SWEEPS):
        has_moved = False
        for c in range(len(cuts)):
            left = float(points[cuts[c - 1]]) if c else 0.0
            right = float(points[cuts[c + 1]]) if c + 1 < len(cuts) else end
            middle = (left + right) / 2
            near = int(np.searchsorted(points, middle))
            now = float(points[cuts[c]])
            for k in (near - 1, near):
                if 0 <= k < len(points) and left < points[k] < right and abs(points[k] - middle) < abs(now - middle):
                    cuts[c], now, has_moved = k, float(points[k]), True
        if not has_moved:
            break
    return cuts
