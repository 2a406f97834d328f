"""Numbers shared out over parts whose sums are as even as can be: multiprocessor scheduling without an order."""

import heapq
from collections.abc import Sequence


def greedy(amounts: Sequence[float], parts: int) -> list[int]:
    """By amount its part: the largest first, each to the part with the least so far (Graham, SIAM J. Appl. Math. 17(2),
    1969: at most 4/3 - 1/(3 parts) of the best)."""
    found = [0] * len(amounts)
    sums = [(0.0, p) for p in range(parts)]
    for k in sorted(range(len(amounts)), key=lambda k: (-amounts[k], k)):
        total, p = heapq.heappop(sums)
        found[k] = p
        heapq.heappush(sums, (total + amounts[k], p))
    return found


def karmarkar_karp(amounts: Sequence[float], parts: int) -> list[int]:
    """By amount its part, by largest differencing (Karmarkar and Karp, "The differencing method of set partitioning",
    UCB/CSD 82/113, 1982).

    Every amount begins as a partition of its own. The two partitions whose sums differ the most become one: the largest
    part of the one with the smallest of the other, and so on.
    """
    if not amounts:
        return []
    heap: list[tuple[float, int, list[tuple[float, tuple[int, ...]]]]] = []
    for k, amount in enumerate(amounts):
        heap.append((-amount if parts > 1 else 0.0, k, [(0.0, ())] * (parts - 1) + [(float(amount), (k,))]))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        (_, _, a), (_, _, b) = heapq.heappop(heap), heapq.heappop(heap)
        both = sorted((x + y, (*xs, *ys)) for (x, xs), (y, ys) in zip(a, reversed(b), strict=True))
        heapq.heappush(heap, (both[0][0] - both[-1][0], number, both))
        number += 1
    found = [0] * len(amounts)
    for p, (_, members) in enumerate(reversed(heap[0][2])):
        for k in members:
            found[k] = p
    return found
