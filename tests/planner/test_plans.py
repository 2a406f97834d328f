"""What the planner should arrive at by itself, and the shape of its search (behaviour.md 30 to 33)."""

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
from zoo import gpt, resnet


def gpus(*shape: int) -> sbp.Placement:
    return sbp.placement.abstract(shape, axis_names=("dp", "tp", "pp")[: len(shape)], cluster="a100-80")


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_megatrons_pair_for_a_wide_mlp_with_a_small_batch() -> None:
    def step(w, x):
        def loss(w):
            return jnp.mean((jax.nn.gelu(x @ w["up"]) @ w["down"]) ** 2)

        value, g = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda p, d: p - 0.1 * d, w, g), value

    shapes = {"up": f32(4096, 65536), "down": f32(65536, 4096)}
    plan = sbp.plan(step, shapes, f32(64, 4096), placement=gpus(8), donate_argnums=0)
    (w, _), _ = plan.signatures()
    assert (str(w["up"]), str(w["down"])) == ("S(1)", "S(0)")
    large = [b for b in plan.boxings() if b.bytes > 1e5]
    assert {str(b.src) for b in large if "all_reduce" in b.collective or "reduce_scatter" in b.collective} == {"P"}


def test_a_large_batch_splits_a_convolutional_net() -> None:
    case = resnet.build("tiny", batch=1024, pixels=64, channels=(64, 128))
    plan = sbp.plan(case.step, jax.eval_shape(case.init), jax.eval_shape(lambda: case.batch(0)), placement=gpus(8),
                    donate_argnums=0)  # fmt: skip
    images = max(plan.inputs, key=lambda leaf: len(leaf.shape) == 4 and leaf.shape[0] == 1024)
    assert images.shape == (1024, 64, 64, 3) and str(images.signature) == "S(0)"


def test_embedding_tables_that_dwarf_the_rest_are_split() -> None:
    def step(table, w, ids, y):
        def loss(table, w):
            return jnp.mean((table[ids].sum(1) @ w - y) ** 2)

        value, (gt, gw) = jax.value_and_grad(loss, (0, 1))(table, w)
        return table - 0.1 * gt, w - 0.1 * gw, value

    ids = jax.ShapeDtypeStruct((4096, 26), jnp.int32)
    plan = sbp.plan(step, f32(4_000_000, 64), f32(64, 16), ids, f32(4096, 16), placement=gpus(8), donate_argnums=(0, 1))
    (table, *_), _ = plan.signatures()
    assert str(table) in ("S(0)", "S(1)")


def test_a_million_classes_are_split_and_never_gathered() -> None:
    classes, batch = 1_000_000, 512

    def step(w, x, labels):
        def loss(w):
            logits = x @ w
            picked = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
            return jnp.mean(jax.nn.logsumexp(logits, axis=1) - picked)

        value, g = jax.value_and_grad(loss)(w)
        return w - 0.1 * g, value

    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    plan = sbp.plan(step, f32(512, classes), f32(batch, 512), labels, placement=gpus(8), donate_argnums=0)
    (w, *_), _ = plan.signatures()
    assert str(w) == "S(1)"
    assert all(b.bytes < batch * classes / 8 for b in plan.boxings())


def test_layers_are_planned_once() -> None:
    def classes(layers: int) -> sbp.Plan:
        case = gpt.build("tiny", layers=layers, dropout=0.0)
        return sbp.plan(case.step, jax.eval_shape(case.init), case.batch(0), placement=gpus(8), donate_argnums=0,
                        config=sbp.AutoParallelConfig(overlap=False))  # fmt: skip

    shallow, deep = classes(12), classes(24)
    assert deep.statistics["classes"] == shallow.statistics["classes"]
    assert deep.statistics["nodes"] > 1.8 * shallow.statistics["nodes"]
    assert deep.optimality_gap == shallow.optimality_gap == 0


def test_gradients_are_reduced_once_after_accumulation() -> None:
    case = gpt.build("tiny", grad_accumulation=8, dropout=0.0)
    p = sbp.placement.all("cpu", axis_names=("dp",))
    plan = sbp.plan(case.step, jax.eval_shape(case.init), case.batch(0), placement=p, donate_argnums=0)
    report = plan.verify()
    weights = [x for x in jax.tree.leaves(jax.eval_shape(case.init)["params"]) if x.ndim >= 2 and x.size >= 2048]
    reductions = [
        c for _, c in report.matched if c.kind in ("all-reduce", "reduce-scatter") and c.operand.elements >= 2048
    ]
    assert sum(c.times for c in reductions) == len(weights)


@pytest.mark.parametrize("mesh", [(4, 2), (2, 2, 2), (128, 8)], ids=str)
def test_meshes_of_any_size(mesh: tuple[int, ...]) -> None:
    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    plan = sbp.plan(step, f32(1024, 2048), f32(8192, 1024), placement=gpus(*mesh), donate_argnums=0)
    assert plan.optimality_gap == 0


def test_odd_sizes_are_simply_not_split() -> None:
    plan = sbp.plan(lambda w, x: jnp.tanh(x @ w).sum(), f32(7, 11), f32(13, 7), placement=gpus(8))
    assert plan.bytes_on_wire == 0
    (w, x), _ = plan.signatures()
    assert str(w) == str(x) == "B"
