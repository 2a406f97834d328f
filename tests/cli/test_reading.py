"""``sbp-jax explain``, ``diff`` and ``html`` on saved plans."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.cli import main
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
