"""A step that XLA compiles to more than the memory limit is planned for less; where that is no help, it is told."""

import re
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.api import function
from sbp_jax.planner.memory.infeasible import TooSmall
from sbp_jax.step import fits

WHERE = sbp.placement("cpu", range(8))
X = np.ones((64, 32), np.float32)
WIDE_X = np.linspace(0, 1, 512 * 128, dtype=np.float32).reshape(512, 128)


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


def step_of(planned: float) -> Any:
    return SimpleNamespace(plan=SimpleNamespace(memory_per_device=planned, notes=[], function="step"))


def fitted(needs: list[int | None], limit: float, smallest: float = 0.0) -> tuple[fits.Fitted, list[float]]:
    """What comes of a step that holds ``limit`` by its plan, where XLA needs so much of one plan after the other."""
    asked, left = [], list(needs)

    def again(less: float) -> Any:
        asked.append(less)
        if less < smallest:
            raise TooSmall("no", smallest)
        return step_of(less)

    return fits.fit(step_of(limit), limit, lambda _: left.pop(0), again), asked


def test_the_first_plan_that_keeps_within_the_limit_is_taken() -> None:
    found, asked = fitted([1_200_000, 1_250_000, 990_000], 1e6)
    assert asked == [833_333, 666_666]  # the second plan needs half as much again as it says
    assert (found.needed, found.within, found.tried) == (990_000, 666_666, (1_200_000, 1_250_000, 990_000))
    assert found.step.plan.memory_per_device == 666_666


def test_where_none_keeps_within_it_the_one_that_needs_least_is_taken() -> None:
    found, asked = fitted([1_500_000, 1_300_000, 1_400_000, 1_350_000], 1e6)
    assert len(asked) == 3
    assert (found.needed, found.within, found.is_least) == (1_300_000, 666_666, False)
    found, asked = fitted([1_500_000, 1_300_000], 1e6, smallest=600_000)
    assert len(asked) == 2
    assert (found.needed, found.within, found.is_least) == (1_300_000, 666_666, True)
    found, _ = fitted([1_500_000], 1e6, smallest=900_000)
    assert (found.needed, found.within, found.is_least) == (1_500_000, None, True)


def test_a_step_within_its_limit_or_without_an_account_stays() -> None:
    for needs in (1_000_000, 1_000_900, None):
        found, asked = fitted([needs], 1e6)
        assert not asked and found.within is None


def train_mlp(state: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(lambda s: jnp.mean(jnp.tanh(jnp.tanh(x @ s["a"]) @ s["b"]) ** 2))(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), loss


def tight(**options: Any) -> tuple[Any, Any, float]:
    """A step whose cheapest plan holds what its limit lets it; its state; the limit."""
    state = {"a": jnp.full((128, 1024), 0.01, "float32"), "b": jnp.full((1024, 128), 0.02, "float32")}
    free = sbp.auto_parallel(train_mlp, placement=WHERE, donate_argnums=0).plan(state, WIDE_X)
    limit = 1.01 * free.memory_per_device
    config = sbp.AutoParallelConfig(memory_limit=limit, **options)
    return sbp.auto_parallel(train_mlp, placement=WHERE, donate_argnums=0, config=config), state, limit


def dearer(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """XLA needs so much more than it does."""
    monkeypatch.setattr(function, "account", lambda c: int(by * fits.needed_bytes(c)))


@pytest.mark.parametrize("how", ["called", "lowered"])
def test_what_xla_needs_more_for_is_planned_for_less(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, state, limit = tight()
    first = step.plan(state, WIDE_X)
    by = 1.1 * limit / fits.needed_bytes(first.compile())
    dearer(monkeypatch, by)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if how == "called":
            expected = jax.jit(train_mlp)(state, WIDE_X)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), step(state, WIDE_X), expected)
        else:
            compiled = step.lower(state, WIDE_X).compile()
            assert by * fits.needed_bytes(compiled) <= limit
    state = jax.eval_shape(lambda: {"a": jnp.zeros((128, 1024)), "b": jnp.zeros((1024, 128))})
    plan = step.plan(state, jax.ShapeDtypeStruct(WIDE_X.shape, WIDE_X.dtype))
    assert plan.memory_per_device < 0.95 * first.memory_per_device
    assert by * fits.needed_bytes(plan.compile()) <= limit and plan.verify().exact
    (note,) = [n for n in plan.notes if "as XLA compiled it" in n]
    assert note.startswith("the plan within ")
    assert not any("as XLA compiled it" in n for n in first.notes)


def test_a_plan_for_less_is_searched_once_and_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    step, state, limit = tight()
    by, measured = 1.1 * limit / fits.needed_bytes(step.plan(state, WIDE_X).compile()), []

    def account(compiled: Any) -> int:
        measured.append(by * fits.needed_bytes(compiled))
        return int(measured[-1])

    monkeypatch.setattr(function, "account", account)
    threads = [threading.Thread(target=lambda: step.lower(state, WIDE_X).compile()) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    step(state, WIDE_X)
    assert len(measured) == 2 and measured[1] <= limit < measured[0]


def test_plans_made_again_are_not_other_sets_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    step, state, limit = tight()
    dearer(monkeypatch, 1.1 * limit / fits.needed_bytes(step.plan(state, WIDE_X).compile()))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*th set of argument shapes")
        for n in (512, 504, 496):
            step.lower(state, WIDE_X[:n])


def test_a_step_that_no_plan_is_small_enough_for_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "account", lambda _: 1_250_000)
    step = limited(1e6)
    w = jnp.ones((32, 32))
    with pytest.warns(UserWarning, match=r"train_step was planned for at most .* 1\.250 times the limit \(") as told:
        w, _ = step(w, X)
        step(w, X)
    assert len(told) == 1 and told[0].filename == __file__
    assert "remat='auto'" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limited(None)(jnp.ones((32, 32)), X)


def test_a_given_plan_stays_and_says_what_to_plan_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given = limited(1e6).plan(jnp.ones((32, 32)), X)
    monkeypatch.setattr(function, "account", lambda _: 1_250_000)
    config = sbp.AutoParallelConfig(memory_limit=1e6)
    step = sbp.auto_parallel(train_step, placement=WHERE, donate_argnums=0, config=config, plan=given)
    with pytest.warns(UserWarning, match=r"1\.250 times the limit\. Planned with memory_limit=") as told:
        step(jnp.ones((32, 32)), X)
    (instead,) = re.findall(r"memory_limit=(\d+)", str(told[0].message))
    assert int(instead) == int(given.memory_per_device / 1.25)


def test_what_is_kept_in_a_cache_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    searched, search = [], function.plan_or_rewrite
    monkeypatch.setattr(function, "plan_or_rewrite", lambda *a: (searched.append(1), search(*a))[1])
    found = []
    for _ in range(2):
        step, state, limit = tight(cache=tmp_path)
        if not found:
            dearer(monkeypatch, 1.1 * limit / fits.needed_bytes(step.plan(state, WIDE_X).compile()))
        searched.clear()
        step.lower(state, WIDE_X)
        found.append((len(searched), step.plan(state, WIDE_X).objective))
    assert found[0][0] >= 1 and found[1] == (0, found[0][1])
