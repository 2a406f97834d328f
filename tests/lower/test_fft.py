"""Fourier transforms next to collectives: XLA for CPUs runs them in one order of memory only."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sbp_jax as sbp


def split(x: Any) -> Any:
    return sbp.to_global(x, "S(1), B")


def repeated(x: Any) -> Any:
    def once(_: int, x: Any) -> Any:
        return sbp.to_global(split(jnp.fft.irfft(split(jnp.fft.rfft(x)))), "B, B")

    return lax.fori_loop(0, 3, once, x)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "complex": lambda x: split(jnp.fft.fft(x)) * 2,
    "real": lambda x: split(jnp.fft.rfft(x)) * 2,
    "gradient": jax.grad(lambda x: jnp.abs(split(jnp.fft.rfft(x))).sum()),
    "in a loop": repeated,
}


@pytest.mark.parametrize("lowering", ["manual", "gspmd"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_transform_of_pieces_that_are_gathered(name: str, lowering: Literal["manual", "gspmd"]) -> None:
    fn = PROGRAMS[name]
    x = np.random.default_rng(0).normal(size=(3, 4, 8)).astype(np.float32)
    parallel = sbp.auto_parallel(
        fn, placement=sbp.placement("cpu", [[0, 1], [2, 3]]), in_sbp=("S(1), B",), out_sbp="B, B",
        config=sbp.AutoParallelConfig(lowering=lowering),
    )  # fmt: skip
    np.testing.assert_allclose(parallel(x), jax.jit(fn)(x), rtol=1e-5, atol=1e-5)
    plan = parallel.plan(x)
    assert any("all_gather" in b.collective for b in plan.boxings())
    plan.verify()
