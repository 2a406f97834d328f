"""The command line, in this process: exit codes, messages, what is written."""

import dataclasses
import json
from pathlib import Path

import pytest

from sbp_jax import cluster
from sbp_jax.cli import main
from sbp_jax.cluster import calibrate as calibration
from sbp_jax.cluster.toml import parse


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SMALL", calibration.Effort((16,), 1 << 12, (1 << 10,), ("float32",)))


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a measurement gives, without measuring."""

    def found(name: str, *_: object, **__: object) -> calibration.Calibration:
        measured = (calibration.Measurement("matmul float32", "16^3", 1e-6, "1 FLOP/s"),)
        return calibration.Calibration(dataclasses.replace(cluster.CPU, name=name), measured, ("a note",), 0.1)

    monkeypatch.setattr(calibration, "calibrate", found)


def test_calibrate_writes_a_file_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    assert main(["calibrate", "-o", str(path), "--devices", "2"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "matmul float32" in said.err and f"wrote {path}" in said.err
    assert cluster.get(path).name == "mine"
    assert path.read_text().startswith("# Measured by `sbp-jax calibrate` on 2 x cpu")
    assert main(["calibrate", "-o", str(path), "--devices", "2"]) == 2, "it exists"
    assert "exists: --force overwrites it" in capsys.readouterr().err


@pytest.mark.usefixtures("canned")
def test_calibrate_prints_toml_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--devices", "2", "--name", "box"]) == 0
    assert parse(capsys.readouterr().out).name == "box"
    assert main(["calibrate", "--devices", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cluster"]["device"]["flops_per_second"]["float32"] > 0
    assert "a note" in found["notes"]
    assert {"what", "size", "seconds", "rate"} == set(found["measurements"][0])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["calibrat"], "invalid choice: 'calibrat'"),
        (["calibrate", "--devices", "two"], "invalid int value: 'two'"),
        (["calibrate", "-o", "mine.json"], "'mine.json': clusters are found by names that end in .toml"),
        (["calibrate", "-o", "nowhere/mine.toml"], "'nowhere/mine.toml': there is no folder"),
        (["calibrate", "--name", "h100"], "'h100' is the name of a preset"),
        (["calibrate", "--devices", "99"], "calibrate on 99 devices: this process has"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    said = capsys.readouterr()
    assert says in said.err and "Traceback" not in said.err and said.out == ""


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "calibrate" in capsys.readouterr().out
    assert main(["calibrate", "--help"]) == 0
    assert "sbp-jax calibrate -o mine.toml" in capsys.readouterr().out


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "calibrate", stop)
    assert main(["calibrate"]) == 130
    assert "Traceback" not in capsys.readouterr().err
