"""What a cluster costs: products by their local sizes, copies by their traffic, boundaries and bitcasts nothing."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from sbp_jax.cluster import Cluster, get
from sbp_jax.planner.costs.op_cost import CostModel, _moves_memory
from sbp_jax.planner.graph.clusters import OpCluster, cluster_ops, factor_maps
from sbp_jax.planner.graph.partials import partial_kinds
from sbp_jax.trace import build

MESH = (2, 4)


def cells_of(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.bfloat16) -> list[OpCluster]:
    program = build(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes)))
    factors = factor_maps(program)
    return cluster_ops(program, factors, partial_kinds(program, factors), MESH, lambda _, every: tuple(every)).clusters


def cell_named(name: str, f: Callable[..., Any], *shapes: tuple[int, ...]) -> OpCluster:
    (cluster,) = (c for c in cells_of(f, *shapes) if c.ops[0].name == name)
    return cluster


def conv(x: jax.Array, w: jax.Array, **kwargs: Any) -> jax.Array:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **kwargs)


@pytest.mark.parametrize(
    ("f", "shapes", "name", "whole"),
    [
        (lambda x, y: x @ y, [(16, 32), (32, 64)], "dot_general", (16, 64, 32, 1)),
        (lambda x, y: jnp.einsum("bhqd,bhkd->bhqk", x, y), [(8, 16, 32, 64), (8, 16, 128, 64)], "dot_general",
         (32, 128, 64, 128)),
        (lambda x, y: jnp.einsum("bsd,bse->de", x, y), [(8, 16, 32), (8, 16, 64)], "dot_general", (32, 64, 128, 1)),
        (conv, [(8, 16, 16, 32), (3, 3, 32, 64)], "conv_general_dilated", (8 * 256, 64, 9 * 32, 1)),
        (lambda x, w: conv(x, w, feature_group_count=8), [(8, 16, 16, 32), (3, 3, 4, 64)], "conv_general_dilated",
         (8 * 256, 8, 9 * 4, 8)),
    ],
    ids=["matmul", "attention", "weight gradient", "convolution", "grouped convolution"],
)  # fmt: skip
def test_a_product_is_priced_by_its_local_size(
    f: Any, shapes: list[tuple[int, ...]], name: str, whole: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cell_named(name, f, *shapes)
    seen: list[tuple[int, int, int, int]] = []

    def record(_: Cluster, m: int, n: int, k: int, dtype: str, itemsize: int, batch: int, moved: float) -> float:
        assert dtype == "bfloat16" and itemsize == 2 and moved > 0
        seen.append((m, n, k, batch))
        return 1.0

    monkeypatch.setattr(Cluster, "matmul_seconds", record)
    model = CostModel(get("a100-80"), MESH)
    for s in cluster.strategies:
        model.compute_seconds(cluster, s)
    assert seen[[s.share for s in cluster.strategies].index(1.0)] == whole
    for sizes, s in zip(seen, cluster.strategies, strict=True):
        assert math.prod(sizes) == pytest.approx(math.prod(whole) * s.share), (sizes, s)
        assert all(w % n == 0 for w, n in zip(whole, sizes, strict=True))


def test_the_operands_dtype_is_that_of_the_arithmetic() -> None:
    """bfloat16 operands with a float32 result run at bfloat16's rate."""
    model = CostModel(get("a100-80"), MESH)
    costs = []
    for kind in (jnp.bfloat16, jnp.float32):

        def product(x: jax.Array, y: jax.Array, kind: Any = kind) -> jax.Array:
            return lax.dot(x, y, preferred_element_type=kind)

        cluster = cell_named("dot_general", product, (8192, 8192), (8192, 8192))
        costs.append(model.compute_seconds(cluster, cluster.strategies[0]))
    assert costs[0] == pytest.approx(costs[1])


def test_a_lookup_touches_what_it_finds() -> None:
    model = CostModel(get("a100-80"), MESH)

    def find(table: jax.Array) -> jax.Array:
        return table[jnp.arange(4096) % 7 * 13]

    small, large = (cell_named("gather", find, (rows, 1024)) for rows in (100, 1_000_000))
    whole = next(i for i, s in enumerate(large.strategies) if s.share == 1.0 and all(c < 0 for c in s.outs[0]))
    rate = model.hardware.memory_rate
    expected = pytest.approx(2 * 4096 * 1024 * 2 / rate)
    assert model.compute_seconds(large, large.strategies[whole]) == expected
    assert model.compute_seconds(small, small.strategies[0]) == expected


def test_an_update_in_place_touches_its_piece() -> None:
    cluster = cell_named("dynamic_update_slice", lambda x, y: lax.dynamic_update_slice(x, y, (0, 0)),
                      (1 << 20, 1024), (4096, 1024))  # fmt: skip
    model = CostModel(get("a100-80"), MESH)
    costs = [model.compute_seconds(cluster, s) for s in cluster.strategies]
    assert max(costs) == pytest.approx(2 * 4096 * 1024 * 2 / model.hardware.memory_rate)


