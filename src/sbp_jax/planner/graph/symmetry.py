"""Repeated layers, found by structure alone: clusters that look alike and are wired alike share one decision.

Colour refinement (Weisfeiler and Leman, 1968) on the graph of clusters: a cluster's colour is what it computes, then
again and again what it computes together with its neighbours' colours. Left to itself the refinement would tell
every layer of a stack from the next by its distance to the ends. So after a few rounds a cluster that would be left
alone, or nearly, where a large group stays together, is kept with that group: the ends of a stack are planned
like its middle. Sharing a decision is a restriction of the program, never a wrong plan.
"""

from collections.abc import Sequence

import numpy as np

from .clusters import OpCluster

# Rounds before stragglers are kept with a group, and in all; a group keeps those who would leave where what stays is so
# many times as large. Set by hand.
_STRICT_ROUNDS = 2
_ROUNDS = 12
_MAJORITY = 2


def classes(clusters: Sequence[OpCluster], free: set[int]) -> list[int]:
    """A class number for each cluster, numbered by first appearance."""
    producer = {v.id: (c.index, k) for c in clusters for k, v in enumerate(c.outs)}
    found = [
        (cluster.index, k, *producer[v.id], clusters[producer[v.id][0]].outs[producer[v.id][1]].shape != ())
        for cluster in clusters
        for k, v in enumerate(cluster.ins)
        if v.id in producer
    ]
    reader, operand, source, result, is_array = np.array(found, np.int64).reshape(-1, 5).T
    forward = is_array.astype(bool)  # what a scalar is used for tells its maker nothing
    port = _mix(operand * 65_537 + result)
    labels: dict[object, int] = {}
    colour = np.array([labels.setdefault(c.label, len(labels)) for c in clusters], np.int64)
    count = len(labels)
    for round_number in range(_ROUNDS):
        before = _gather(len(clusters), reader, _mix(colour[source]) ^ port)
        after = _gather(len(clusters), *_distinct(source[forward], (_mix(colour[reader]) ^ ~port)[forward]))
        with np.errstate(over="ignore"):
            refined = _number(_mix(_mix(_mix(colour) + before) + after))
        if round_number >= _STRICT_ROUNDS:
            refined = _number(_keep_together(colour, refined))
        new_count = int(refined.max(initial=-1)) + 1
        if new_count == count:
            break
        colour, count = refined, new_count
    return colour.tolist()


def _mix(x: np.ndarray) -> np.ndarray:
    """Numbers as 64 scattered bits (the finaliser of SplitMix64: Steele, Lea and Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = (x.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _gather(n: int, at: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """By cluster the sum of its edges' marks, which names their multiset."""
    total = np.zeros(n, np.uint64)
    np.add.at(total, at, _mix(marks))
    return total


def _distinct(at: np.ndarray, marks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every pair once: how many layers read a value does not matter, what kinds of readers do."""
    order = np.lexsort((marks, at))
    at, marks = at[order], marks[order]
    first = np.ones(len(at), bool)
    first[1:] = (at[1:] != at[:-1]) | (marks[1:] != marks[:-1])
    return at[first], marks[first]


def _keep_together(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Stragglers go back to their group's largest part, where that is at least twice as large."""
    sizes = np.bincount(new)
    parts, first = np.unique(new, return_index=True)
    home = np.full(int(old.max()) + 1, -1)
    for b, a in zip(parts.tolist(), old[first].tolist(), strict=True):
        if home[a] < 0 or sizes[b] > sizes[home[a]]:
            home[a] = b
    there = home[old]
    return np.where(sizes[new] * _MAJORITY <= sizes[there], there, new)


def _number(keys: np.ndarray) -> np.ndarray:
    """Equal keys get one number, in the order in which they first appear."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.ravel()]
