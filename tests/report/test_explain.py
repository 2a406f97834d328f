"""plan.explain: the choice, who makes and uses it, what else it could have been and what that would cost."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
from report_case import line_of, make
from sbp_jax.report.layers import rows


def test_an_argument_with_its_alternatives(plan: sbp.Plan) -> None:
    found = plan.explain("0/params/up/w")
    assert found.kind == "argument" and len(found.items) == 1
    d = found.items[0].decision
    assert str(d.signature) == "S(1)" and d.shape == (1024, 8192)
    assert {str(a.signature) for a in d.alternatives} == {"S(0)", "B"}
    # The plan is optimal: no single change makes it cheaper.
    assert all(a.seconds >= 0 for a in d.alternatives)
    # Whole on every device it takes 7/8 of parameters (and momentum need not follow).
    whole = next(a for a in d.alternatives if str(a.signature) == "B")
    assert whole.peak_bytes > 0 and whole.boxing_seconds > 0
    text = str(found)
    assert "state/params/up/w float32[1024,8192] is (S(1))" in text and line_of("the first product") in text


def test_alternatives_are_the_programs_own_costs(plan: sbp.Plan) -> None:
    """A decision changed with all else as it is: planning again can only be cheaper."""
    for a in plan.explain("0/params/up/w").items[0].decision.alternatives:
        true = plan.explain("0/params/up/w", alternative=str(a.signature)).replanned
        assert true is not None and true.signature == str(a.signature)
        assert -1e-12 <= true.step_seconds <= a.seconds * (1 + 1e-3) + 1e-9
        assert true.plan.signatures()[0]  # a plan like any other
        assert str(next(x for x in true.plan.inputs if x.path == "0/params/up/w").signature) == str(a.signature)


def test_a_layer_a_line_a_value(plan: sbp.Plan) -> None:
    layer = plan.explain("down")
    assert layer.kind == "layer"
    product = next(x for x in layer.items if x.decision.op == "dot_general" and x.decision.shape == (16, 1024))
    assert str(product.decision.signature) == "P" and product.where == ("down, forward",)
    assert [str(s) for s in product.decision.reads] == ["S(1)", "S(0)"]
    (boxing,) = product.boxings
    assert boxing.first.collective == "all_reduce" and boxing.lines == line_of("the second product")
    line = plan.explain(line_of("the second product"))
    assert line.kind == "line" and any(x.decision == product.decision for x in line.items)
    value = plan.explain("dot_general")
    assert value.kind == "value" and len(value.items) == 5
    assert plan.explain("0/params/*/w").kind == "argument" and len(plan.explain("0/params/*/w").items) == 2
    assert plan.explain("d*n").kind == "layer"


def test_a_part_of_a_layers_path() -> None:
    """What Flax calls a module, where the state is a tuple, and ``params`` not the first part of its paths."""

    def step(state: Any, x: jax.Array) -> Any:
        def loss(tree: Any) -> jax.Array:
            y = x
            for block in tree["params"].values():
                y = jnp.tanh(y @ block["up"]["kernel"]) @ block["down"]["kernel"]
            return (y**2).sum()

        return jax.tree.map(lambda p, g: p - g, state, (jax.grad(loss)(state[0]), state[1]))

    kernel = {"kernel": jax.ShapeDtypeStruct((256, 256), "float32")}
    params = {"params": {f"block{k}": {"up": kernel, "down": kernel} for k in range(2)}}
    x = jax.ShapeDtypeStruct((64, 256), "float32")
    p = sbp.plan(step, (params, x), x, placement=sbp.placement.abstract((8,), cluster="h100"), donate_argnums=0)
    up, whole = p.explain("block1/up"), p.explain("block1")
    assert up.kind == whole.kind == "layer" and 0 < len(up.items) + up.left_out < len(whole.items) + whole.left_out
    assert str(p.explain("state/0/params/block1/up")).split("\n\n")[1:] == str(up).split("\n\n")[1:]


def test_a_layer_is_a_sentence_and_a_row_for_each_kind_of_op(plan: sbp.Plan) -> None:
    found = plan.explain("down")
    text = str(found)
    first = text.split("\n\n")[0]
    assert first.startswith("layer down: ") and "of compute and" in first and "changed alone" in first
    assert [k.name for k in found.kinds] == sorted(
        {k.name for k in found.kinds}, key=[k.name for k in found.kinds].index
    )
    (product,) = (k for k in found.kinds if k.name == "dot_general")
    assert product.ops == 3 and "P" in product.signatures
    row = next(r for r in rows(plan) if r.name == "down")
    assert sum(k.compute_seconds for k in found.kinds) == pytest.approx(row.compute_seconds, rel=1e-3)
    assert sum(k.boxing_seconds for k in found.kinds) == pytest.approx(row.boxing_seconds, rel=1e-3)
    assert len(text.splitlines()) < 30 and found.why in found._repr_html_()


def test_an_argument_begins_with_why(plan: sbp.Plan) -> None:
    text = str(plan.explain("0/params/up/w"))
    assert re.match(r"argument 0/params/up/w: it is \(S\(1\)\) because the next best, \(.*\), alone would add \+", text)
    assert "instead, all other decisions as they are" in text


def test_repeated_blocks_are_explained_once() -> None:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        for p in params["blocks"]:
            x = jnp.tanh(x @ p["w"])
        return jnp.sum(x)

    w = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    params = {"blocks": [{"w": w}] * 6}
    where = sbp.placement.abstract((4,), axis_names=("dp",), cluster="h100")
    plan = sbp.plan(loss, params, jax.ShapeDtypeStruct((64, 256), jnp.float32), placement=where, in_sbp=(None, "S(0)"))
    every, one = plan.explain("blocks/*"), plan.explain("blocks/3")
    assert [k.ops for k in every.kinds if k.name == "dot_general"] == [6]
    assert [k.ops for k in one.kinds if k.name == "dot_general"] == [1]
    assert sum(x.decision.op == "dot_general" for x in every.items) == 1
    seconds = [sum(k.compute_seconds for k in found.kinds) for found in (every, one)]
    assert seconds[0] == pytest.approx(6 * seconds[1], rel=0.01)


def test_a_loaded_plan_explains_too(plan: sbp.Plan, loaded: sbp.Plan) -> None:
    for what in ("0/params/up/w", "down", "dot_general"):
        assert str(loaded.explain(what)) == str(plan.explain(what))
    with pytest.raises(sbp.PlanError, match="loaded from a file, or made elsewhere, and cannot plan again"):
        loaded.explain("0/params/up/w", alternative="B")


def test_its_data_and_html(plan: sbp.Plan) -> None:
    data = plan.explain("0/params/up/w").to_dict()
    (d,) = data["decisions"]
    assert d["signature"] == "S(1)" and d["alternatives"][0]["seconds"] > 0 and data["replanned"] is None
    html = plan.explain("down")._repr_html_()
    assert 'class="sbp"' in html and line_of("the second product") in html


def test_unknown_names_get_the_nearest(plan: sbp.Plan) -> None:
    with pytest.raises(sbp.PlanError, match=r"called '0/param/up/w'; did you mean '0/params/up/w'"):
        plan.explain("0/param/up/w")
    with pytest.raises(sbp.PlanError, match=r"'down' means .* decisions .*: an alternative is of one"):
        plan.explain("down", alternative="B")
    with pytest.raises(sbp.PlanError, match=r"\(P\) is not among the signatures of state/.*Possible: .*\(S\(0\)\)"):
        plan.explain("0/params/up/w", alternative="P")
    with pytest.raises(sbp.SignatureError):
        plan.explain("0/params/up/w", alternative="S(7)")


def test_what_a_memory_limit_forbids_is_told() -> None:
    limit = 0.8 * make(batch=8192, config=sbp.AutoParallelConfig(overlap=False)).memory_per_device
    tight = make(batch=8192, config=sbp.AutoParallelConfig(memory_limit=limit, overlap=False))
    found = [d for d in tight.insight.decisions if any(a.seconds < -1e-9 for a in d.alternatives)]
    assert found, "a limit that binds makes some single change cheaper"
    assert any(a.peak_bytes > 0 for d in found for a in d.alternatives if a.seconds < -1e-9)
