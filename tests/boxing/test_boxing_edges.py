"""Boxing where it is easily wrong: reductions of two kinds, axes of one device, joint moves, dtypes."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import sbp_jax as sbp
from sbp_jax import boxing
from sbp_jax.boxing.table import moves
from sbp_jax.cluster import get
from sbp_jax.lower import hlo
from sbp_jax.rules.check import assemble, pieces
from sbp_jax.rules.widen import code_of
from sbp_jax.signature import Partial, Signature, parse_component

NAMES = ("a", "b", "c")


def place(shape: tuple[int, ...]) -> sbp.Placement:
    return sbp.placement("cpu", np.arange(math.prod(shape)).reshape(shape), axis_names=NAMES[: len(shape)])


def redistribute(src: str, dst: str, mesh: tuple[int, ...], x: np.ndarray):
    """(route, logical value after, compiled text)."""
    p, n = place(mesh), len(mesh)
    a, b = Signature.parse(src), Signature.parse(dst)
    route = boxing.route(a, b, p, x.shape, x.dtype)
    stacked = pieces(x, code_of(a), mesh, np.random.default_rng(1))

    def body(piece):
        y = boxing.apply(route, piece.reshape(piece.shape[n:]), p.axis_names)
        return y.reshape((1,) * n + y.shape)

    spec = PartitionSpec(*p.axis_names)
    f = jax.jit(jax.shard_map(body, mesh=p.mesh, in_specs=spec, out_specs=spec, check_vma=False))
    compiled = f.lower(stacked).compile()
    return route, assemble(np.asarray(compiled(stacked)), code_of(b), x.shape), compiled.as_text() or ""


ENDS = ("B, B", "S(0), S(1)", "P, P", "P(max), P(max)", "B, P(max)", "P, B", "P(max), P", "P, P(max)")


@pytest.mark.parametrize("dtype", [np.float32, np.int32], ids=["float32", "int32"])
@pytest.mark.parametrize("mixed", ["P, P(max)", "P(max), P", "P(max), P(min)"])
def test_reductions_of_two_kinds_are_done_innermost_first(mixed: str, dtype: type) -> None:
    """The sum of maxima is not the maximum of sums."""
    x = np.random.default_rng(0).integers(-20, 20, (8, 8)).astype(dtype)
    for end in ENDS:
        for src, dst in ((mixed, end), (end, mixed)):
            route, after, text = redistribute(src, dst, (2, 4), x)
            np.testing.assert_allclose(after, x, rtol=1e-5, atol=1e-4, err_msg=f"({src}) -> ({dst})")
            assert sum(n for n, _ in hlo.count(text).values()) == len(route.collectives), (src, dst)


@pytest.mark.parametrize("mesh", [(1, 8), (8, 1)], ids=str)
@pytest.mark.parametrize("src", ["S(0)", "B", "P", "P(max)"])
def test_on_an_axis_of_one_device_all_components_are_the_same(src: str, mesh: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    for dst, other in itertools.product(("S(1)", "B", "P", "P(min)"), ("B", "S(0)")):
        start = f"{src}, B" if mesh[0] == 1 else f"B, {src}"
        end = f"{dst}, {other}" if mesh[0] == 1 else f"{other}, {dst}"
        route, after, text = redistribute(start, end, mesh, x)
        np.testing.assert_array_equal(after, x)
        assert route.collectives == () and not hlo.count(text)
        states = [Signature.parse(start), Signature.parse(end)]
        seconds, sent = boxing.cost_matrix(states, x.shape, 4, mesh, get("cpu"))
        assert seconds[0, 1] == pytest.approx(route.seconds) and sent[0, 1] == 0
        assert [s.src for s in route.steps[1:]] == [s.dst for s in route.steps[:-1]]


@pytest.mark.parametrize(
    ("src", "dst", "kind"),
    [
        ("S(0), B, S(0)", "B, B, B", "all_gather"),
        ("S(0), S(0), S(0)", "B, B, B", "all_gather"),
        ("P, B, P", "S(0), B, S(0)", "reduce_scatter"),
        ("P, S(1), P", "S(0), S(1), S(0)", "reduce_scatter"),
        ("P(max), S(1), P(max)", "B, S(1), B", "all_reduce"),
        ("P(max), S(1), P(max)", "S(0), S(1), S(0)", "all_to_all"),
        ("S(0), B, S(0)", "S(1), B, S(1)", "all_to_all"),
        ("B, S(1), S(1)", "B, S(0), S(0)", "all_to_all"),
        ("S(0), S(1), S(1)", "S(0), S(0), S(0)", "all_to_all"),
        ("S(1), S(1), S(1)", "S(0), S(0), S(0)", "all_to_all"),
    ],
)
def test_one_collective_over_axes_keeps_the_order(src: str, dst: str, kind: str) -> None:
    """Also over axes that do not lie side by side. The one step is run, whether or not it is the cheapest."""
    a, b, mesh, p = Signature.parse(src), Signature.parse(dst), (2, 2, 2), place((2, 2, 2))
    x = np.random.default_rng(0).integers(-9, 9, (8, 8)).astype(np.float32)
    extra = [c for c in a if isinstance(c, Partial)]
    step = next(s for s in moves(a, x.shape, 4, mesh, get("h100"), extra) if s.dst == b)
    assert step.kind == kind and len(step.axes) > 1

    def body(piece):
        y = boxing.execute([step], piece.reshape(piece.shape[3:]), p.axis_names, x.shape)
        return y.reshape((1, 1, 1, *y.shape))

    spec = PartitionSpec(*p.axis_names)
    f = jax.jit(jax.shard_map(body, mesh=p.mesh, in_specs=spec, out_specs=spec, check_vma=False))
    stacked = pieces(x, code_of(a), mesh, np.random.default_rng(1))
    np.testing.assert_allclose(assemble(np.asarray(f(stacked)), code_of(b), x.shape), x, atol=1e-5)
    found = hlo.count(f.lower(stacked).compile().as_text() or "")
    assert found == {kind.replace("_", "-"): (1, pytest.approx(step.bytes))}


def test_one_exchange_over_two_axes() -> None:
    """Tokens to experts and back. Axis by axis it takes three, as the inner axis must make way for the outer one."""
    x = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
    for src, dst in itertools.permutations(("S(0), S(0)", "S(1), S(1)")):
        route, after, text = redistribute(src, dst, (2, 4), x)
        np.testing.assert_array_equal(after, x)
        assert route.collectives == ("all_to_all",) and route.bytes == pytest.approx(7 / 8 * x.nbytes / 8)
        assert hlo.count(text) == {"all-to-all": (1, pytest.approx(route.bytes))}


def test_what_is_exchanged_may_be_a_sum_over_copies_of_a_transposed_array() -> None:
    """XLA for CPUs simplifies the sum, changes the layout of half of what is exchanged, and refuses the program."""
    p = place((2,))
    route = boxing.route(Signature.parse("S(2)"), Signature.parse("S(1)"), p, (8, 4, 4), np.float32)
    assert route.collectives == ("all_to_all",)

    def summed(piece):
        copies = lax.broadcast_in_dim(lax.transpose(piece, (2, 1, 0)), (8, 4, 2, 4), (0, 1, 2))
        return jnp.cos(copies).sum(-1)

    def body(piece):
        return boxing.apply(route, summed(piece), p.axis_names)

    f = jax.jit(jax.shard_map(body, mesh=p.mesh, in_specs=PartitionSpec("a"), out_specs=PartitionSpec(None, "a")))
    x = np.random.default_rng(0).normal(size=(4, 4, 8)).astype(np.float32)
    np.testing.assert_allclose(f(x), 4 * np.cos(x.transpose(2, 1, 0)), rtol=1e-5)


def test_one_exchange_does_not_cross_a_split_within() -> None:
    """The innermost axis splits dim 1 too: cut by the outer axes together, pieces would come out in another order."""
    a, b = (Signature.parse(t) for t in ("S(0), S(0), S(1)", "S(1), S(1), S(1)"))
    assert all(s.dst != b for s in moves(a, (8, 8), 4, (2, 2, 2), get("h100")))
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    np.testing.assert_array_equal(redistribute(str(a), str(b), (2, 2, 2), x)[1], x)


@pytest.mark.parametrize("name", ["cpu", "h100", "a100-80"])
def test_of_routes_that_cost_the_same_the_one_with_fewer_steps(name: str) -> None:
    """A collective over two axes sends what one after the other do, where all links are alike."""
    for src, dst in (("P, P", "B, B"), ("S(0), S(0)", "B, B"), ("P, P", "S(0), S(0)")):
        where = sbp.placement.abstract((2, 4), axis_names=("a", "b"), cluster=name)
        assert len(boxing.route(src, dst, where, (1024, 1024)).steps) == 1


def test_every_state_on_the_way_divides() -> None:
    """Dim 1 of 2 cannot be cut by 4: no route may pass S(1) on the inner axis."""
    for src, dst in itertools.permutations(("S(0), S(0)", "B, S(0)", "P, S(0)", "S(1), S(0)"), 2):
        route = boxing.route(src, dst, place((2, 4)), (8, 2))
        assert all(s.dst[1] != parse_component("S(1)") for s in route.steps)
        x = np.random.default_rng(0).integers(-9, 9, (8, 2)).astype(np.float32)
        np.testing.assert_allclose(redistribute(src, dst, (2, 4), x)[1], x, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.bool_, jnp.uint8], ids=str)
@pytest.mark.parametrize("way", [("S(0)", "B"), ("S(0)", "S(1)"), ("B", "S(1)")], ids=str)
def test_other_dtypes_move_too(way: tuple[str, str], dtype: type) -> None:
    x = (np.arange(64).reshape(8, 8) % 3 == 1).astype(dtype)
    _, after, _ = redistribute(*way, (4,), x)
    assert after.dtype == x.dtype
    np.testing.assert_array_equal(after, x)


@pytest.mark.parametrize("kind", ["bool", "key<fry>", "key<rbg>"])
def test_what_has_no_sum_is_moved_by_an_all_reduce_all_the_same(kind: str) -> None:
    """Pieces put into zeros and added: on an H100 that is the quickest way to (B, B) for what is small."""
    p = sbp.placement("cpu", np.arange(6).reshape(2, 3))
    if kind == "bool":
        x = jnp.arange(48).reshape(8, 3, 2) % 3 == 1
    else:
        x = jax.random.split(jax.random.key(0, impl={"key<fry>": None, "key<rbg>": "rbg"}[kind]), (8, 3, 2))
    config = sbp.AutoParallelConfig(cluster="h100")
    move = sbp.auto_parallel(lambda v: v, placement=p, config=config, in_sbp=("S(2), S(1)",), out_sbp="B, B")
    (boxed,) = (b for b in move.plan(x).boxing_list)
    assert [m.kind for m in boxed.moves] == ["to_partial", "to_partial", "all_reduce"]
    after = move(x)
    assert after.dtype == x.dtype
    moved, given = (after, x) if kind == "bool" else map(jax.random.key_data, (after, x))
    np.testing.assert_array_equal(moved, given)
    assert move.plan(x).verify().exact


@pytest.mark.parametrize("op", ["P(max)", "P(min)"])
@pytest.mark.parametrize("dtype", ["bool", "int32", "bfloat16"])
def test_the_identity_of_a_reduction_loses(op: str, dtype: str) -> None:
    """B -> P(op) -> B gives the value back, also where all of it is negative."""
    p = place((4,))
    x = np.full((8, 4), dtype == "bool" or -3).astype(jnp.dtype(dtype))
    there, back = (boxing.route(*way, p, x.shape, dtype) for way in (("B", op), (op, "B")))
    f = jax.shard_map(
        lambda v: boxing.apply(back, boxing.apply(there, v, p.axis_names), p.axis_names), mesh=p.mesh,
        in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False,
    )  # fmt: skip
    np.testing.assert_array_equal(jax.jit(f)(x), x)


@pytest.mark.parametrize("dtype", ["bfloat16", jnp.bfloat16, jnp.dtype("bfloat16")], ids=repr)
def test_a_dtype_is_given_by_name_or_as_itself(dtype: object) -> None:
    route = boxing.route("S(0)", "B", place((4,)), (16, 16), dtype)
    assert route.dtype == "bfloat16" and route.bytes == pytest.approx(3 / 4 * 16 * 16 * 2)


def test_a_dtype_that_is_none() -> None:
    with pytest.raises(sbp.SignatureError, match="'flot32' is not known"):
        boxing.route("S(0)", "B", place((4,)), (16, 16), "flot32")


def test_pieces_put_into_zeros_are_a_partial_value() -> None:
    """behaviour.md 6: ones(4,4) on each of two ranks as S(0), to P: locals [1;0] and [0;1]."""
    p = place((2,))
    route = boxing.route("S(0)", "P", p, (8, 4))
    f = jax.shard_map(
        lambda x: boxing.apply(route, x, p.axis_names)[None], mesh=p.mesh, in_specs=PartitionSpec("a"),
        out_specs=PartitionSpec("a"), check_vma=False,
    )  # fmt: skip
    one, zero = np.ones((4, 4)), np.zeros((4, 4))
    expected = np.stack([np.concatenate([one, zero]), np.concatenate([zero, one])])
    np.testing.assert_array_equal(jax.jit(f)(jnp.ones((8, 4))), expected)


def test_ones_split_and_partial_make_twos() -> None:
    """behaviour.md 8: ones(4,4) local on 2x2 as (S(0),P) -> (B,B): (8,4) of 2."""
    p = place((2, 2))
    route = boxing.route("S(0), P", "B, B", p, (8, 4))
    f = jax.shard_map(
        lambda x: boxing.apply(route, x[0, 0], p.axis_names), mesh=p.mesh, in_specs=PartitionSpec("a", "b"),
        out_specs=PartitionSpec(), check_vma=False,
    )  # fmt: skip
    np.testing.assert_array_equal(jax.jit(f)(jnp.ones((2, 2, 4, 4))), np.full((8, 4), 2.0))


@pytest.mark.parametrize("src", ["P, P", "P, S(0)", "S(0), B"])
def test_serving_costs_no_more_than_trying_every_tree(src: str) -> None:
    """Against all orders of joining, each need from the nearest already there."""
    needs = [Signature.parse(t) for t in ("B, B", "B, S(0)", "S(0), S(1)", "S(1), B")]
    start, args = Signature.parse(src), ((64, 64), 4, (2, 4), get("h100"))
    found = boxing.serve(start, needs, *args)
    states = [start, *needs]
    cost = boxing.cost_matrix(states, *args)[0]
    total = sum(cost[states.index(origin), states.index(need)] for need, origin in found.items())
    best = math.inf
    for order in itertools.permutations(range(1, len(states))):
        joined, sum_ = [0], 0.0
        for i in order:
            sum_ += min(cost[j, i] for j in joined)
            joined.append(i)
        best = min(best, sum_)
    assert set(found) == set(needs) and total == pytest.approx(best)
