"""Where in a stack of layers a cluster is: classes of many clusters, put in one order from their wiring."""

from collections.abc import Sequence

import numpy as np

from .clusters import OpCluster


def layer_numbers(clusters: Sequence[OpCluster], classes: Sequence[int]) -> np.ndarray:
    """By cluster the number of its layer, from 0 at one end of the stack; clusters that are linked with no layer: 0.

    Within a class it follows from the place in the program's order, which the backward pass has the other way round.
    How two classes stand to each other most of the links between them say: so many layers on, or so many in sum. Those
    that most links speak for are heard first (a maximum spanning tree: Kruskal, Proc. AMS 7, 1956).
    """
    of = np.array(classes, np.int64)
    count = np.bincount(of)
    order = np.argsort(of, kind="stable")
    rank = np.empty(len(of), np.int64)
    rank[order] = np.arange(len(of)) - (np.cumsum(count) - count)[of[order]]
    made = {v.id: c.index for c in clusters for v in c.outs}
    links = np.array([(made[v.id], c.index) for c in clusters for v in c.ins], np.int64).reshape(-1, 2)
    links = links[of[links[:, 0]] != of[links[:, 1]]]
    pair, group = np.unique(of[links], axis=0, return_inverse=True)
    source, reader = rank[links].T
    sums, n_sums = _most_common(group.ravel(), source + reader, len(pair))
    steps, n_steps = _most_common(group.ravel(), reader - source, len(pair))
    strength = np.maximum(sums, steps)
    tree: dict[int, list[tuple[int, int, int]]] = {k: [] for k in range(len(count))}
    above = list(range(len(count)))

    def top(k: int) -> int:
        while above[k] != k:
            above[k] = k = above[above[k]]
        return k

    for k in np.lexsort((np.arange(len(pair)), -strength)).tolist():
        a, b = pair[k].tolist()
        if top(a) != top(b):
            above[top(b)] = top(a)
            sign, by = (1, int(n_steps[k])) if steps[k] >= sums[k] else (-1, int(n_sums[k]))
            # The reader's rank from the source's, and back.
            tree[a].append((b, sign, by))
            tree[b].append((a, sign, -by if sign > 0 else by))
    slope, start = np.zeros(len(count), np.int64), np.zeros(len(count), np.int64)
    found = np.zeros(len(of), np.int64)
    for root in sorted(range(len(count)), key=lambda k: (-count[k], k)):
        if slope[root]:
            continue
        slope[root], queue = 1, [root]
        for k in queue:
            for other, sign, by in tree[k]:
                if not slope[other]:
                    # rank[other] = sign * rank[k] + by, and layer = slope * rank + start.
                    slope[other] = slope[k] * sign
                    start[other] = start[k] - slope[other] * by
                    queue.append(other)
        own = np.isin(of, queue)
        layer = slope[of[own]] * rank[own] + start[of[own]]
        found[own] = np.clip(layer - layer[of[own] == root].min(), 0, count[root] - 1)
    return found


def _most_common(group: np.ndarray, number: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """By group how often its most common number is there, and that number, the smallest of several."""
    pairs, times = np.unique(np.stack([group, number], axis=1), axis=0, return_counts=True)
    best = np.lexsort((pairs[:, 1], -times, pairs[:, 0]))
    first = best[np.r_[True, pairs[best][1:, 0] != pairs[best][:-1, 0]]] if len(best) else best
    often, which = np.zeros(n, np.int64), np.zeros(n, np.int64)
    often[pairs[first, 0]], which[pairs[first, 0]] = times[first], pairs[first, 1]
    return often, which


def cut(
    clusters: Sequence[OpCluster], classes: Sequence[int], differ: set[int], is_first: np.ndarray
) -> tuple[list[int], list[tuple[int, bool]]]:
    """Classes of which those that ``differ`` are two, of the clusters that come first and of the others.

    Classes that make what these read are two as well: what one part reads is no cost of the other's. By cluster its
    new class; by new class the old one, and whether it is of the first part.
    """
    made = {v.id: classes[c.index] for c in clusters for v in c.outs}
    split = differ | {made[v.id] for c in clusters if classes[c.index] in differ for v in c.ins}
    numbers: dict[tuple[int, bool], int] = {}
    found = [
        numbers.setdefault((k, bool(first) and k in split), len(numbers))
        for k, first in zip(classes, is_first.tolist(), strict=True)
    ]
    return found, list(numbers)
