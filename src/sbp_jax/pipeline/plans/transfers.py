"""Seconds to send values from one group of devices to another, which may be of another size and shape."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ...cluster import Cluster
from ...pieces import span, splits
from ...placement import Placement
from ...signature import Signature

# What one stage hands to another: shape, bytes of an element, signature there and here.
Handed = tuple[Sequence[int], float, Signature, Signature]


def transfer_seconds(handed: Iterable[Handed], there: Placement, here: Placement, cluster: Cluster) -> float:
    """Seconds in which the devices of ``there`` send values to those of ``here``."""
    sent = np.zeros((there.size, here.size))
    for shape, itemsize, given, taken in handed:
        sent += itemsize * sent_elements(shape, (given, there.shape), (taken, here.shape))
    return exchange_seconds(sent, there.flat_ranks, here.flat_ranks, cluster)


def exchange_seconds(
    sent_bytes: np.ndarray, senders: Sequence[int], receivers: Sequence[int], cluster: Cluster
) -> float:
    """Seconds in which ``senders`` send ``sent_bytes`` (senders, receivers) to ``receivers``, devices by their ranks.

    A device that sends to (receives from) several exchanges with them as in an all-to-all: at the rate of its link, and
    of its links to each. The slowest device of the slowest level of links counts.
    """
    start, end = np.asarray(senders), np.asarray(receivers)
    sent_bytes = np.where(start[:, None] == end[None, :], 0.0, sent_bytes)
    if not sent_bytes.any():
        return 0.0
    level = _levels(start, end, cluster)
    slowest = 0.0
    for at in np.unique(level[sent_bytes > 0]).tolist():
        here = np.where(level == at, sent_bytes, 0.0)
        for of in (here, here.T):
            loads = {(float(row.sum()), int(np.count_nonzero(row))) for row in of if row.any()}
            slowest = max([slowest, *(_exchange(amount, others, at, cluster) for amount, others in loads)])
    return slowest


def neighbour_seconds(
    ranks: Sequence[int], size: int, cluster: Cluster, sent_bytes: Sequence[float] | np.ndarray
) -> np.ndarray:
    """For each number of bytes the seconds in which each device of a group of ``size`` sends so many to one of the next
    group, of a placement with these ranks: for the two neighbours that are furthest apart."""
    groups = np.asarray(ranks)[: len(ranks) // size * size].reshape(-1, size)
    if len(groups) < 2:
        return np.zeros(len(sent_bytes))
    furthest = 0
    for at, level in enumerate(cluster.levels[:-1]):
        units = groups // (level.devices or 1)
        furthest = at + 1 if (units[1:] != units[:-1]).any() else furthest
    return np.array([_exchange(float(b), 1, furthest, cluster) if b else 0.0 for b in sent_bytes])


def sent_elements(
    shape: Sequence[int], given: tuple[Signature, Sequence[int]], taken: tuple[Signature, Sequence[int]]
) -> np.ndarray:
    """(senders, receivers): how many elements of a value each device sends each, where a signature and the shape of a
    mesh say which piece a device has, and which it needs. Of senders with the same piece receivers take turns."""
    have, need = _pieces(shape, *given), _pieces(shape, *taken)
    first, last = (
        np.maximum(have[:, None, :, 0], need[None, :, :, 0]),
        np.minimum(have[:, None, :, 1], need[None, :, :, 1]),
    )
    shared = np.prod(np.maximum(last - first, 0), axis=-1, dtype=float)
    _, kinds = np.unique(have.reshape(len(have), -1), axis=0, return_inverse=True)
    same = kinds[:, None] == kinds[None, :]
    turn, copies = np.tril(same, -1).sum(axis=1), same.sum(axis=1)
    return shared * (np.arange(len(need))[None, :] % copies[:, None] == turn[:, None])


def _exchange(sent_bytes: float, others: int, at: int, cluster: Cluster) -> float:
    """Seconds in which a device sends bytes to so many others over a level of links: a permute, if to one."""
    inside = (cluster.levels[at - 1].devices or 1) if at else 1
    whole = cluster.levels[at].devices
    reached = others if whole is None else min(others, whole // inside - 1)
    return cluster.collective_seconds("all_to_all", sent_bytes, (reached + 1, inside), (0,))


def _levels(senders: np.ndarray, receivers: np.ndarray, cluster: Cluster) -> np.ndarray:
    """(senders, receivers): the innermost level of links that has both."""
    found = np.zeros((len(senders), len(receivers)), int)
    for at, level in enumerate(cluster.levels[:-1]):
        units = level.devices or 1
        found[(senders // units)[:, None] != (receivers // units)[None, :]] = at + 1
    return found


def _pieces(shape: Sequence[int], signature: Signature, mesh: Sequence[int]) -> np.ndarray:
    """(devices, dims, 2): where the piece of each device of a mesh begins and ends."""
    sizes = [splits(signature, mesh, d) for d in range(len(shape))]
    axes = [signature.split_axes(d) for d in range(len(shape))]
    found = np.empty((math.prod(mesh), len(shape), 2), int)
    for device, position in enumerate(np.ndindex(*mesh)):
        for d, n in enumerate(shape):
            start, length = span(n, sizes[d], [position[a] for a in axes[d]])
            found[device, d] = start, start + length
    return found
