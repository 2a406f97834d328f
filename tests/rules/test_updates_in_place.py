"""Updates of a buffer by a part of itself: XLA for CPUs writes them in place while it still reads what was there."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import sbp_jax as sbp

X = np.arange(48, dtype=np.float32).reshape(8, 3, 2)
ROWS = X.reshape(8, 6)
SHIFTED = np.concatenate([ROWS[:1], ROWS[:-1]])


def slid(x: jax.Array) -> jax.Array:
    rows = x.reshape(8, 6)
    return lax.dynamic_update_slice(rows, rows[:-1], (1, 0))


def indexed(x: jax.Array) -> jax.Array:
    rows = x.reshape(8, 6)
    return rows.at[1:].set(rows[:-1])


def looped(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 1, lambda i, c: slid(c).reshape(8, 3, 2), x).reshape(8, 6)


@pytest.mark.parametrize("pinned", ["B", "S(0)"])
@pytest.mark.parametrize("lowering", ["manual", "gspmd"])
@pytest.mark.parametrize("shift", [slid, indexed, looped])
def test_a_buffer_is_shifted_not_repeated(shift: Callable[..., Any], lowering: Any, pinned: str) -> None:
    config = sbp.AutoParallelConfig(lowering=lowering)
    f = sbp.auto_parallel(shift, placement=sbp.placement("cpu", [0, 1]), config=config, in_sbp=(pinned,))
    np.testing.assert_array_equal(f(X), SHIFTED)  # plain jit of JAX 0.10 to 0.12 is wrong here
