"""sbp.diff: what two plans do differently, said even where they are for different things."""

from dataclasses import replace

import pytest

import sbp_jax as sbp
from report_case import line_of, make


@pytest.fixture(scope="module")
def other() -> sbp.Plan:
    """The same step with its first weight whole on every device."""
    pins = {"params": {"up": {"w": "B", "b": None}, "down": None}, "momentum": None}
    return make(in_sbp=(pins, None))


def test_a_plan_and_itself(plan: sbp.Plan, loaded: sbp.Plan) -> None:
    assert sbp.diff(plan, loaded).same and not sbp.diff(plan, loaded)
    assert str(sbp.diff(plan, plan)) == "the plans do the same"


def test_a_pinned_weight(plan: sbp.Plan, other: sbp.Plan) -> None:
    found = sbp.diff(plan, other)
    assert found and not found.same and found.remarks == ()
    changed = {c.what: (c.a, c.b) for c in found.arguments}
    assert changed["state/params/up/w"] == ("S(1)", "B")
    numbers = {n.name: n for n in found.numbers}
    assert numbers["memory per device"].b > numbers["memory per device"].a
    assert numbers["step seconds"].b - numbers["step seconds"].a == pytest.approx(
        other.step_seconds - plan.step_seconds
    )
    added = [m for m in found.boxings if m.how == "added"]
    moved = sum(m.bytes for m in found.boxings)
    assert added and moved == pytest.approx(other.bytes_on_wire - plan.bytes_on_wire)
    text = str(found)
    assert "state/params/up/w" in text and "added" in text and "step seconds" in text
    assert found.to_dict()["same"] is False and "state/params/up/w" in found._repr_html_()


def test_a_boxing_gone(plan: sbp.Plan) -> None:
    fewer = replace(plan, boxing_list=[], make_insight=lambda: replace(plan.insight, crossings=()))
    (gone,) = sbp.diff(plan, fewer).boxings
    assert gone.how == "removed" and gone.lines == line_of("the second product") and gone.b == ""
    assert gone.seconds == pytest.approx(-plan.boxing_seconds)


def test_different_meshes_clusters_and_functions(plan: sbp.Plan) -> None:
    wide = make(placement=sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="v100"))
    remarks = " ".join(sbp.diff(plan, wide).remarks)
    assert "the meshes differ" in remarks and "different clusters, h100 and v100" in remarks
    stranger = replace(plan, fingerprint="other", function="another")
    (remark,) = sbp.diff(plan, stranger).remarks
    assert "different functions or shapes, 'step'" in remark and "'another' (other)" in remark
