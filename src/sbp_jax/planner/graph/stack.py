"""Where in a stack of layers a cluster is: classes of many clusters, put in one order from their wiring."""

from collections.abc import Sequence

import numpy as np

from .clusters import OpCluster


def layer_positions(clusters: Sequence[OpCluster], classes: Sequence[int]) -> np.ndarray:
    """By cluster 0.0 (at one end of the stack) to 1.0 (at the other); nan for what is alone in its class.

    Within a class it is the place in the program's order. The backward pass has that the other way round: a class is
    turned round where what links it with others is nearer then. The links that say most of it are heard first (a
    maximum spanning tree: Kruskal, Proc. AMS 7, 1956).
    """
    of = np.array(classes, np.int64)
    count = np.bincount(of)
    order = np.argsort(of, kind="stable")
    rank = np.empty(len(of), np.int64)
    rank[order] = np.arange(len(of)) - (np.cumsum(count) - count)[of[order]]
    place = np.where(count[of] > 1, rank / np.maximum(count[of] - 1, 1), np.nan)
    made = {v.id: c.index for c in clusters for v in c.outs}
    links = np.array([(made[v.id], c.index) for c in clusters for v in c.ins], np.int64).reshape(-1, 2)
    links = links[(count[of[links]] > 1).all(axis=1) & (of[links[:, 0]] != of[links[:, 1]])]
    source, reader = place[links].T
    # How much nearer the ends of a link are as they are than with one of them turned round.
    nearer = np.abs(source + reader - 1.0) - np.abs(source - reader)
    ends = np.sort(of[links], axis=1)
    key, group = np.unique(ends[:, 0] * len(count) + ends[:, 1], return_inverse=True)
    weight = np.bincount(group.ravel(), nearer, len(key))
    above, turned = list(range(len(count))), [False] * len(count)

    def top(k: int) -> tuple[int, bool]:
        is_turned = False
        while above[k] != k:
            k, is_turned = above[k], is_turned ^ turned[k]
        return k, is_turned

    for k in np.lexsort((key, -np.abs(weight))).tolist():
        (a, a_turned), (b, b_turned) = top(int(key[k]) // len(count)), top(int(key[k]) % len(count))
        if a != b:
            above[b], turned[b] = a, a_turned ^ b_turned ^ bool(weight[k] < 0)
    is_turned = np.array([top(k)[1] for k in range(len(count))], bool)
    return np.where(is_turned[of], 1.0 - place, place)


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
