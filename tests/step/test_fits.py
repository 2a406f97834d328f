"""A step that XLA compiles to more than the user's memory limit says so, once, and is compiled once."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.step import fits

WHERE = sbp.placement("cpu", range(8))
X = np.ones((64, 32), np.float32)


def train_step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * g, loss


def limited(limit: float | None) -> sbp.api.ParallelFunction:
    config = sbp.AutoParallelConfig(memory_limit=limit)
    return sbp.auto_parallel(train_step, placement=WHERE, donate_argnums=0, config=config)


def test_needed_bytes_are_what_the_caller_gives_and_what_the_step_takes() -> None:
    a = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    compiled = jax.jit(lambda x, y: (x + y, (x @ y).sum()), donate_argnums=0).lower(a, a).compile()
    one = 256 * 256 * 4
    assert 3 * one <= fits.needed_bytes(compiled) < 3 * one + 1024  # two arguments, the product


def test_a_step_within_its_limit_warns_of_nothing_and_is_compiled_once() -> None:
    step, compiled = limited(1e6), []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(duration_secs)

    w = np.ones((32, 32), np.float32)
    step.plan(w, X)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            w, _ = step(w, X)
            step(w, X)
    finally:
        jax.monitoring.clear_event_listeners()
    assert len(compiled) == 1


def test_a_step_that_xla_needs_more_for_says_so_once_and_what_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "needed_bytes", lambda _: 1.25e6)
    step = limited(1e6)
    with pytest.warns(UserWarning, match=r"train_step was planned for at most .* 1\.250 times the limit") as told:
        w, _ = step(jnp.ones((32, 32)), X)
        step(w, X)
    assert len(told) == 1 and told[0].filename == __file__
    (instead,) = re.findall(r"memory_limit=(\d+)", str(told[0].message))
    assert int(instead) == 800_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limited(None)(jnp.ones((32, 32)), X)
