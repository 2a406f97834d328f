"""Placements: what they are, what they cannot be, and exact translation to and from PartitionSpecs."""

import itertools
import math

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import sbp_jax as sbp
from sbp_jax.shardings import from_partition_spec


def place(shape: tuple[int, ...]) -> sbp.Placement:
    return sbp.placement("cpu", np.arange(math.prod(shape)).reshape(shape), axis_names=("a", "b", "c")[: len(shape)])


def test_properties() -> None:
    p = sbp.placement("cpu", ranks=[[0, 1, 2, 3], [4, 5, 6, 7]], axis_names=("dp", "tp"))
    assert (p.type, p.shape, p.size, p.axis_names) == ("cpu", (2, 4), 8, ("dp", "tp"))
    assert p.ranks.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert p.mesh.axis_names == ("dp", "tp") and p.mesh.devices.shape == (2, 4)
    assert sbp.placement.from_mesh(p.mesh) == p
    assert sbp.placement.all("cpu").size == jax.device_count()
    assert sbp.placement("cuda", [0]).type == "gpu"


def test_the_order_given_is_the_order_meant() -> None:
    p = sbp.placement("cpu", [3, 1])
    assert [d.id for d in p.mesh.devices] == [3, 1]


@pytest.mark.parametrize("mesh", [(4,), (2, 4), (2, 2, 2)], ids=str)
def test_every_signature_without_partials_round_trips(mesh: tuple[int, ...]) -> None:
    p = place(mesh)
    parts = [sbp.broadcast, sbp.split(0), sbp.split(1), sbp.split(2)]
    for components in itertools.product(parts, repeat=len(mesh)):
        s = sbp.Signature(components)
        spec = sbp.to_partition_spec(s, p, 3)
        assert from_partition_spec(spec, p.axis_names, 3) == s
        assert sbp.from_sharding(sbp.to_sharding(s, p, 3), 3) == s


def test_jax_cuts_where_the_signature_says() -> None:
    p = place((2, 4))
    x = np.arange(64.0).reshape(16, 4)
    y = jax.device_put(x, sbp.to_sharding("S(0), S(0)", p, 2))
    for shard in y.addressable_shards:
        row = 2 * shard.device.id
        np.testing.assert_array_equal(shard.data, x[row : row + 2])


def test_one_dim_on_two_axes_names_them_outermost_first() -> None:
    assert sbp.to_partition_spec("S(1), S(1)", place((2, 4)), 2) == PartitionSpec(None, ("a", "b"))


def test_what_sbp_cannot_say() -> None:
    p = place((2, 4))
    with pytest.raises(sbp.SignatureError, match="against the order of the mesh axes"):
        sbp.from_sharding(NamedSharding(p.mesh, PartitionSpec(("b", "a"))), 1)


def test_partial_has_no_partition_spec() -> None:
    p = place((2, 4))
    with pytest.raises(sbp.SignatureError, match="partial on b"):
        sbp.to_partition_spec("S(0), P", p, 2)
    spec = sbp.to_partition_spec("S(0), P", p, 2, allow_unreduced=True)
    assert spec.unreduced == {"b"}
    assert from_partition_spec(spec, p.axis_names, 2) == sbp.Signature.parse("S(0), P")
    with pytest.raises(sbp.SignatureError, match="means a sum"):
        sbp.to_partition_spec("S(0), P(max)", p, 2, allow_unreduced=True)


def test_abstract_placements_have_no_devices() -> None:
    p = sbp.placement.abstract((128, 8), axis_names=("dp", "tp"), cluster="h100")
    assert p.size == 1024 and sbp.to_partition_spec("S(0), S(1)", p, 2) == PartitionSpec("dp", "tp")
    with pytest.raises(sbp.PlacementError, match="for planning only"):
        _ = p.mesh


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sbp.placement("cpu", [0, 0, 1]), r"ranks \[0\] are repeated"),
        (lambda: sbp.placement("cpu", [0, -1]), "0 or more"),
        (lambda: sbp.placement("cpu", [[0, 1], [2]]), "regular array"),
        (lambda: sbp.placement("cpu", []), "non-empty"),
        (lambda: sbp.placement("quantum", [0]), "not known; possible: cpu"),
        (lambda: sbp.placement("cpu", [[0, 1]], axis_names=("x", "x")), "different names"),
        (lambda: sbp.placement("cpu", [6, 7, 8]).mesh, r"needs ranks \[8\], but there are only 8 cpu"),
        (lambda: sbp.placement("gpu", [0]).mesh, "no gpu devices here"),
    ],
)
def test_bad_placements(make, message: str) -> None:
    with pytest.raises(sbp.PlacementError, match=message):
        make()
