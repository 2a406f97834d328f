"""Barriers in loops so small that XLA for CPUs makes one kernel of each, which ends the process: it must not."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sbp_jax as sbp

X = np.arange(8, dtype=np.float32).reshape(2, 4, 1)


def barrier(x: jax.Array) -> Any:
    def inner(d: Any, e: jax.Array) -> Any:
        a, b = lax.optimization_barrier((d, e))
        return d + e.sum(), jnp.sin(a + b)

    return lax.scan(lambda c, r: lax.scan(inner, c, r), 0.0, x)[1]


def checkpoint(x: jax.Array) -> Any:
    part = jax.checkpoint(lambda d, e: jnp.sin(d * jnp.cos(e)).sum())
    return jax.grad(lambda x: lax.scan(lambda c, r: lax.scan(lambda d, e: (part(d, e), e), c, r), 0.5, x)[0])(x)


def wait(x: jax.Array) -> Any:
    """Where the lowering has one product wait for another's sum."""

    def inner(c: jax.Array, r: jax.Array) -> Any:
        return jnp.sin(c @ r.T) @ r, jnp.sum(jnp.sin(r @ c.T))

    return lax.scan(lambda c, r: lax.scan(inner, c, r), jnp.ones((1, 1)), x[..., None])


@pytest.mark.parametrize("function", [barrier, checkpoint, wait], ids=lambda f: f.__name__)
def test_equal_to_plain_jax(function: Callable[..., Any]) -> None:
    planned = sbp.auto_parallel(function, placement=sbp.placement("cpu", [0, 1]))
    for ours, plain in zip(jax.tree.leaves(planned(X)), jax.tree.leaves(jax.jit(function)(X)), strict=True):
        np.testing.assert_allclose(ours, plain, 1e-5, 1e-5)
