"""A plan taken into plain JAX: ``plan.shardings()`` in ``jax.jit``, without the library's own step."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import sbp_jax as sbp

WHERE = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
X = np.linspace(-1, 1, 64 * 16, dtype=np.float32).reshape(64, 16)


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"w1": (16, 128), "w2": (128, 16)}
    return {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()} | {"step": np.zeros((), np.int32)}


def train_step(state: dict[str, Any], x: Any) -> Any:
    def loss(w: dict[str, Any]) -> Any:
        return jnp.square(jnp.tanh(x @ w["w1"]) @ w["w2"] - x).mean()

    value, gradient = jax.value_and_grad(loss)({k: state[k] for k in ("w1", "w2")})
    new = {k: state[k] - 0.1 * g for k, g in gradient.items()}
    return {**new, "step": state["step"] + 1}, value


def test_shardings_are_what_jit_takes() -> None:
    plan = sbp.plan(train_step, weights(), X, placement=WHERE, donate_argnums=0)
    arguments, results = plan.shardings()
    step = jax.jit(train_step, in_shardings=arguments, out_shardings=results, donate_argnums=0)
    state, expected = weights(), weights()
    for _ in range(2):
        state, loss = step(state, X)
        expected, wanted = jax.jit(train_step)(expected, X)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    specs = plan.partition_specs()[1][0]
    for name, x in state.items():
        assert x.sharding == NamedSharding(WHERE.mesh, specs[name])
        np.testing.assert_allclose(x, expected[name], rtol=1e-5, atol=1e-6)
    assert jax.tree.structure(arguments) == jax.tree.structure((weights(), X))
    assert any(spec != PartitionSpec(None, None) for name, spec in specs.items() if name != "step")


def test_shardings_with_keyword_arguments() -> None:
    def fn(x: Any, *, scale: Any) -> Any:
        return {"y": x * scale}

    plan = sbp.plan(fn, X, scale=X, placement=WHERE, in_sbp=("S(0), B",))
    arguments, results = plan.shardings()
    assert jax.tree.structure(arguments) == jax.tree.structure(((X,), {"scale": X}))
    assert arguments[0][0].spec == PartitionSpec("dp", None)
    jitted = jax.jit(lambda args, kwargs: fn(*args, **kwargs), in_shardings=arguments, out_shardings=results)
    y = jitted((X,), {"scale": X})["y"]
    assert y.sharding == results["y"]
    np.testing.assert_allclose(y, X * X)


def test_shardings_leave_static_arguments_and_constants_out() -> None:
    table = jnp.arange(16.0)

    def fn(n: int, x: Any) -> Any:
        return x * n + table

    parallel = sbp.auto_parallel(fn, placement=WHERE, static_argnums=0, in_sbp=("S(0), B",))
    arguments, results = parallel.plan(3, X).shardings()
    assert len(arguments) == 1
    jitted = jax.jit(fn, static_argnums=0, in_shardings=arguments, out_shardings=results)
    np.testing.assert_allclose(jitted(3, X), X * 3 + np.arange(16.0))


def test_shardings_of_a_plan_from_a_file(tmp_path: Path) -> None:
    plan = sbp.plan(train_step, weights(), X, placement=WHERE, donate_argnums=0)
    plan.save(tmp_path / "plan.json")
    arguments, results = sbp.Plan.load(tmp_path / "plan.json").shardings()
    state, batch = plan.shardings()[0]
    assert arguments == {"0/step": state["step"], "0/w1": state["w1"], "0/w2": state["w2"], "1": batch}
    assert set(results) == {"0/step", "0/w1", "0/w2", "1"}


def test_shardings_of_arrays_without_elements_and_of_random_keys() -> None:
    def fn(key: Any, empty: Any, x: Any) -> Any:
        return jax.random.fold_in(key, 1), empty, x + jax.random.normal(key, x.shape)

    args = (jax.random.key(0), np.zeros((8, 0), np.float32), X)
    plan = sbp.plan(fn, *args, placement=WHERE, in_sbp=(None, "S(0), B", "S(0), B"))
    arguments, results = plan.shardings()
    assert arguments[1].spec == results[1].spec == PartitionSpec()
    step = jax.jit(fn, in_shardings=arguments, out_shardings=results)
    key, empty, y = step(*args)
    assert step(key, empty, y)[1].shape == (8, 0)  # what it returns, it takes
    np.testing.assert_allclose(y, fn(*args)[2], rtol=1e-6)


def test_shardings_need_devices() -> None:
    nowhere = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="h100")
    plan = sbp.plan(train_step, weights(), X, placement=nowhere)
    with pytest.raises(sbp.PlanError, match=r"train_step is for abstract h100\[dp=2, tp=4\].*partition_specs"):
        plan.shardings()
