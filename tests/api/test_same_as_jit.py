"""What a planned function is compiled for, and what it gives, are ``jax.jit``'s: types, statics, settings of JAX."""

import contextlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import sbp_jax as sbp

# Arguments of many types are what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*is planned and compiled for the")
P8 = sbp.placement("cpu", list(range(8)), axis_names=("dp",))
BF = jnp.ones((8, 8), jnp.bfloat16)


def looks(x: Any) -> Any:
    return [(a.shape, a.dtype, a.weak_type) for a in jax.tree.leaves(x)]


def same(fn: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> None:
    """One planned function and one jitted one, called with the same in turn, give the same types and values."""
    planned, jitted = sbp.auto_parallel(fn, placement=P8, **options), jax.jit(fn, **options)
    for args in (*calls, *calls):
        wanted, found = jitted(*args), planned(*args)
        assert looks(found) == looks(wanted), args
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2), found, wanted)


@pytest.mark.parametrize("inside", [False, True])
def test_weak_types_of_arguments(inside: bool) -> None:
    def step(x, y):
        return x * y

    calls = [
        (BF, 2.0), (BF, np.float32(2)), (BF, jnp.asarray(2.0)), (BF, jnp.float32(2)), (BF, 2), (BF, jnp.int32(2)),
        (BF, True), (BF, np.ones(8)), (BF, 2.0),
    ]  # fmt: skip
    if not inside:
        return same(step, *calls)
    planned = sbp.auto_parallel(step, placement=P8)
    for args in calls:
        assert looks(jax.jit(planned)(*args)) == looks(jax.jit(step)(*args))


def test_weak_types_of_results() -> None:
    same(
        lambda x: (x + 1, x * 1.0, x, 2.0, 3, jnp.float32(1), x.astype(jnp.float32), True),
        (1,),
        (1.0,),
        (jnp.ones(()),),
    )
    same(lambda n, x: jax.lax.scan(lambda c, r: (c + 1, r * c), n, x), (0, jnp.ones(8)), (jnp.int32(0), jnp.ones(8)))
    same(lambda c: {"a": jax.lax.cond(c > 0, lambda: 1.0, lambda: 2.0), "b": jnp.sum(c)}, (1,), (1.0,))


def test_results_that_are_fed_back_keep_their_types() -> None:
    def count(n, w):
        return n + 1, w * (n + 1)

    planned = sbp.auto_parallel(count, placement=P8, donate_argnums=1)
    n: Any = 0
    w = jnp.ones(8, jnp.bfloat16)
    for _ in range(3):
        n, w = planned(n, w)
    assert n.weak_type and w.dtype == jnp.bfloat16 and n == 3
    assert len(planned._entries) == 1


def compiled(run: Callable[[], Any]) -> int:
    count = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            count.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        run()
    finally:
        jax.monitoring.clear_event_listeners()
    return len(count)


def test_a_linen_train_state_compiles_once() -> None:
    model = nn.Dense(8)
    x = np.ones((16, 8), np.float32)
    state = TrainState.create(apply_fn=model.apply, params=model.init(jax.random.key(0), x), tx=optax.adam(1e-3))

    @sbp.auto_parallel(placement=P8, donate_argnums=0)
    def step(state, x):
        loss, g = jax.value_and_grad(lambda p: jnp.mean(state.apply_fn(p, x) ** 2))(state.params)
        return state.apply_gradients(grads=g), loss

    first, _ = step(state, x)

    def rest() -> None:
        state = first
        for _ in range(3):
            state, _ = step(state, x)

    assert compiled(rest) == 0
    assert len(step._entries) == 1


def test_statics_are_compared_by_type_and_value() -> None:
    def power(x, p):
        return x * p, jnp.asarray(p), jnp.asarray(p[0] if isinstance(p, tuple) else p) * BF

    statics = [2, 2.0, True, 1, 1.0, np.float32(2), 0.0, False]
    same(power, *((jnp.ones(8, jnp.int32), s) for s in statics), static_argnums=1)
    planned = sbp.auto_parallel(lambda x, p: x * p[0], placement=P8, static_argnums=1)
    assert [planned(jnp.ones(8, jnp.int32), (s,)).dtype for s in (2, 2.0, 2)] == [jnp.int32, jnp.float32, jnp.int32]


def f32_matmul(x, w):
    return x @ w


