"""Text in notebooks: ``str`` gives the text there too, where rich would display it and give nothing."""

import jax
import pytest

import sbp_jax as sbp


@pytest.fixture(autouse=True)
def _in_jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as the kernels do


def test_a_route_is_text_in_jupyter() -> None:
    p = sbp.placement.abstract((4,), cluster="h100")
    text = str(sbp.boxing.route("P", "B", p, (8, 8)))
    assert "all_reduce" in text and "\x1b" not in text


def test_a_plan_is_text_in_jupyter() -> None:
    p = sbp.placement.abstract((4,), cluster="h100")
    plan = sbp.plan(lambda x: x.sum(), jax.ShapeDtypeStruct((8, 8), "float32"), placement=p)
    assert "Plan of" in str(plan) and "Where data moves" in str(plan) and "\x1b" not in str(plan)


def test_pieces_and_differences_are_text_in_jupyter() -> None:
    p = sbp.placement.abstract((4,), cluster="h100")
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    whole, split = (sbp.plan(lambda x: x * 2.0, x, placement=p, in_sbp=sbp.Signature.parse(s)) for s in ("B", "S(0)"))
    for text in (str(sbp.diff(whole, split)), str(sbp.visualize("S(0)", p, (8, 8)))):
        assert "0" in text and "\x1b" not in text