@pytest.mark.parametrize(
    ("shape", "permutation", "is_copy"),
    [
        ((8, 8), (1, 0), False),
        ((8, 8, 8), (0, 2, 1), False),
        ((8, 8, 8), (2, 0, 1), False),
        ((8, 8, 8), (0, 1, 2), False),
        ((8, 8, 8, 8), (0, 2, 1, 3), True),
        ((8, 8, 8, 8), (2, 3, 0, 1), False),
        ((8, 8, 8, 8), (0, 2, 3, 1), False),
        ((8, 8, 8), (2, 1, 0), True),
        ((8, 1, 8, 8), (0, 2, 1, 3), False),
        ((), (), False),
    ],
)
def test_a_transposition_is_a_copy_where_no_layout_will_do(
    shape: tuple[int, ...], permutation: tuple[int, ...], is_copy: bool
) -> None:
    assert _moves_memory(shape, permutation) is is_copy


def test_copies_cost_their_traffic() -> None:
    model = CostModel(get("a100-80"), MESH)
    size = 64 * 1024 * 32 * 128 * 2
    for name, f, shapes, moved in (
        ("transpose", lambda x: jnp.sum(jnp.transpose(x, (0, 2, 1, 3)) @ jnp.ones((128, 1), x.dtype)),
         [(64, 1024, 32, 128)], 2 * size),
        ("concatenate", lambda x, y: jnp.concatenate([x, y]) @ jnp.ones((8, 8), x.dtype), [(1 << 20, 8)] * 2,
         2 * 2 * (1 << 20) * 8 * 2),
    ):  # fmt: skip
        cluster = cell_named(name, f, *shapes)
        costs = [model.compute_seconds(cluster, s) for s in cluster.strategies]
        assert max(costs) == pytest.approx(moved / model.hardware.memory_rate), name
        assert min(costs) == pytest.approx(moved / 8 / model.hardware.memory_rate), name


def test_transpositions_that_undo_each_other_cost_nothing() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.transpose(jnp.transpose(x, (0, 2, 1, 3)), (0, 2, 1, 3)) @ jnp.ones((16, 16), x.dtype)

    model = CostModel(get("a100-80"), MESH)
    cluster = cell_named("transpose", f, (8, 8, 8, 16))
    assert {model.compute_seconds(cluster, s) for s in cluster.strategies} == {0.0}


def test_what_is_no_kernel_costs_nothing() -> None:
    def f(x: jax.Array) -> jax.Array:
        y = lax.scan(lambda c, row: (c, row.T.reshape(-1)), 0, x.reshape(4, 16, 64))[1]
        return y[1:3].reshape(-1)

    model = CostModel(get("a100-80"), MESH)
    clusters = [c for c in cells_of(f, (64, 64)) if c.ops[0].name not in ("sbp.input", "add")]
    assert {"sbp.output", "reshape", "slice"} <= {c.ops[0].name for c in clusters}
    for cluster in clusters:
        assert {model.compute_seconds(cluster, s) for s in cluster.strategies} == {0.0}, cluster.ops[0].name


def test_equal_labels_cost_the_same() -> None:
    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jnp.transpose(jax.nn.gelu(x @ w).reshape(8, 16, 4, 16), (0, 2, 1, 3)).reshape(128, 64)
        return x

    model = CostModel(get("h100"), MESH)
    known: dict[object, list[float]] = {}
    for c in cells_of(f, (128, 64), (64, 64)):
        costs = [model.compute_seconds(c, s) for s in c.strategies]
        assert known.setdefault(c.label, costs) == costs
    assert len(known) < len(cells_of(f, (128, 64), (64, 64)))


def test_costs_fall_with_the_work() -> None:
    """Of two strategies, the one with less work on each device and smaller pieces is never more expensive."""
    model = CostModel(get("a100-80"), MESH)
    for c in cells_of(lambda x, w: jax.nn.softmax(x @ w), (4096, 8192), (8192, 4096), dtype=jnp.float32):
        ways = [
            (model.compute_seconds(c, s), s.share,
             [model.local_bytes(v, k) for v, k in zip((*c.ins, *c.outs), (*s.ins, *s.outs), strict=True)])
            for s in c.strategies
        ]  # fmt: skip
        for (a, share, sizes), (b, more, larger) in itertools.permutations(ways, 2):
            if share <= more and all(x <= y for x, y in zip(sizes, larger, strict=True)):
                assert a <= b * (1 + 1e-9) or (c.ops[0].name == "dot_general" and a <= 1.3 * b)


def test_on_simulated_devices_copies_are_free_and_every_op_is_a_kernel() -> None:
    """So that plans weigh bytes: see ``cluster.presets``."""
    model = CostModel(get("cpu"), MESH)
    cluster = cell_named(
        "transpose", lambda x: jnp.transpose(x, (0, 2, 1, 3)) @ jnp.ones((16, 1), x.dtype), (8, 8, 8, 16)
    )
    assert {model.compute_seconds(cluster, s) for s in cluster.strategies} == {0.0}
    for c in cells_of(lambda x: jnp.sum(jnp.tanh(x)), (8, 8)):
        if c.flops:
            assert min(model.compute_seconds(c, s) for s in c.strategies) == model.hardware.op_seconds_floor
