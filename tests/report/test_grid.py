"""Tables keep their headers and short cells at every width: long names wrap, then the least important columns go."""

import re

import pytest

import sbp_jax as sbp
from sbp_jax.report.grid import Column, Grid
from sbp_jax.report.text import plain_text, render


def grid(name: str = "blocks/0..11/attention/query") -> Grid:
    columns = Column("name", wrap=12), Column("kind", drop=2), Column("time", "right"), Column("rare", drop=1)
    made = Grid("Title", *columns)
    made.add_row(name, "all_gather", "12.3 ms", "x" * 20)
    return made


def test_wide_enough_nothing_changes() -> None:
    assert "blocks/0..11/attention/query   all_gather   12.3 ms" in plain_text([grid()], 120)


def test_names_wrap_then_columns_go() -> None:
    text = plain_text([grid()], 60)
    assert "12.3 ms" in text and "attention/" in text and max(map(len, text.splitlines())) <= 60
    text = plain_text([grid()], 40)
    assert "Title (no room for: kind, rare)" in text
    assert "attention/query   12.3 ms" in text and "time" in text and max(map(len, text.splitlines())) <= 40


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_nothing_of_a_report_is_cut(plan: sbp.Plan, width: int) -> None:
    text = render(plan, plan.facts(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for header in ("layer", "parameters of one", "compute", "boxing", "collective", "time", "line", "signature"):
        assert re.search(rf"(^|\s){header}(\s|$)", text, re.MULTILINE), header
    for b in plan.boxings():
        assert f" {b.collective} " in text or b.collective == "none"


def test_a_terminal_says_how_wide(plan: sbp.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, str(plan).splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "400")
    assert max(map(len, str(plan).splitlines())) <= 160
