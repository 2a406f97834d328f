"""What placed functions gave, compared with plain JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def assert_same(ours: Any, plain: Any, rtol: float = 2e-4, atol: float = 2e-5) -> None:
    """The same tree, types, and numbers; whole numbers and flags exactly."""
    assert jax.tree.structure(ours) == jax.tree.structure(plain)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        rounds = bool(jnp.issubdtype(b.dtype, jnp.inexact))
        np.testing.assert_allclose(np.asarray(a, b.dtype), b, rtol=rtol * rounds, atol=atol * rounds)
