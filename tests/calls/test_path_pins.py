"""Pins by path for plain functions: ``auto_parallel(pins=)`` and ``plan(pins=)``."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import sbp_jax as sbp

PLACE = sbp.placement("cpu", ranks=np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
TX = optax.adam(1e-2)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PARAMS = {"blocks": [{"kernel": f32(16, 16), "bias": f32(16)} for _ in range(3)], "head": {"kernel": f32(16, 8)}}
STATE = jax.eval_shape(TX.init, PARAMS)
ARGS = PARAMS, STATE, f32(32, 16)


def loss(params, x):
    for block in params["blocks"]:
        x = jnp.tanh(x @ block["kernel"] + block["bias"])
    return jnp.mean((x @ params["head"]["kernel"]) ** 2)


def step(params, opt_state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def plan(pins: Any, **options: Any) -> dict[str, str]:
    found = sbp.plan(step, *ARGS, placement=PLACE, donate_argnums=(0, 1), pins=pins, **options)
    return {leaf.path: str(leaf.signature) for leaf in found.inputs}


@pytest.mark.parametrize("key", ["head/kernel", "params/head/kernel", "0/head/kernel", "head/*", "**/head/kernel"])
def test_a_key_is_any_name_of_the_path(key: str) -> None:
    found = plan({key: "B, S(1)"})
    assert found["0/head/kernel"] == "B, S(1)"
    assert found["1/0/mu/head/kernel"] == found["1/0/nu/head/kernel"] == "B, S(1)", "the optimizer follows"


def test_stars_ranges_and_what_is_more_specific() -> None:
    found = plan(
        {"blocks/*/kernel": P("dp", "tp"), "blocks/1/kernel": "B, S(0)", "x": P("dp"), "blocks/0..1/bias": "B, B"}
    )
    assert [found[f"0/blocks/{k}/kernel"] for k in range(3)] == ["S(0), S(1)", "B, S(0)", "S(0), S(1)"]
    assert found["2"] == "S(0), B" and found["0/blocks/0/bias"] == found["0/blocks/1/bias"] == "B, B"


def test_they_count_before_in_sbp_and_none_is_the_planners() -> None:
    whole = jax.tree.map(lambda _: "B, B", PARAMS)
    found = plan({"head/kernel": "B, S(1)", "blocks/0/kernel": None}, in_sbp=(whole, None, None))
    assert found["0/head/kernel"] == "B, S(1)" and found["0/blocks/1/kernel"] == "B, B"
    free = plan(None)
    assert plan({"**": None}, in_sbp=(whole, None, None)) == free
    ignored = sbp.AutoParallelConfig(ignore_user_sbp=True)
    assert plan({"head/kernel": "S(0), S(1)"}, config=ignored) == plan(None, config=ignored)


def test_arguments_by_name_and_a_planned_function() -> None:
    def f(x, *, weights):
        return x @ weights["w"]

    planned = sbp.auto_parallel(f, placement=PLACE, pins={"weights/w": "B, S(1)"})
    x, w = np.ones((8, 8), np.float32), np.eye(8, dtype=np.float32)
    assert np.array_equal(planned(x, weights={"w": w}), x)
    plan = planned.plan(x, weights={"w": w})
    assert {leaf.path: str(leaf.signature) for leaf in plan.inputs}["weights/w"] == "B, S(1)"
    other = sbp.plan(planned, x, weights={"w": w}, pins={"w": "S(0), S(1)"})
    assert {leaf.path: str(leaf.signature) for leaf in other.inputs}["weights/w"] == "S(0), S(1)"
    open_ = sbp.plan(planned, x, weights={"w": w}, pins={"w": P(P.UNCONSTRAINED, "tp")})
    assert {leaf.path: str(leaf.signature) for leaf in open_.inputs}["weights/w"] in ("B, S(1)", "S(0), S(1)")


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"head/kernl": "B, S(1)"}, r"pins: no variable matches 'head/kernl' \(did you mean .*head/kernel"),
        ({"params/head/kernl": "B, S(1)"}, r"pins: no variable matches .* \(did you mean params/head/kernel"),
        (
            {"head/kernel": "S(0)"},
            r"pins\['head/kernel'\] for params/head/kernel: signature .* has 1 comp",
        ),
        ({"head/kernel": "S(3), B"}, r"pins\['head/kernel'\] for params/head/kernel: .*rank 2"),
        ({"blocks/*/kernel": "B, B", "blocks/1/*ernel": "S(0), B", "blocks/1/kerne*": "B, S(0)"}, "neither is"),
        ("B, B", "pins is a dictionary of signatures by path, got str"),
    ],
)
def test_what_cannot_be(pins: Any, message: str) -> None:
    with pytest.raises(sbp.SbpError, match=message):
        plan(pins)


def test_a_dictionary_by_path_given_as_in_sbp_is_told_where_it_belongs() -> None:
    with pytest.raises(sbp.PlanError, match=r"a dictionary by path \('\*\*/kernel'\) is pins=\{\.\.\.\}"):
        sbp.plan(
            lambda state, x: (state[0]["kernel"] * x.sum(), state[1]),
            ({"kernel": jax.ShapeDtypeStruct((8, 8), "float32")}, jax.ShapeDtypeStruct((), "int32")),
            jax.ShapeDtypeStruct((8,), "float32"),
            placement=sbp.placement.abstract((8,), cluster="h100"), in_sbp={"**/kernel": "S(0)"},
        )  # fmt: skip
