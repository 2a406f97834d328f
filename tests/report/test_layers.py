"""Nodes are attributed to layers by parameters' paths, module names and neighbours; layers of one look are folded."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.paths import folders
from sbp_jax.planner.output.layers import _read
from sbp_jax.report.layers import rows


def test_two_layers_and_a_loss(plan: sbp.Plan) -> None:
    found = {r.name: r for r in rows(plan)}
    assert list(found) == ["up", "down", "(loss)", "(inputs)"]
    up, down = found["up"], found["down"]
    assert [(x.path, str(x.signature)) for x in up.parameters] == [
        ("state/params/up/b", "S(0)"),
        ("state/params/up/w", "S(1)"),
    ]
    assert [(x.path, str(x.signature)) for x in down.parameters] == [
        ("state/params/down/b", "B"),
        ("state/params/down/w", "S(0)"),
    ]
    assert [str(a.signature) for a in up.activations] == ["S(1)"]
    assert [str(a.signature) for a in down.activations] == ["P"]
    # The one sum between them is made by the second product; nothing else is sent.
    assert down.boxing_bytes == plan.bytes_on_wire > 0 and up.boxing_bytes == 0
    # Parameters and momentum, an eighth of both matrices.
    assert up.kept_bytes == pytest.approx(2 * 4 * (1024 * 8192 + 8192) / 8)
    assert all(up.compute[phase] > 0 for phase in ("forward", "backward", "update"))


def test_rows_hold_all_of_the_plan(plan: sbp.Plan) -> None:
    found = rows(plan)
    assert sum(r.boxing_seconds for r in found) == pytest.approx(plan.boxing_seconds)
    assert sum(r.compute_seconds for r in found) == pytest.approx(plan.compute_seconds, rel=1e-3)
    assert sum(r.peak_bytes for r in found) == pytest.approx(plan.memory_per_device)
    facts = plan.facts()
    assert facts is not None
    waited = sum(r.exposed_seconds for r in rows(plan, facts.exposed))
    assert waited == pytest.approx(facts.exposed_seconds, abs=1e-12)


def test_arguments_have_kinds(plan: sbp.Plan) -> None:
    kinds = dict(zip([x.path for x in plan.inputs], plan.insight.argument_kinds, strict=True))
    assert kinds["0/params/up/w"] == "parameters" and kinds["0/momentum/up/w"] == "optimizer state"
    assert kinds["1/x"] == "batch"
    layers = dict(zip([x.path for x in plan.inputs], plan.insight.argument_layers, strict=True))
    assert layers["0/momentum/down/b"] == "down" and layers["1/y"] == "(inputs)"


class _Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        for _ in range(3):
            x = nn.relu(nn.Dense(256)(x))  # a flax layer
        return nn.Dense(8, name="head")(x)


def test_flax_modules_are_layers_and_lines_are_the_users() -> None:
    net = _Net()
    x = jax.ShapeDtypeStruct((65536, 256), jnp.float32)
    params = jax.eval_shape(net.init, jax.random.key(0), x)

    def step(params: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(lambda p: jnp.mean(jnp.asarray(net.apply(p, x)) ** 2))(params)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    where = sbp.placement.abstract((4,), axis_names=("dp",), cluster="h100")
    plan = sbp.plan(step, params, x, placement=where, donate_argnums=0, in_sbp=(None, "S(0)"))
    found = {r.title: r for r in rows(plan)}
    assert {"Dense_0..2 x3", "head"} <= set(found)
    assert sorted(found["Dense_0..2 x3"].layers) == ["Dense_0", "Dense_1", "Dense_2"]
    moved = [b for b in plan.boxings() if b.collective != "none"]
    # Gradients are summed: each is made on a line of this file, and of no other.
    assert moved and all(b.user.startswith("test_layers.py:") for b in moved)
    assert {b.source.split(":")[0] for b in moved} <= {"test_layers.py", ""}  # "": an argument
    assert any(b.source.endswith("(_Net.__call__)") for b in moved)


def test_named_scopes_divide_a_layer() -> None:
    def step(params: Any, x: jax.Array) -> Any:
        def loss(p: Any) -> jax.Array:
            h = x @ p["other"]["c"]
            for q in p["blocks"]:
                with jax.named_scope("attention"):
                    h = jnp.tanh(h @ q["a"])
                with jax.named_scope("mlp"):
                    h = jnp.tanh(h @ q["b"])
            return jnp.sum(h)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    params = {"blocks": [{"a": w, "b": w} for _ in range(2)], "other": {"c": w}}
    where = sbp.placement.abstract((2,), cluster="h100")
    plan = sbp.plan(step, params, jax.ShapeDtypeStruct((8, 64), jnp.float32), placement=where, donate_argnums=0)
    names = {s.layer for s in plan.insight.spots}
    assert {f"blocks/{k}/{part}" for k in range(2) for part in ("attention", "mlp")} <= names, names


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["0/params/blocks/0/w", "0/params/embed/t"], ["blocks/0", "embed"]),
        (["0/params/0/w", "0/params/1/w"], ["params/0", "params/1"]),
        (["0/w1", "0/w2"], ["w1", "w2"]),
        (["0/a/k", "0/bias"], ["a", "bias"]),
        (["0/0/0", "0/0/1", "0/2/0"], ["0/0", "0/0", "0/2"]),  # a list of (weight, bias)
        (["0/0", "0/1"], ["0/0", "0/1"]),
        (["teacher/head/k", "student/head/k"], ["teacher/head", "student/head"]),
        (["0/net/up/k", "0/net/down/k"], ["net/up", "net/down"]),
        ([], []),
    ],
)
def test_names_of_layers(paths: list[str], names: list[str]) -> None:
    assert folders(paths) == names


@pytest.mark.parametrize(
    ("stack", "found"),
    [
        ("jvp(Model)/Dense_0", (0, ("Model", "Dense_0"))),
        ("transpose(jvp(Model))/Dense_0", (1, ("Model", "Dense_0"))),
        ("jvp(bqhd,bkhd->bhqk)", (0, ())),
        ("", (-1, ())),
        ("transpose(jvp())/rematted_computation", (1, ())),
    ],
)
def test_name_stacks_are_read(stack: str, found: Any) -> None:
    assert _read(stack) == found


def test_insight_survives_json(plan: sbp.Plan, loaded: sbp.Plan) -> None:
    assert loaded.insight == plan.insight and loaded.hardware == plan.hardware
    assert len(plan.insight.node_spots) == len(plan.nodes)
    assert np.isfinite([a.seconds for d in plan.insight.decisions for a in d.alternatives]).all()
