"""Static and donated arguments by number and by name, as ``jax.jit`` has them; ``eval_shape``."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.calls.roles import ArgumentRoles

PLACE = sbp.placement("cpu", ranks=np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
X = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def step(state, x, n=2, *, mode="mul", scale=1.0):
    y = x * n if mode == "mul" else x + n
    return {"w": state["w"] + y * scale}, (y * scale).sum()


def fresh() -> dict[str, jax.Array]:
    return {"w": jnp.asarray(X)}


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 2, "static_argnames": "mode"},
        {"static_argnames": ("n", "mode")},
        {"static_argnames": ("n", "mode"), "donate_argnums": 0},
        {"static_argnames": ["mode", "n"], "donate_argnames": "state"},
        {"static_argnums": (2,), "static_argnames": "mode", "donate_argnames": ["state"]},
    ],
)
def test_as_jit(options: dict[str, Any]) -> None:
    calls = [
        ((X, 2), {}), ((X,), {"n": 3, "mode": "add"}), ((X,), {}), ((), {"x": X, "n": 2, "scale": jnp.float32(2)}),
        ((X, 2), {"mode": "add"}),
    ]  # fmt: skip
    names = {k: v for k, v in options.items() if k != "static_argnums"}
    plain = jax.jit(step, static_argnums=options.get("static_argnums"), **names)
    planned = sbp.auto_parallel(step, placement=PLACE, **options)
    for args, kwargs in calls:
        want, got = plain(fresh(), *args, **kwargs), planned(fresh(), *args, **kwargs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


def test_a_donated_argument_given_by_name_is_donated() -> None:
    planned = sbp.auto_parallel(step, placement=PLACE, donate_argnames="state", static_argnames=("n", "mode"))
    state, _ = planned(state=fresh(), x=X)
    new, _ = planned(state=state, x=X)
    assert state["w"].is_deleted() and not new["w"].is_deleted()


def test_a_donated_keyword_only_argument() -> None:
    def f(x, *, state, other):
        return state + x, other.sum()

    planned = sbp.auto_parallel(f, placement=PLACE, donate_argnames="state")
    state, _ = planned(X, state=jnp.asarray(X), other=jnp.ones(3))
    again, total = planned(X, state=state, other=jnp.ones(3))
    assert state.is_deleted() and float(total) == 3
    np.testing.assert_allclose(again, 3 * X)
    plan = planned.plan(X, state=again, other=jnp.ones(3))
    signatures = {leaf.path: str(leaf.signature) for leaf in plan.inputs}
    assert signatures["state"] == str(plan.outputs[0].signature)
    assert plan.verify(planned.lower(X, state=again, other=jnp.ones(3)).compile()).exact


def test_plan_takes_them_all() -> None:
    shapes = {"w": jax.ShapeDtypeStruct((8, 8), "float32")}, jax.ShapeDtypeStruct((8, 8), "float32")
    plan = sbp.plan(step, *shapes, 3, placement=PLACE, static_argnums=2, static_argnames="mode", mode="add")
    assert [leaf.path for leaf in plan.inputs] == ["0/w", "1"]
    pinned = {"w": "S(0), S(1)"}
    by_name = sbp.plan(step, *shapes, placement=PLACE, donate_argnames="state", static_argnames=("n", "mode"), n=4,
                       in_sbp=(pinned, None))  # fmt: skip
    assert str(by_name.outputs[0].signature) == "S(0), S(1)"


def test_plan_of_a_planned_function_keeps_its_options() -> None:
    planned = sbp.auto_parallel(step, placement=PLACE, donate_argnums=0, static_argnames=("n", "mode"),
                                in_sbp=({"w": "S(0), S(1)"}, None))  # fmt: skip
    plan = sbp.plan(planned, fresh(), X, n=3)
    assert plan.placement == PLACE and str(plan.outputs[0].signature) == "S(0), S(1)"
    other = sbp.placement("cpu", ranks=range(8), axis_names="all")
    elsewhere = sbp.plan(planned, fresh(), X, placement=other, in_sbp=({"w": "S(1)"}, None))
    assert elsewhere.placement == other and str(elsewhere.outputs[0].signature) == "S(1)"


def test_eval_shape() -> None:
    planned = sbp.auto_parallel(step, placement=PLACE, static_argnames=("n", "mode"), donate_argnames="state")
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (fresh(), X))
    want = jax.eval_shape(step, *shapes)
    looks = [(x.shape, x.dtype) for x in jax.tree.leaves(want)]
    for got in (planned.eval_shape(*shapes, n=2), planned.eval_shape(*shapes, 2, mode="add"),
                jax.eval_shape(planned, *shapes)):  # fmt: skip
        assert jax.tree.structure(got) == jax.tree.structure(want)
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(got)] == looks
    apart = sbp.auto_parallel(step, placement=sbp.placement.abstract((2, 4), ("dp", "tp"), "h100"))
    assert jax.tree.leaves(apart.eval_shape(*shapes))[0].shape == (8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"static_argnums": 7},
            r"static_argnums/static_argnames \[7\]: step has the arguments state, x, n, mode, scale",
        ),
        ({"donate_argnames": "sate"}, r"donate_argnums/donate_argnames \['sate'\]: step has the arguments state"),
        ({"donate_argnames": "x", "static_argnums": 1}, r"arguments 1, x are static and donated"),
    ],
)
def test_what_the_function_does_not_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sbp.PlanError, match=message):
        sbp.auto_parallel(step, placement=PLACE, **options)


def test_unhashable_static_arguments() -> None:
    planned = sbp.auto_parallel(step, placement=PLACE, static_argnames=("n", "mode"))
    with pytest.raises(sbp.PlanError, match=r"argument number 2 of step must be hashable, as for jax.jit; got list"):
        planned(fresh(), X, [2])
    with pytest.raises(sbp.PlanError, match="static argument mode of step must be hashable"):
        planned(fresh(), X, mode=["add"])
    with pytest.raises(TypeError, match=r"step\(\) missing a required argument: 'state'"):
        planned(x=X, n=2)


def test_functions_without_a_signature_and_with_any_arguments() -> None:
    def any_(*args, **kwargs):
        return args[0] * args[1] + kwargs.get("y", 0)

    planned = sbp.auto_parallel(any_, placement=PLACE, static_argnums=1, static_argnames="y")
    np.testing.assert_allclose(planned(X, 3, y=1), 3 * X + 1)
    np.testing.assert_allclose(planned(X, 2), 2 * X)
    roles = ArgumentRoles.of(any_, -1)
    assert roles.call((1, 2, 3), {}).donated == (2,) and roles.call((1, 2), {}).donated == (1,)
