"""From one placement to another where their devices belong to several processes.

No process sees both sides, so the parts (``between.parts``) are sent by collectives: in every round each device sends
at most one block and gets at most one, all of one shape. The rounds run in one ``shard_map`` over the devices of both.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

_AXIS = "devices"


@dataclass(frozen=True, slots=True)
class Block:
    """What one device sends another: numbers of the two devices, where it lies in the buffer of each, its shape."""

    src: int
    dst: int
    src_start: tuple[int, ...]
    dst_start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Blocks in rounds, between buffers of ``src_shape`` and ``dst_shape``, one of each on every device."""

    src_shape: tuple[int, ...]
    dst_shape: tuple[int, ...]
    rounds: tuple[tuple[Block, ...], ...]


def exchange_of(src_shape: Sequence[int], dst_shape: Sequence[int], blocks: Sequence[Block]) -> Exchange:
    """The blocks in few rounds, those of like sizes together: a round costs what its largest block does.

    What a device keeps for itself takes no part in the rounds of others: it is a round of its own, the first.
    """
    kept = tuple(b for b in blocks if b.src == b.dst)
    rounds: list[list[Block]] = []
    for block in sorted((b for b in blocks if b.src != b.dst), key=lambda b: (-math.prod(b.shape), b.src, b.dst)):
        free = (r for r in rounds if all(block.src != b.src and block.dst != b.dst for b in r))
        found = next(free, None)
        if found is None:
            rounds.append([block])
        else:
            found.append(block)
    every = [kept, *map(tuple, rounds)] if kept else [*map(tuple, rounds)]
    return Exchange(tuple(src_shape), tuple(dst_shape), tuple(every))


@functools.lru_cache(maxsize=1024)
def exchanging(exchange: Exchange, devices: tuple[Any, ...]) -> Callable[[jax.Array], jax.Array]:
    """A jitted function of the buffers, stacked by device, that gives the buffers of the other side, stacked likewise.

    What no block reaches is 0.
    """
    mesh = Mesh(np.array(devices), (_AXIS,), axis_types=(AxisType.Auto,))
    whole = PartitionSpec(_AXIS)

    def body(stacked: jax.Array) -> jax.Array:
        source, me = stacked[0], lax.axis_index(_AXIS)
        target = jnp.zeros(exchange.dst_shape, stacked.dtype)
        for blocks in exchange.rounds:
            target = _round(source, target, blocks, me, len(devices))
        return target[None]

    mapped = jax.shard_map(body, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    return jax.jit(mapped)


def _round(source: jax.Array, target: jax.Array, blocks: Sequence[Block], me: Any, n: int) -> jax.Array:
    shape = tuple(map(max, zip(*(b.shape for b in blocks), strict=True)))

    def mine(values: Sequence[tuple[int, Sequence[int]]]) -> list[Any]:
        """This device's row of a table; zeros where the device has none."""
        table = np.zeros((n, source.ndim), np.int32)
        for device, row in values:
            table[device] = row
        row = jnp.asarray(table)[me]
        return [row[d] for d in range(source.ndim)]

    # Longer by a block, so that a block of another device's size never slides back from the end.
    sent = lax.dynamic_slice(_longer(source, shape), mine([(b.src, b.src_start) for b in blocks]), shape)
    pairs = [(b.src, b.dst) for b in blocks]
    got = sent if all(a == b for a, b in pairs) else lax.ppermute(sent, _AXIS, pairs)
    start, valid = mine([(b.dst, b.dst_start) for b in blocks]), mine([(b.dst, b.shape) for b in blocks])
    gets = np.zeros(n, bool)
    gets[[b.dst for b in blocks]] = True
    inside = jnp.broadcast_to(jnp.asarray(gets)[me], shape)
    for d, length in enumerate(valid):
        inside &= lax.broadcasted_iota(jnp.int32, shape, d) < length
    padded = _longer(target, shape)
    merged = jnp.where(inside, got, lax.dynamic_slice(padded, start, shape))
    return lax.slice(lax.dynamic_update_slice(padded, merged, start), (0,) * target.ndim, target.shape)


def _longer(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, k, 0) for k in shape])
