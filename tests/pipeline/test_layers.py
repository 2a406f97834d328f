"""A loop over layers (``lax.scan`` over stacked weights) cut between stages."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sbp_jax as sbp
from sbp_jax.pipeline.cuts.layer_loops import find_layers, group_counts, in_groups
from sbp_jax.planner.graph.clusters import factor_maps
from sbp_jax.trace import Program, build

WIDTH = 16
FOUR = sbp.placement("cpu", ranks=np.arange(8).reshape(4, 2), axis_names=("stage", "data"))


def state(layers: int = 4, dtype: Any = jnp.float32) -> Any:
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(keys[0], (8, WIDTH), dtype) / 3,
        "layers": {"w": jax.random.normal(keys[1], (layers, WIDTH, WIDTH), dtype) / 4,
                   "b": jnp.zeros((layers, WIDTH), dtype)},
        "out": jax.random.normal(keys[2], (WIDTH, 4), dtype) / 4,
    }  # fmt: skip
    return {"params": params, "opt": optimizer().init(params)}


def optimizer() -> Any:
    return optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))


def model(params: Any, x: jax.Array, remat: bool = False) -> jax.Array:
    def layer(h: jax.Array, p: Any) -> tuple[jax.Array, jax.Array]:
        h = h + jnp.tanh(h @ p["w"] + p["b"])
        return h, jnp.mean(h.astype(jnp.float32) ** 2, -1)

    h, sizes = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x @ params["in"], params["layers"])
    return h @ params["out"] + 1e-3 * jnp.mean(sizes, 0)[:, None].astype(h.dtype)


def make_step(remat: bool = False) -> Any:
    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> jax.Array:
            return jnp.mean((model(params, batch[0], remat).astype(jnp.float32) - batch[1]) ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, opt = optimizer().update(gradients, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, loss

    return step


def batch(seed: int, dtype: Any = jnp.float32) -> Any:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(16, 8)), dtype), jnp.asarray(rng.normal(size=(16, 4)), jnp.float32)


def compare(pipeline: sbp.Pipeline, where: Any, layers: int = 4, remat: bool = False, dtype: Any = jnp.float32) -> Any:
    """Three steps against ``jax.jit``; the final state."""
    step = make_step(remat)
    run = sbp.auto_parallel(step, placement=where, donate_argnums=0, config=sbp.AutoParallelConfig(pipeline=pipeline))
    found, right = state(layers, dtype), state(layers, dtype)
    rtol, atol = (2e-5, 2e-6) if dtype == jnp.float32 else (0.05, 0.03)
    for k in range(3):
        found, loss = run(found, batch(k, dtype))
        right, expected = jax.jit(step)(right, batch(k, dtype))
        np.testing.assert_allclose(loss, expected, rtol=rtol)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=rtol, atol=atol)
    run.close()
    return found


@pytest.mark.parametrize("remat", [False, True])
def test_each_stage_keeps_the_weights_of_its_layers(remat: bool) -> None:
    found = compare(sbp.Pipeline(4, 4), FOUR, remat=remat)
    w = found["params"]["layers"]["w"]
    rows = {s.device.id: s.index[0] for s in w.addressable_shards}
    assert [rows[2 * k].start or 0 for k in range(4)] == [0, 1, 2, 3]
    assert all(s.data.shape[0] == 1 for s in w.addressable_shards)


@pytest.mark.parametrize(
    ("pipeline", "layers"),
    [
        (sbp.Pipeline(2, 2, "zb_h1"), 4),
        (sbp.Pipeline(2, 2), 3),  # a stage with one layer, and one with two
        (sbp.Pipeline(2, 4, "interleaved_1f1b", 2), 4),
        (sbp.Pipeline("auto", 2), 6),
        (sbp.Pipeline(2, 1), 4),
    ],
)
def test_numbers_are_those_of_one_device(pipeline: sbp.Pipeline, layers: int) -> None:
    compare(pipeline, FOUR, layers)


def test_half_precision() -> None:
    compare(sbp.Pipeline(2, 2), FOUR, dtype=jnp.bfloat16)


def program_of(step: Any, *args: Any) -> Program:
    leaves, tree = jax.tree.flatten(args)

    def flat(*given: Any) -> list[Any]:
        return jax.tree.leaves(step(*jax.tree.unflatten(tree, given)))

    made = build(jax.make_jaxpr(flat)(*leaves))
    kept = len(jax.tree.leaves(args[0]))
    made.donated[:] = [(i, i) for i in range(kept)]
    return made


def test_groups_have_pieces_of_their_own_and_the_rest_is_there_once() -> None:
    program = program_of(make_step(), state(6), batch(0))
    layered = find_layers(program, factor_maps(program), {i for i, _ in program.donated})
    assert (layered.length, len(layered.loops), group_counts(layered)) == (6, 2, [1, 2, 3, 6])
    grouped = in_groups(layered, 3)
    cut = [p for p in grouped.arguments if p.dim >= 0]
    assert len(cut) == 3 * 2 * 3  # three groups; weights and biases; parameters and two moments
    shapes = {grouped.program.input_ops[k].outs[0].shape for k, p in enumerate(grouped.arguments) if p.dim >= 0}
    assert shapes == {(2, WIDTH, WIDTH), (2, WIDTH)}
    assert len(grouped.program.donated) == len(program.donated) + 2 * 2 * 3


def test_a_loop_over_time_is_not_one_over_layers() -> None:
    def step(params: Any, x: jax.Array) -> Any:
        def loss_of(w: jax.Array) -> jax.Array:
            h, _ = jax.lax.scan(lambda h, xt: (jnp.tanh(h @ w + xt), None), jnp.zeros((4, WIDTH)), x)
            return jnp.sum(h**2)

        return params - jax.grad(loss_of)(params)

    program = program_of(step, jnp.zeros((WIDTH, WIDTH)), jnp.zeros((6, 4, WIDTH)))
    assert not find_layers(program, factor_maps(program), {0}).loops
