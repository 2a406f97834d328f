"""Boxing: values survive, HLO does what the route says, on every pair of signatures."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import sbp_jax as sbp
from sbp_jax import boxing
from sbp_jax.cluster import get
from sbp_jax.lower import hlo
from sbp_jax.rules.check import assemble, pieces
from sbp_jax.rules.widen import code_of
from sbp_jax.shardings import to_partition_spec
from sbp_jax.signature import Signature

NAMES = ("a", "b", "c")
KINDS = {"all_gather": "all-gather", "all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter",
         "all_to_all": "all-to-all", "permute": "collective-permute"}  # fmt: skip
COMPONENTS = ("S(0)", "S(1)", "B", "P", "P(max)", "P(min)")


def place(shape: tuple[int, ...]) -> sbp.Placement:
    return sbp.placement("cpu", np.arange(math.prod(shape)).reshape(shape), axis_names=NAMES[: len(shape)])


def redistribute(src: str, dst: str, mesh: tuple[int, ...], shape: tuple[int, ...] = (16, 16)):
    """(route, logical value before and after, compiled text)."""
    p = place(mesh)
    a, b = Signature.parse(src), Signature.parse(dst)
    route = boxing.route(a, b, p, shape)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    stacked = pieces(x, code_of(a), mesh, np.random.default_rng(1))
    n = len(mesh)

    def body(piece):
        y = boxing.apply(route, piece.reshape(piece.shape[n:]), p.axis_names)
        return y.reshape((1,) * n + y.shape)

    spec = PartitionSpec(*p.axis_names)
    f = jax.jit(jax.shard_map(body, mesh=p.mesh, in_specs=spec, out_specs=spec, check_vma=False))
    text = f.lower(stacked).compile().as_text()
    return route, x, assemble(np.asarray(f(stacked)), code_of(b), shape), text


@pytest.mark.parametrize("src", COMPONENTS)
def test_every_single_axis_move(src: str) -> None:
    for dst in COMPONENTS:
        route, before, after, text = redistribute(src, dst, (4,))
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
        found = hlo.count(text or "")
        kinds = [KINDS[k] for k in route.collectives]
        assert sorted(found) == sorted(set(kinds)), (src, dst)
        assert sum(n for n, _ in found.values()) == len(kinds) <= 1
        assert sum(b for _, b in found.values()) == pytest.approx(route.bytes)


PAIRS = [", ".join(pair) for pair in itertools.product(("S(0)", "S(1)", "B", "P"), repeat=2)]


@pytest.mark.parametrize("mesh", [(2, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("src", PAIRS)
def test_every_pair_on_two_axes(src: str, mesh: tuple[int, int]) -> None:
    for dst in PAIRS:
        check_pair(src, dst, mesh)


def check_pair(src: str, dst: str, mesh: tuple[int, int]) -> None:
    """The value survives; the compiled collectives are the route's, by kind, number and bytes."""
    route, before, after, text = redistribute(src, dst, mesh)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-4)
    found = hlo.count(text or "")
    kinds = [KINDS[kind] for kind in route.collectives]
    assert {kind: n for kind, (n, _) in found.items()} == {kind: kinds.count(kind) for kind in kinds}, (src, dst)
    assert sum(b for _, b in found.values()) == pytest.approx(route.bytes), (src, dst)


EVERY = [", ".join(pair) for pair in itertools.product(COMPONENTS, repeat=2)]


