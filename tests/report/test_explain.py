"""plan.explain: the choice, who makes and uses it, what else it could have been and what that would cost."""

import pytest

import sbp_jax as sbp
from report_case import line_of, make


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
    assert "0/params/up/w float32[1024,8192] is (S(1))" in text and line_of("the first product") in text


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
    with pytest.raises(sbp.PlanError, match=r"\(P\) is not among the signatures of 0/.*Possible: .*\(S\(0\)\)"):
        plan.explain("0/params/up/w", alternative="P")
    with pytest.raises(sbp.SignatureError):
        plan.explain("0/params/up/w", alternative="S(7)")


def test_what_a_memory_limit_forbids_is_told() -> None:
    limit = 0.8 * make(batch=8192).memory_per_device
    tight = make(batch=8192, config=sbp.AutoParallelConfig(memory_limit=limit))
    found = [d for d in tight.insight.decisions if any(a.seconds < -1e-9 for a in d.alternatives)]
    assert found, "a limit that binds makes some single change cheaper"
    assert any(a.peak_bytes > 0 for d in found for a in d.alternatives if a.seconds < -1e-9)
