"""Eager ops follow JAX's settings, as the ops of plain arrays do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.tensor import engine

P8 = sbp.placement("cpu", list(range(8)), axis_names=("dp",))


def ones(*shape: int) -> sbp.GlobalTensor:
    return sbp.ones(*shape, placement=P8, sbp=sbp.broadcast)


def test_rank_promotion() -> None:
    x, y = ones(8, 8), ones(8)
    for _ in range(2):
        with jax.numpy_rank_promotion("allow"):
            assert (x + y).shape == (8, 8)
        with jax.numpy_rank_promotion("raise"), pytest.raises(sbp.SbpError, match=r"rank promotion|rank_promotion"):
            x + y


def test_wide_types() -> None:
    def total(x):
        return jnp.arange(4).sum() + x.astype(int).sum()

    x = ones(8)
    for _ in range(2):
        assert sbp.apply(total, x).dtype == jnp.int32
        with jax.enable_x64(True):
            assert sbp.apply(total, x).dtype == jnp.int64


def test_matmul_precision() -> None:
    def made(x):
        sbp.apply(jnp.matmul, x, x)
        return [k for k in engine.STEPS.of(jnp.matmul)]

    x = ones(8, 8)
    before = len(made(x))
    with jax.default_matmul_precision("float32"):
        assert len(made(x)) > before
        after = len(made(x))
        assert len(made(x)) == after
    assert len(made(x)) == after


def test_fixed_numbers_are_told_apart() -> None:
    def filled(x, *, value):
        return jnp.copysign(x, value)

    x = ones(8)
    assert [float(sbp.apply(filled, x, value=v).numpy()[0]) for v in (0.0, -0.0, 1.0, 0.0)] == [1.0, -1.0, 1.0, 1.0]

    def typed(x, *, by):
        return x.astype(jnp.int32) * by

    assert [sbp.apply(typed, x, by=v).dtype for v in (1, 1.0, True)] == [jnp.int32, jnp.float32, jnp.int32]
    np.testing.assert_array_equal(sbp.apply(typed, x, by=2).numpy(), np.full(8, 2))