@pytest.mark.parametrize("stride", [37, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mesh", [(2, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("src", EVERY)
def test_every_pair_with_extremes(src: str, mesh: tuple[int, int], stride: int) -> None:
    """Maxima and minima too; a stride for every day, all of them in the long run."""
    for dst in EVERY[EVERY.index(src) % stride :: stride]:
        if "(m" in src + dst:
            check_pair(src, dst, mesh)


@pytest.mark.parametrize(
    ("src", "dst", "kinds", "share"),
    [
        ("S(0)", "S(0)", (), 0),
        ("B", "S(1)", (), 0),
        ("B", "P", (), 0),
        ("S(0)", "P", (), 0),
        ("S(0)", "B", ("all_gather",), 3 / 4),
        ("S(0)", "S(1)", ("all_to_all",), 3 / 16),
        ("P", "B", ("all_reduce",), 6 / 4),
        ("P", "S(0)", ("reduce_scatter",), 3 / 4),
        ("P(max)", "B", ("all_reduce",), 6 / 4),
        ("P(max)", "S(0)", ("all_to_all",), 3 / 4),
    ],
)
def test_bytes_of_the_table(src: str, dst: str, kinds: tuple[str, ...], share: float) -> None:
    """Bytes each device sends on one axis of 4, as parts of the tensor's."""
    route = boxing.route(src, dst, place((4,)), (64, 64), "float32")
    assert route.collectives == kinds
    assert route.bytes == pytest.approx(share * 64 * 64 * 4)


def test_one_collective_over_two_axes_where_it_is_cheaper() -> None:
    route = boxing.route("P, P", "B, B", place((2, 4)), (64, 64))
    assert route.collectives == ("all_reduce",)
    assert route.bytes == pytest.approx(2 * 7 / 8 * 64 * 64 * 4)


@pytest.mark.parametrize("dst", ["S(0), S(1), B", "S(0), S(0), S(1)", "S(1), B, S(1)"])
def test_a_piece_of_a_piece_is_cut_at_once(dst: str) -> None:
    """What one cut leaves for the next would be written to memory."""
    route, before, after, _ = redistribute("B, B, B", dst, (2, 2, 2))
    assert len(route.steps) > 1
    np.testing.assert_array_equal(after, before)
    p = place((2, 2, 2))
    cut = jax.shard_map(
        lambda x: boxing.apply(route, x, p.axis_names), mesh=p.mesh, in_specs=PartitionSpec(),
        out_specs=to_partition_spec(route.dst, p, 2), check_vma=False,
    )  # fmt: skip
    assert jax.jit(cut).lower(before).as_text().count("stablehlo.dynamic_slice") == 1


def test_changing_the_outer_of_two_splits_keeps_the_order() -> None:
    _, before, after, _ = redistribute("S(0), S(0)", "B, S(0)", (2, 4))
    np.testing.assert_array_equal(after, before)


def test_a_cycle_on_three_axes_is_one_permute() -> None:
    p = place((2, 2, 2))
    route = boxing.route("S(0), S(1), S(2)", "S(1), S(2), S(0)", p, (8, 8, 8))
    assert route.collectives == ("permute",)
    assert route.bytes == 4 * 4 * 4 * 4
    _, before, after, _ = redistribute("S(0), S(1), S(2)", "S(1), S(2), S(0)", (2, 2, 2), (8, 8, 8))
    np.testing.assert_array_equal(after, before)


def test_a_route_prints_its_steps() -> None:
    text = str(boxing.route("S(0), P", "B, S(0)", place((2, 4)), (1024, 1024)))
    assert "reduce_scatter" in text and "all_gather" in text and "total" in text


def test_abstract_placements_need_no_devices() -> None:
    p = sbp.placement.abstract((128, 8), axis_names=("dp", "tp"), cluster="h100")
    route = boxing.route("S(0), P", "B, B", p, (4096, 4096), "bfloat16")
    assert route.seconds > 0 and route.bytes > 0


def test_a_dimension_shorter_than_the_axis_says_so() -> None:
    with pytest.raises(sbp.SignatureError, match=r"dimension 0 of shape \(3, 8\) into 4 pieces, but it has only 3"):
        boxing.route("S(0)", "B", place((4,)), (3, 8))


def test_what_has_no_terms_cannot_be_partial() -> None:
    with pytest.raises(sbp.SignatureError, match="bool values have no partial terms"):
        boxing.route("P", "B", place((4,)), (4, 8), "bool")
    with pytest.raises(sbp.SignatureError, match="complex64 values have no order"):
        boxing.route("B", "P(max)", place((4,)), (4, 8), "complex64")


def test_uneven_pieces_are_sent_padded() -> None:
    """5 over 2 is 3 and 2: both send 3."""
    assert boxing.route("S(0)", "B", place((2,)), (5, 7)).bytes == 3 * 7 * 4
    assert boxing.route("S(0)", "S(1)", place((2,)), (5, 7)).bytes == 3 * 4 * 4
    assert boxing.route("P", "S(1)", place((2,)), (5, 7)).bytes == 5 * 4 * 4


def test_one_reduction_serves_whole_and_split() -> None:
    b, s, p = (Signature.parse(t) for t in ("B", "S(0)", "P"))
    found = boxing.serve(p, [b, s], (1024, 1024), 4, (4,), get("a100-80"))
    assert sum(source == p for source in found.values()) == 1


def test_costs_agree_with_routes() -> None:
    states = [Signature.parse(t) for t in PAIRS]
    seconds, sent = boxing.cost_matrix(states, (16, 16), 4, (2, 4), get("cpu"))
    for i, j in itertools.product(range(0, 16, 3), range(16)):
        route = boxing.route(states[i], states[j], place((2, 4)), (16, 16))
        assert seconds[i, j] == pytest.approx(route.seconds)
        assert sent[i, j] == pytest.approx(route.bytes)


def test_ones_broadcast_to_partial_on_two_devices() -> None:
    """behaviour.md 5: the first device keeps the value, the other holds zeros."""
    p = place((2,))
    route = boxing.route("B", "P", p, (4, 4))
    f = jax.shard_map(
        lambda x: boxing.apply(route, x, p.axis_names)[None], mesh=p.mesh, in_specs=PartitionSpec(),
        out_specs=PartitionSpec("a"), check_vma=False,
    )  # fmt: skip
    np.testing.assert_array_equal(jax.jit(f)(jnp.ones((4, 4))), np.stack([np.ones((4, 4)), np.zeros((4, 4))]))


def test_rank_times_ones_partial_then_split() -> None:
    """behaviour.md 9: (P,S(0)) -> (S(0),S(0)) of rank * ones: ranks 0-1 hold 2, ranks 2-3 hold 4."""
    p = place((2, 2))
    route = boxing.route("P, S(0)", "S(0), S(0)", p, (8, 4))
    f = jax.shard_map(
        lambda x: boxing.apply(route, x[0, 0], p.axis_names)[None, None], mesh=p.mesh,
        in_specs=PartitionSpec("a", "b"), out_specs=PartitionSpec("a", "b"), check_vma=False,
    )  # fmt: skip
    ranks = np.arange(4, dtype=np.float32).reshape(2, 2, 1, 1) * np.ones((1, 1, 4, 4), np.float32)
    out = np.asarray(jax.jit(f)(ranks))
    assert out.shape == (2, 2, 2, 4)
    np.testing.assert_array_equal(out[0], np.full((2, 2, 4), 2.0))
    np.testing.assert_array_equal(out[1], np.full((2, 2, 4), 4.0))
