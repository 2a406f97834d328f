"""Which pieces of an array there are, which process writes each, and how pieces are cut into chunks.

A box is the first and last (exclusive) index along each dim. Everything here is computed alike by every process: none
has to ask another.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..signature import Partial, Signature, broadcast
from ..tensor import GlobalTensor
from .leaves import Leaf, dtype_of

Box = tuple[tuple[int, int], ...]
Index = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """An array as pieces that do not overlap: by box the processes that hold it, and the data of those here."""

    holders: dict[Box, list[int]]
    local: Callable[[Box], Any]


def processes_of(x: Any) -> set[int]:
    """The processes whose devices hold a value; this one alone for what is on no device."""
    if isinstance(x, GlobalTensor):
        return {d.process_index for d in x.placement.mesh.devices.flat}
    return {d.process_index for d in x.sharding.device_set} if isinstance(x, jax.Array) else {jax.process_index()}


def pieces_of(leaf: Leaf, x: Any) -> Pieces:
    """The pieces of a leaf's value. A partial value is reduced first, once: all its processes must call this."""
    if isinstance(x, GlobalTensor):
        return _of_tensor(leaf, x)
    if isinstance(x, jax.Array):
        return _of_array(leaf, x)
    whole = box_of_shape(leaf.shape)
    return Pieces({whole: [0]}, lambda _: np.asarray(x))


def _of_tensor(leaf: Leaf, x: GlobalTensor) -> Pieces:
    if any(isinstance(c, Partial) for c in x.sbp):
        x = x.to_global(sbp=Signature(tuple(broadcast if isinstance(c, Partial) else c for c in x.sbp)))
    devices: Any = x.placement.mesh.devices
    ranks, components = x.placement.ranks, dict(zip(_ranks_here(x), x.to_local(), strict=True))
    holders: dict[Box, list[int]] = {}
    here: dict[Box, int] = {}
    for position in x.spec.positions():
        box = (*((s.start, s.stop) for s in x.spec.box(position)), *_words(leaf))
        _hold(holders, box, devices[position].process_index)
        if int(ranks[position]) in components:
            here.setdefault(box, int(ranks[position]))
    return Pieces(holders, lambda box: _bits(leaf, components[here[box]]))


def _ranks_here(x: GlobalTensor) -> list[int]:
    devices: Any = x.placement.mesh.devices
    me = jax.process_index()
    return [int(r) for p, r in np.ndenumerate(x.placement.ranks) if devices[p].process_index == me]


def _of_array(leaf: Leaf, x: jax.Array) -> Pieces:
    data = jax.random.key_data(x) if leaf.prng else x
    holders: dict[Box, list[int]] = {}
    at: dict[Any, Box] = {}
    for device, index in data.sharding.devices_indices_map(data.shape).items():
        at[device] = box_of(index or (), data.shape)
        _hold(holders, at[device], device.process_index)
    here: dict[Box, Any] = {}
    for shard in data.addressable_shards:
        here.setdefault(at[shard.device], shard.data)
    return Pieces(holders, lambda box: here[box])


def _hold(holders: dict[Box, list[int]], box: Box, process: int) -> None:
    there = holders.setdefault(box, [])
    if process not in there:
        there.append(process)


def _words(leaf: Leaf) -> Box:
    return tuple((0, n) for n in leaf.shape[leaf.ndim :])


def _bits(leaf: Leaf, x: Any) -> Any:
    return jax.random.key_data(x) if leaf.prng else x


def writers(sizes: list[dict[Box, int]], holders: list[dict[Box, list[int]]], processes: int) -> list[dict[Box, int]]:
    """Who writes each piece: of the processes that hold it the one with the fewest bytes so far."""
    load = [0] * processes
    found: list[dict[Box, int]] = []
    for bytes_of, there in zip(sizes, holders, strict=True):
        chosen = {box: min(candidates, key=lambda p: (load[p], p)) for box, candidates in there.items()}
        for box, process in chosen.items():
            load[process] += bytes_of[box]
        found.append(chosen)
    return found


def chunks(box: Box, itemsize: int, chunk_bytes: int) -> Iterator[Box]:
    """A box cut into boxes of at most ``chunk_bytes``, by halving the longest dim; none where it is empty."""
    if volume(box) == 0:
        return
    lengths = [b - a for a, b in box]
    while math.prod(lengths) * itemsize > chunk_bytes and max(lengths, default=1) > 1:
        longest = lengths.index(max(lengths))
        lengths[longest] = -(-lengths[longest] // 2)
    grid = [range(a, b, n) for (a, b), n in zip(box, lengths, strict=True)]
    for corner in np.ndindex(*(len(starts) for starts in grid)):
        starts = [steps[k] for steps, k in zip(grid, corner, strict=True)]
        yield tuple((s, min(s + n, b)) for s, n, (_, b) in zip(starts, lengths, box, strict=True))


def nbytes(leaf: Leaf, box: Box) -> int:
    """Bytes of a piece."""
    return volume(box) * dtype_of(leaf.dtype).itemsize


def volume(box: Box) -> int:
    """The number of elements in a box."""
    return math.prod(b - a for a, b in box)


def box_of(index: Index, shape: tuple[int, ...]) -> Box:
    """The box of a tuple of slices, which may leave out trailing dims."""
    found = [(s.start or 0, n if s.stop is None else s.stop) for s, n in zip(index, shape, strict=False)]
    return (*found, *((0, n) for n in shape[len(found) :]))


def box_of_shape(shape: tuple[int, ...]) -> Box:
    """A whole array."""
    return tuple((0, n) for n in shape)


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes share; None for nothing."""
    found = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return None if any(start >= stop for start, stop in found) else found


def within(box: Box, outer: Box) -> Index:
    """The index that takes ``box`` from an array that holds ``outer``: a view, without dims too."""
    return (..., *(slice(a - o, b - o) for (a, b), (o, _) in zip(box, outer, strict=True)))
