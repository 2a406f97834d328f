"""Reports call arguments by the names that the function gives them, and every name printed is understood."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import sbp_jax as sbp
from sbp_jax.report.layers import rows
from sbp_jax.report.summary import argument_groups

WHERE = sbp.placement("cpu", ranks=[[0, 1, 2, 3], [4, 5, 6, 7]], axis_names=("dp", "tp"))


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def step(w1: Any, w2: Any, x: Any) -> Any:
    loss, (g1, g2) = jax.value_and_grad(lambda a, b: jnp.sum(jnp.tanh(x @ a) @ b), (0, 1))(w1, w2)
    return w1 - 0.1 * g1, w2 - 0.1 * g2, loss


@pytest.fixture(scope="module")
def plan() -> sbp.Plan:
    return sbp.plan(step, shape(512, 1024), shape(1024, 512), shape(64, 512), placement=WHERE, donate_argnums=(0, 1))


def layer_names(plan: sbp.Plan) -> list[str]:
    return [r.name for r in rows(plan) if r.parameters]


def printed(plan: sbp.Plan) -> set[str]:
    return {name for name, _, _ in argument_groups(plan)}


def test_bare_arrays_go_by_their_names(plan: sbp.Plan) -> None:
    assert layer_names(plan) == ["w1", "w2"] and printed(plan) == {"w1", "w2", "x"}
    assert [leaf.path for leaf in plan.inputs] == ["0", "1", "2"]  # by number, as JAX has them
    text = str(plan)
    assert "w1 [512,1024]" in text and not any(line.split()[:1] in (["0"], ["1"], ["2"]) for line in text.splitlines())
    for name in ("w1", "w2"):
        assert f">{name}<" in plan._repr_html_()
    assert plan.explain("x").kind == "argument" and plan.explain("2").items == plan.explain("x").items
    assert plan.explain("w1").kind == "layer" and "w2 float32[1024,512]" in str(plan.explain("1"))


def test_an_alternative_of_what_a_layer_and_an_argument_are_called_is_the_arguments(plan: sbp.Plan) -> None:
    other = plan.explain("w1", alternative="B, B").replanned
    assert other is not None and str(other.plan.inputs[0].signature) == "B, B"
    with pytest.raises(sbp.PlanError, match=r"\(P, P\) is not among the signatures of w1\. Possible"):
        plan.explain("w1", alternative="P, P")


def test_names_stay_with_a_saved_plan_and_one_without_names_loads(plan: sbp.Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    loaded = sbp.Plan.load(tmp_path / "plan.json")
    assert layer_names(loaded) == ["w1", "w2"] and printed(loaded) == {"w1", "w2", "x"}
    data = json.loads((tmp_path / "plan.json").read_text())
    del data["argument_names"]  # as versions before wrote it
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert printed(sbp.Plan.load(tmp_path / "plan.json")) == {"0", "1", "2"}


def test_a_plan_is_for_a_function_with_other_names_too(plan: sbp.Plan) -> None:
    def same(up: Any, down: Any, batch: Any) -> Any:
        return step(up, down, batch)

    found = sbp.auto_parallel(same, plan=plan, donate_argnums=(0, 1)).plan(*(shape(*x.shape) for x in plan.inputs))
    assert found.fingerprint == plan.fingerprint


def test_the_cache_keeps_plans_apart_by_names(tmp_path: Path) -> None:
    def scaled(x: Any, by: Any) -> Any:
        return x * by

    def scaled_otherwise(values: Any, factor: Any) -> Any:
        return values * factor

    config = sbp.AutoParallelConfig(cache=tmp_path)
    found = [sbp.plan(f, shape(64, 64), shape(64), placement=WHERE, config=config) for f in (scaled, scaled_otherwise)]
    assert [printed(p) for p in found] == [{"x", "by"}, {"values", "factor"}]


def test_lists_dictionaries_keywords_and_the_rest() -> None:
    def f(params: Any, kind: str, *rest: Any, scale: Any) -> Any:
        return (rest[0] @ params["w"][0] + rest[1]) * scale

    plan = sbp.plan(
        f, {"w": [shape(64, 64)]}, "relu", shape(8, 64), shape(64), scale=shape(), placement=WHERE, static_argnums=1
    )
    assert printed(plan) == {"params/w/0", "rest/0", "rest/1", "scale"}
    for name in ("params/w/0", "w/0", "0/w/0", "rest/1", "2", "rest/0..1", "scale"):
        assert plan.explain(name).items, name


def test_pins_take_the_names_that_are_printed(plan: sbp.Plan) -> None:
    pinned = sbp.plan(
        step, *(shape(*x.shape) for x in plan.inputs), placement=WHERE, donate_argnums=(0, 1),
        pins={"w1": "B, S(0)", "1": "B, B"},
    )  # fmt: skip
    assert [str(x.signature) for x in pinned.inputs[:2]] == ["B, S(0)", "B, B"]


def test_a_function_whose_names_python_does_not_know_keeps_numbers() -> None:
    class Nameless:
        __name__ = "nameless"
        __signature__ = "none"

        def __call__(self, *args: Any) -> Any:
            return args[0] @ args[1]

    plan = sbp.plan(Nameless(), shape(64, 64), shape(64, 64), placement=WHERE)
    assert printed(plan) == {"0", "1"}


def test_objects_of_flax_go_by_the_users_names() -> None:
    def run(model: nnx.Linear, inputs: Any) -> jax.Array:
        return model(inputs)

    where = sbp.placement("cpu", ranks=np.arange(2), axis_names=("tp",))
    plan = sbp.flax.jit(run, placement=where).plan(nnx.Linear(16, 8, rngs=nnx.Rngs(0)), np.ones((4, 16), np.float32))
    assert {"model/kernel", "inputs"} <= printed(plan) and not any(x[0].isdigit() for x in printed(plan))
