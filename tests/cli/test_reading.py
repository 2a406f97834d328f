"""``sbp-jax explain``, ``diff`` and ``html`` on saved plans."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.cli import main, reading
from sbp_jax.cli.target import load

HERE = Path(__file__).parent


def planned(**pins: Any) -> sbp.Plan:
    step, make = (load(f"{HERE / 'steps.py'}:{name}") for name in ("step", "make"))
    where = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    return sbp.plan(step, *make(), placement=where, donate_argnums=0, **pins)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    planned().save(path)
    return path


def test_without_a_name_the_plan_is_printed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(saved)]) == 0
    assert capsys.readouterr().out.rstrip("\n") == str(sbp.Plan.load(saved))
    assert main(["explain", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(saved.read_text())


@pytest.mark.parametrize("command", [["explain"], ["diff", "x.json"], ["html", "-o", "page.html"]])
def test_files_that_are_no_plans(command: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "no_such.json"]) == 2
    assert "cannot read a plan from" in capsys.readouterr().err
    for name in ("x.json", "bad.json"):
        (tmp_path / name).write_text("{")
    assert main([*command, "bad.json"]) == 2
    said = capsys.readouterr()
    assert "is not a whole plan" in said.err and "Traceback" not in said.err and said.out == ""


def test_one_value_is_explained(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = sbp.Plan.load(saved)
    assert main(["explain", str(saved), "0/a"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == str(plan.explain("0/a"))
    assert main(["explain", str(saved), "0/a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(plan.explain("0/a").to_dict()))
    assert main(["explain", str(saved), "0/aa"]) == 2
    assert "0/a" in capsys.readouterr().err


def test_the_exit_code_says_whether_plans_differ(saved: Path, tmp_path: Path, capsys) -> None:
    other = tmp_path / "other.json"
    planned(in_sbp=({"a": "S(0), S(0)", "b": None}, None)).save(other)
    assert main(["diff", str(saved), str(saved)]) == 0
    capsys.readouterr()
    assert main(["diff", str(saved), str(other)]) == 1
    assert "w/a" in capsys.readouterr().out
    assert main(["diff", str(saved), str(other), "--json"]) == 1
    assert "S(0), S(0)" in json.dumps(json.loads(capsys.readouterr().out))


def test_a_page_is_written_and_opened(saved: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    opened = []
    monkeypatch.setattr(reading.webbrowser, "open", opened.append)
    page = tmp_path / "plan.html"
    assert main(["html", str(saved), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n" and opened == []
    assert "<html" in page.read_text().lower()
    assert main(["html", str(saved), "-o", str(page), "--open"]) == 0
    assert opened == [page.as_uri()]
    assert main(["html", str(saved), "-o", str(tmp_path / "no" / "plan.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_page_lies_beside_its_plan_where_nothing_else_is_said(saved: Path, tmp_path: Path, capsys) -> None:
    plan = tmp_path / "mine.json"
    plan.write_bytes(saved.read_bytes())
    assert main(["html", str(plan)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'mine.html'}\n"
    assert "<html" in (tmp_path / "mine.html").read_text().lower()
    assert main(["html", str(plan), "-o", str(plan)]) == 2
    assert "is the plan itself" in capsys.readouterr().err and sbp.Plan.load(plan)
