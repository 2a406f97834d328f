"""``AutoParallelConfig(pad=True)``: dimensions that do not divide, split padded, with the numbers of one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sbp_jax as sbp
from sbp_jax.pieces import is_even

to_global: Any = sbp.to_global
PAD = sbp.AutoParallelConfig(pad=True)


def normal(seed: int, *shape: int) -> jax.Array:
    return 0.05 * jax.random.normal(jax.random.key(seed), shape)


def devices(*shape: int) -> sbp.Placement:
    return sbp.placement("cpu", np.arange(int(np.prod(shape))).reshape(shape))


def check(fn: Any, args: Any, plan_args: dict[str, Any], tolerance: float = 1e-4) -> sbp.Plan:
    """Plan, run, compare with one device, verify."""
    parallel = sbp.auto_parallel(fn, **plan_args)
    expected, found = jax.jit(fn)(*args), parallel(*jax.tree.map(jnp.array, args))
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(jnp.abs(a).max()))
    plan = parallel.plan(*args)
    assert plan.verify().exact
    return plan


def padded(plan: sbp.Plan) -> set[tuple[int, ...]]:
    """The shapes of values that change to or from pieces of different lengths."""
    sizes = plan.placement.shape
    return {b.shape for b in plan.boxings() if not all(is_even(b.shape, s, sizes) for s in (b.src, b.dst))}


def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def convnet(batch: int) -> tuple[Any, Any]:
    """A training step with everything that a padded batch could leak into: means, batch norm, pooling, accuracy."""
    state = {"c": normal(0, 3, 3, 3, 8), "d": normal(1, 3, 3, 8, 8), "scale": jnp.ones(8), "w": normal(2, 512, 10)}

    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(p: Any) -> Any:
            h = convolve(x, p["c"])
            mean, variance = h.mean((0, 1, 2)), h.var((0, 1, 2))
            h = jax.nn.relu((h - mean) * lax.rsqrt(variance + 1e-5) * p["scale"])
            h = jax.nn.relu(convolve(h, p["d"]))
            h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            logits = h.reshape(h.shape[0], -1) @ p["w"]
            right = jnp.argmax(logits, axis=1) == y
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
            return -chosen.mean(), (right.mean(), logits.max())

        (value, more), g = jax.value_and_grad(loss, has_aux=True)(p)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value, more

    return step, (state, normal(2, batch, 16, 16, 3), jnp.arange(batch) % 10)


def test_a_batch_of_30_costs_what_a_batch_of_32_does() -> None:
    where = {"placement": devices(8), "donate_argnums": 0}
    step, args = convnet(30)
    plan = check(step, args, where | {"config": PAD})
    larger, more = convnet(32)
    even = sbp.plan(larger, *more, placement=devices(8), donate_argnums=0)
    whole = sbp.plan(step, *args, placement=devices(8), donate_argnums=0)
    assert plan.bytes_on_wire == pytest.approx(even.bytes_on_wire, rel=0.1)
    assert whole.bytes_on_wire > 2 * plan.bytes_on_wire
    assert plan.step_seconds < whole.step_seconds
    assert not padded(whole) and any(shape[0] == 30 for shape in padded(plan))


def test_arguments_and_results_are_split_evenly_or_whole() -> None:
    step, args = convnet(30)
    plan = sbp.plan(step, *args, placement=devices(8), donate_argnums=0, config=PAD)
    for leaf in (*plan.inputs, *plan.outputs):
        assert is_even(leaf.shape, leaf.signature, (8,))
    with pytest.raises(sbp.SbpError, match="30 is not a multiple of 8"):
        sbp.plan(step, *args, placement=devices(8), config=PAD, in_sbp=(None, "S(0)", None))


def test_a_pin_inside_may_ask_for_padded_pieces() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.tanh(to_global(x * 2, sbp.split(0))).sum(0)

    x = normal(0, 30, 8)
    plan = check(f, (x,), {"placement": devices(8), "config": PAD})
    assert (30, 8) in padded(plan)
    np.testing.assert_allclose(sbp.auto_parallel(f, plan=sbp.Plan.from_json(plan.to_json()))(x), f(x), rtol=1e-5)
    with pytest.raises(sbp.SbpError, match="30 is not a multiple of 8"):
        sbp.plan(f, x, placement=devices(8))


def test_sharding_constraints_cannot_say_padded_pieces() -> None:
    with pytest.raises(sbp.SbpError, match=r'use lowering="manual"'):
        sbp.AutoParallelConfig(pad=True, lowering="gspmd")


def language_model(vocabulary: int) -> tuple[Any, Any]:
    """A step with an embedding that is the output layer too, and momentum."""
    p = {"emb": normal(0, vocabulary, 16), "w": normal(1, 16, 32), "v": normal(2, 32, 16), "b": normal(3, vocabulary)}

    def step(state: Any, ids: jax.Array) -> Any:
        def loss(p: Any) -> Any:
            h = p["emb"][ids[:, :-1]]
            h = h + jax.nn.gelu(h @ p["w"]) @ p["v"]
            logits = h @ p["emb"].T + p["b"]
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], -1).mean()

        p, m = state
        value, g = jax.value_and_grad(loss)(p)
        m = jax.tree.map(lambda a, b: 0.9 * a + b, m, g)
        return (jax.tree.map(lambda a, b: a - 0.1 * b, p, m), m), value

    ids = jax.random.randint(jax.random.key(5), (4, 9), 0, vocabulary)
    ids = ids.at[0, :3].set(jnp.array([vocabulary - 1, 0, vocabulary // 8 + 1]))  # the last of all, edges of pieces
    return step, ((p, jax.tree.map(jnp.zeros_like, p)), ids)


@pytest.mark.parametrize("vocabulary", [50_257, 30_522], ids=["gpt2", "bert"])
def test_a_vocabulary_that_does_not_divide_is_split(vocabulary: int) -> None:
    step, args = language_model(vocabulary)
    where = {"placement": devices(8), "donate_argnums": 0}
    plan = check(step, args, where | {"config": PAD})
    logits = (4, 8, vocabulary)
    assert not [b for b in plan.boxings() if b.shape == logits and b.collective != "none"]
    assert (vocabulary, 16) in padded(plan)
    whole = sbp.plan(step, *args, **where)
    assert plan.step_seconds < 0.7 * whole.step_seconds
    assert plan.memory_per_device < 0.7 * whole.memory_per_device


def test_without_padding_the_plan_says_what_it_would_give() -> None:
    step, args = convnet(30)
    where = {"placement": devices(8), "donate_argnums": 0}
    plan, better = sbp.plan(step, *args, **where), sbp.plan(step, *args, **where, config=PAD)
    (note,) = [n for n in plan.notes if "pad=True" in n]
    assert note.startswith("30 (dimension 0 of x, float32[30,16,16,3])") and "does not divide by 8 devices" in note
    assert f"would take {better.step_seconds * 1e6:.3g} µs instead of {plan.step_seconds * 1e6:.3g} µs" in note
    assert "proven optimal among even splits" in str(plan)
    assert sbp.Plan.from_json(plan.to_json()).only_even
    assert not better.only_even and not [n for n in better.notes if "pad=True" in n]


def test_dims_that_divide_or_do_not_matter_are_not_told() -> None:
    def f(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x.T).sum(0) + y.sum()

    for shapes in (((1024, 1024), (8,)), ((1024, 1024), (9,)), ((9, 9), (9,))):
        plan = sbp.plan(f, *(jnp.zeros(s) for s in shapes), placement=devices(8))
        assert not [n for n in plan.notes if "pad=True" in n]
