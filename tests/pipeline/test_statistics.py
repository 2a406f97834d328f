"""Statistics of each micro-batch (batch norm): every way to write the norm, against gradients accumulated by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sbp_jax as sbp

Array = jax.Array
Norm = Callable[[Array, Array, Array], Array]
TWO = sbp.placement("cpu", ranks=[0, 1])
EXAMPLES = 12


def by_variance(h: Array, scale: Array, bias: Array) -> Array:
    return (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5) * scale + bias


def by_squares(h: Array, scale: Array, bias: Array) -> Array:
    """As Flax has it: the scale is multiplied by a statistic before any example is; so is its gradient's sum after."""
    mean = h.mean(0)
    factor = jax.lax.rsqrt((h * h).mean(0) - mean * mean + 1e-5) * scale
    return (h - mean) * factor + bias


def by_rows(h: Array, scale: Array, bias: Array) -> Array:
    """The same without a dim of 1 between statistics and examples: sums over examples reach products as they are."""
    mean = h.mean(0)
    factor = jax.lax.rsqrt((h * h).mean(0) - mean * mean + 1e-5) * scale
    return (h - jax.lax.broadcast_in_dim(mean, h.shape, (1,))) * jax.lax.broadcast_in_dim(factor, h.shape, (1,)) + bias


def constant(h: Array, scale: Array, bias: Array) -> Array:
    mean, var = jax.lax.stop_gradient((h.mean(0), h.var(0)))
    return (h - mean) * (jax.lax.rsqrt(var + 1e-5) * scale) + bias


def damped(h: Array, scale: Array, bias: Array) -> Array:
    """The scale's gradient has a factor that no other op reads."""
    return (h - h.mean(0)) * jnp.exp(-h.var(0) * scale * scale) + bias


@jax.custom_vjp
def by_hand(h: Array, scale: Array, bias: Array) -> Array:
    """Its backward pass reads the gradients of scale and bias, which the update reads as well."""
    return by_variance(h, scale, bias)


def _forward(h: Array, scale: Array, bias: Array) -> Any:
    mean, inverse = h.mean(0), jax.lax.rsqrt(h.var(0) + 1e-5)
    return (h - mean) * inverse * scale + bias, (h, mean, inverse, scale)


def _backward(kept: Any, dy: Array) -> Any:
    h, mean, inverse, scale = kept
    normed = (h - mean) * inverse
    of_scale, of_bias = (dy * normed).sum(0), dy.sum(0)
    return inverse * scale * (dy - of_bias / len(h) - normed * of_scale / len(h)), of_scale, of_bias


by_hand.defvjp(_forward, _backward)


def make_step(norm: Norm) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """A step of two norms that share a bias; ``parts`` is how many micro-batches its gradients are accumulated over."""
    # Far from 0 / 0: Adam is not linear in the gradient, so its parts must be one before it.
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2, eps=1e-2))

    def loss_of(p: Any, x: Array, y: Array) -> Array:
        h = jax.nn.relu(norm(x @ p["first"], p["scale"], p["bias"]))
        h = jax.nn.relu(norm(h @ p["second"], p["other"], p["bias"]))
        return jnp.mean((h @ p["last"] - y) ** 2)

    def step(state: Any, x: Array, y: Array, parts: int = 1) -> Any:
        found = [
            jax.value_and_grad(loss_of)(state[0], a, b)
            for a, b in zip(jnp.split(jnp.asarray(x), parts), jnp.split(jnp.asarray(y), parts), strict=True)
        ] if parts > 1 else [jax.value_and_grad(loss_of)(state[0], x, y)]  # fmt: skip
        loss, gradient = jax.tree.map(lambda *terms: sum(terms) / parts, *found)
        updates, moments = optimizer.update(gradient, state[1], state[0])
        return (optax.apply_updates(state[0], updates), moments), loss

    def state() -> Any:
        rng = np.random.default_rng(0)
        shapes = {"first": (6, 8), "second": (8, 8), "last": (8, 3)}
        p = {k: jnp.asarray(rng.normal(size=shape), jnp.float32) for k, shape in shapes.items()}
        vectors = {k: jnp.asarray(rng.normal(size=8) / 10 + (k != "bias"), jnp.float32)
                   for k in ("scale", "other", "bias")}  # fmt: skip
        return p | vectors, optimizer.init(p | vectors)

    return step, state


@pytest.mark.parametrize("norm", [by_variance, by_squares, by_rows, constant, damped, by_hand])
@pytest.mark.parametrize("parts", [2, 3])
def test_gradients_are_those_accumulated_over_micro_batches(norm: Norm, parts: int) -> None:
    step, state = make_step(norm)
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(EXAMPLES, n)).astype(np.float32) for n in (6, 3))
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2, parts, batch_statistics="microbatch"))
    run = sbp.auto_parallel(step, placement=TWO, donate_argnums=0, config=config)
    found, right = state(), state()
    for _ in range(2):
        found, loss = run(found, x, y)
        right, expected = step(right, x, y, parts)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))
    run.close()