@pytest.mark.parametrize(
    ("fn", "args", "context"),
    [
        (lambda x: jnp.arange(3) + x, (np.ones(3),), lambda: jax.enable_x64(True)),
        (lambda x: x + 1, (1,), lambda: jax.enable_x64(True)),
        (lambda x: jax.random.normal(jax.random.key(0), (8,)) + x, (1.0,), lambda: jax.threefry_partitionable(False)),
        (lambda x: jax.random.key_data(jax.random.key(0)), (1.0,), lambda: jax.default_prng_impl("rbg")),
        (f32_matmul, (np.ones((8, 8), np.float32),) * 2, lambda: jax.default_device(jax.devices()[3])),
        (f32_matmul, (np.ones((8, 8), np.float32),) * 2, lambda: jax.set_mesh(jax.make_mesh((8,), ("x",)))),
    ],
)  # fmt: skip
def test_settings_of_jax_are_followed(fn, args, context) -> None:
    planned, jitted = sbp.auto_parallel(fn, placement=P8), jax.jit(fn)
    for around in (contextlib.nullcontext, context, contextlib.nullcontext, context):
        with around():
            found, wanted = planned(*args), jitted(*args)
            assert looks(found) == looks(wanted)
            np.testing.assert_allclose(found, wanted)


def test_the_default_matmul_precision_is_followed() -> None:
    x = np.ones((8, 8), np.float32)
    planned = sbp.auto_parallel(f32_matmul, placement=P8)

    def precision() -> bool:
        return "highest" in planned.lower(x, x).as_text().lower()

    planned(x, x)
    assert not precision()
    with jax.default_matmul_precision("float32"):
        planned(x, x)
        assert precision()
        assert "highest" in planned.bare()[0].lower(x, x, planned.bare()[1]).as_text().lower()
    assert not precision()


@pytest.mark.parametrize(
    ("fn", "context"),
    [
        (lambda x: x + jnp.ones(8), lambda: jax.numpy_rank_promotion("raise")),
        (lambda x: x + jnp.ones((8, 8), jnp.int32), lambda: jax.numpy_dtype_promotion("strict")),
    ],
)
def test_promotions_that_are_not_allowed_raise(fn, context) -> None:
    planned, jitted, x = sbp.auto_parallel(fn, placement=P8), jax.jit(fn), jnp.ones((8, 8))
    with jax.numpy_rank_promotion("allow"):
        for _ in range(2):
            planned(x)
            with context():
                for f in (jitted, planned):
                    with pytest.raises((ValueError, TypeError), match="promotion"):
                        f(x)


def test_planning_and_lowering_work_where_promotion_is_strict() -> None:
    def step(w, x):
        loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.square(x @ w)))(w)
        return w - jnp.float32(0.1) * g, loss

    w, x = jnp.ones((7, 8)), jnp.ones((9, 7))
    with jax.numpy_dtype_promotion("strict"):
        planned = sbp.auto_parallel(step, placement=P8, donate_argnums=0)
        np.testing.assert_allclose(planned(w, x)[1], 49.0)


def test_a_setting_that_changes_nothing_is_not_planned_for_again() -> None:
    planned = sbp.auto_parallel(f32_matmul, placement=P8)
    x = np.ones((8, 8), np.float32)
    plan = planned.plan(x, x)
    with jax.default_device(jax.devices()[3]):
        other = planned.plan(x, x)
    assert len(planned._entries) == 2 and other.planning_seconds == plan.planning_seconds


def test_a_plan_made_under_other_settings_says_so_when_compiled() -> None:
    with jax.enable_x64(True):
        plan = sbp.plan(lambda x: x + 1, np.ones(8), placement=P8)
        assert plan.verify().ok
    with pytest.raises(sbp.PlanError, match="other settings of JAX"):
        plan.verify()
    with jax.default_matmul_precision("float32"):
        plan = sbp.plan(f32_matmul, np.ones((8, 8), np.float32), np.ones((8, 8), np.float32), placement=P8)
    assert plan.verify().ok


def test_calls_that_take_turns_are_each_found() -> None:
    traced = []

    @sbp.auto_parallel(placement=P8)
    def f(x):
        traced.append(x.shape)
        return x.sum()

    for n in (8, 16) * 4:
        assert f(jnp.ones(n)) == n
    assert len(traced) == 2
