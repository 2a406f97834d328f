"""Blocks in rounds between devices: what each device sends and gets, on the devices of one process."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import sbp_jax as sbp
from sbp_jax import boxing
from sbp_jax.boxing import Block, exchange_of, exchanging
from sbp_jax.pieces import piece_box, stored_shape


def stacked(buffers: np.ndarray, devices: Sequence[Any]) -> jax.Array:
    mesh = Mesh(np.array(devices), ("devices",))
    return jax.device_put(buffers, NamedSharding(mesh, PartitionSpec("devices")))


def test_a_device_sends_and_gets_one_block_a_round() -> None:
    pairs = list(itertools.product(range(4), range(4, 8)))
    found = exchange_of((4,), (4,), [Block(a, b, (b - 4,), (a,), (1,)) for a, b in pairs])
    assert len(found.rounds) == 4  # each device sends four: no fewer rounds will do
    for blocks in found.rounds:
        assert len({b.src for b in blocks}) == len(blocks) == len({b.dst for b in blocks})


def test_blocks_of_like_sizes_share_a_round_and_own_ones_go_first() -> None:
    sizes = {(0, 2): 8, (1, 3): 7, (0, 3): 1, (1, 2): 2, (2, 2): 5}
    found = exchange_of((8,), (8,), [Block(a, b, (0,), (0,), (n,)) for (a, b), n in sizes.items()])
    assert [sorted(b.shape[0] for b in r) for r in found.rounds] == [[5], [7, 8], [1, 2]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_a_transposition_of_blocks(dtype: str) -> None:
    blocks = [Block(a, b, (2 * b, 0), (2 * a, 0), (2, 3)) for a in range(4) for b in range(4)]
    run = exchanging(exchange_of((8, 3), (8, 3), blocks), tuple(jax.devices()[:4]))
    given = np.asarray(jnp.arange(4 * 8 * 3).reshape(4, 8, 3).astype(dtype))
    found = run(stacked(given, jax.devices()[:4]))
    wanted = given.reshape(4, 4, 2, 3).swapaxes(0, 1).reshape(4, 8, 3)
    np.testing.assert_array_equal(np.asarray(found), wanted)


def test_blocks_of_different_sizes_at_the_ends_of_their_buffers() -> None:
    blocks = [Block(0, 2, (4,), (0,), (1,)), Block(1, 3, (0,), (0,), (5,)), Block(3, 3, (3,), (5,), (2,))]
    run = exchanging(exchange_of((5,), (7,), blocks), tuple(jax.devices()[:4]))
    given = np.arange(1, 21, dtype=np.float32).reshape(4, 5)
    wanted = np.zeros((4, 7), np.float32)
    wanted[2, 0] = given[0, 4]
    wanted[3] = [*given[1], *given[3, 3:5]]
    np.testing.assert_array_equal(np.asarray(run(stacked(given, jax.devices()[:4]))), wanted)


def test_a_scalar_goes_to_all() -> None:
    blocks = [Block(1, b, (), (), ()) for b in range(3)]
    run = exchanging(exchange_of((), (), blocks), tuple(jax.devices()[:3]))
    np.testing.assert_array_equal(np.asarray(run(stacked(np.array([1.0, 2.0, 3.0]), jax.devices()[:3]))), [2.0, 2, 2])


MESHES = [
    (sbp.placement("cpu", ranks=[[0, 1], [2, 3]]), "S(0), S(1)"),
    (sbp.placement("cpu", ranks=[5, 2, 7]), "S(1)"),
    (sbp.placement("cpu", ranks=[[4, 1], [0, 6]]), "B, S(0)"),
    (sbp.placement("cpu", ranks=[3]), "B"),
    (sbp.placement.all("cpu"), "S(0)"),
]


@pytest.mark.parametrize(("src", "dst"), list(itertools.permutations(MESHES, 2))[::3])
def test_parts_between_placements_arrive_whole(src: tuple, dst: tuple) -> None:
    """As between processes: every device's buffer in one array, padded where pieces are not equal."""
    shape = (13, 9)
    value = np.arange(117, dtype=np.float32).reshape(shape)
    (here, a), (there, b) = [(p, sbp.Signature.parse(s)) for p, s in (src, dst)]
    ranks = sorted({*here.flat_ranks, *there.flat_ranks})
    number = {r: k for k, r in enumerate(ranks)}

    def box(p: sbp.Placement, s: sbp.Signature, position: tuple[int, ...]) -> list[tuple[int, int]]:
        return list(piece_box(shape, s, p.shape, position))

    blocks = []
    for x in boxing.parts(shape, 4, (here, a), (there, b)):
        begin, end = (
            tuple(lo - first for (lo, _), (first, _) in zip(x.box, box(*side), strict=True))
            for side in ((here, a, x.src), (there, b, x.dst))
        )
        sizes = tuple(hi - lo for lo, hi in x.box)
        blocks.append(Block(number[int(here.ranks[x.src])], number[int(there.ranks[x.dst])], begin, end, sizes))
    sent, got = stored_shape(shape, a, here.shape), stored_shape(shape, b, there.shape)
    buffers = np.full((len(ranks), *sent), -1.0, np.float32)
    for position in np.ndindex(here.shape):
        cut = value[tuple(slice(lo, hi) for lo, hi in box(here, a, position))]
        buffers[number[int(here.ranks[position])]][tuple(map(slice, cut.shape))] = cut
    devices = [jax.devices()[r] for r in ranks]
    found = np.asarray(exchanging(exchange_of(sent, got, blocks), tuple(devices))(stacked(buffers, devices)))
    for position in np.ndindex(there.shape):
        wanted = value[tuple(slice(lo, hi) for lo, hi in box(there, b, position))]
        here_is = found[number[int(there.ranks[position])]][tuple(map(slice, wanted.shape))]
        np.testing.assert_array_equal(here_is, wanted)
