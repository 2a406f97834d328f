"""sbp.visualize: every device's piece, against the pieces that devices really hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import sbp_jax as sbp

WHERE = sbp.placement("cpu", ranks=[[0, 1, 2, 3], [4, 5, 6, 7]], axis_names=("dp", "tp"))


def test_a_global_tensors_pieces_are_its_components() -> None:
    x = sbp.randn(7, 10, placement=WHERE, sbp="S(0), S(1)", seed=0)
    found = sbp.visualize(x)
    whole = x.numpy()
    for piece in found.pieces:
        (a, b), (c, d) = piece.box
        np.testing.assert_array_equal(np.asarray(x.to_local(rank=piece.device)), whole[a:b, c:d])
    assert found.pieces[0].box == ((0, 4), (0, 3)) and found.pieces[7].box == ((4, 7), (8, 10))


def test_a_jax_array() -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))
    x = jax.device_put(jnp.arange(32.0).reshape(4, 8), NamedSharding(mesh, PartitionSpec("b", None)))
    found = sbp.visualize(x)
    held = {s.device.id: s.index for s in x.addressable_shards}
    for piece in found.pieces:
        assert tuple(slice(a, b) for a, b in piece.box) == tuple(
            slice(*s.indices(n)[:2]) for s, n in zip(held[piece.device], x.shape, strict=True)
        )
    assert "0, 4" in str(found) and found.axis_names == ("a", "b")


def test_partial_values_are_marked() -> None:
    found = sbp.visualize("P, S(0)", WHERE, (6,))
    assert [p.term for p in found.pieces] == [0, 0, 0, 0, 1, 1, 1, 1]
    text = str(found)
    assert "+0: 0" in text and "+1: 4" in text and "2 terms" in text and "dim 0: 4:5" in text
    assert "partial" in found._repr_html_() and "term 1" in found._repr_html_()
    assert all(p.term is None for p in sbp.visualize("B, B", WHERE, (6,)).pieces)


def test_the_grid() -> None:
    lines = str(sbp.visualize(("S(1), S(0)", WHERE, (8, 6)))).splitlines()
    assert "dim 1: 0:3" in lines[2] and "dim 1: 3:6" in lines[2]
    row = next(line for line in lines if "2:4" in line)
    assert [c.strip() for c in row.strip("│").split("│")] == ["2:4", "1", "5"]


def test_a_large_mesh_is_cut_short() -> None:
    where = sbp.placement.abstract((128, 8), axis_names=("dp", "tp"))
    found = sbp.visualize("S(0), S(0)", where, (2048, 4))
    assert len(found.pieces) == 1024 and "the first 12 of 1024 rows" in str(found)
    assert len(found._repr_html_()) < 40_000 and "of 128 rows" in found._repr_html_()


def test_scalars_and_many_dimensions() -> None:
    assert "0-7" in str(sbp.visualize("B, B", WHERE, ()))
    assert "also cut along dim 2" in str(
        sbp.visualize("S(0), S(1), S(2)", sbp.placement.abstract((2, 2, 2)), (4, 4, 4))
    )


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(sbp.SignatureError, match=r"visualize takes a global tensor, a jax\.Array, or a signature"):
        sbp.visualize([1, 2])
