"""``sbp-jax plan``: functions found, options read, plans printed and saved; what is wrong is said in one message."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import sbp_jax as sbp
from sbp_jax.api.config import parse_bytes
from sbp_jax.cli import main

HERE = Path(__file__).parent
STEP, MAKE = f"{HERE / 'steps.py'}:step", f"{HERE / 'steps.py'}:make"
SHAPES = "{a: f32[32,64], b: f32[64,16]}, f32[16,32]"


def ran(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main([*argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_plan_is_printed_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    code, out, err = ran(capsys, "plan", STEP, "--args", MAKE, "--donate", "0", "--mesh", "2x4", "-o", str(path))
    assert (code, err) == (0, f"wrote {path}\n")
    plan = sbp.Plan.load(path)
    assert out.rstrip("\n") == str(plan)
    assert (plan.placement.shape, plan.placement.axis_names) == ((2, 4), ("dp", "tp"))
    assert plan.placement.type == "cpu" and not plan.placement.is_abstract
    assert [leaf.path for leaf in plan.inputs] == ["0/a", "0/b", "1"]

    code, out, _ = ran(capsys, "plan", STEP, "--shapes", SHAPES, "--donate", "0", "--mesh", "2x4", "--json")
    again = sbp.Plan.from_json(json.loads(out))
    assert code == 0 and again.signatures() == plan.signatures() and again.fingerprint == plan.fingerprint


def test_hardware_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", STEP, "--shapes", SHAPES, "--donate", "0", "--json"]
    code, out, _ = ran(capsys, *given, "--mesh", "128x8", "--axes", "data,model", "--cluster", "h100")
    plan = sbp.Plan.from_json(json.loads(out))
    assert code == 0 and plan.placement == sbp.placement.abstract((128, 8), ("data", "model"), cluster="h100")
    code, out, _ = ran(capsys, *given, "--devices", "16", "--cluster", "a100-40")
    plan = sbp.Plan.from_json(json.loads(out))
    assert code == 0 and plan.placement.size == 16 and plan.placement.is_abstract and plan.cluster == "a100-40"


def test_settings_reach_the_planner(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", STEP, "--shapes", SHAPES, "--donate", "0", "--mesh", "4", "--json"]
    _, out, _ = ran(capsys, *given, "--solver", "data_parallel")
    assert sbp.Plan.from_json(json.loads(out)).solver == "data_parallel"
    _, out, _ = ran(capsys, *given, "--config", "zero-stage=3", "--config", "time_limit=5")
    plan = sbp.Plan.from_json(json.loads(out))
    assert all("S" in str(leaf.signature) for leaf in plan.inputs if leaf.path.startswith("0/"))
    code, _, err = ran(capsys, *given, "--memory-limit", "1KiB")
    assert (code == 2 and "1024" in err.replace(",", "")) or "1 KiB" in err


def test_what_a_decorator_said_holds(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "plan", f"{HERE / 'steps.py'}:parallel", "--args", MAKE, "--json")
    plan = sbp.Plan.from_json(json.loads(out))
    assert code == 0 and plan.placement.axis_names == ("x", "y") and plan.function == "step"
    whole = plan.partition_specs()
    assert whole[0]["0/a"] == whole[1]["0/a"], "donated, so it keeps its place"


@pytest.mark.parametrize("name", ["jitted", "step"])
def test_modules_and_jitted_functions(name: str, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    code, out, _ = ran(capsys, "plan", f"steps:{name}", "--args", "steps:make", "--mesh", "8")
    assert code == 0 and out.startswith("Plan of step on cpu")


def test_flax_objects(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", f"{HERE / 'steps.py'}:train", "--args", f"{HERE / 'steps.py'}:make_net", "--mesh", "8", "--json"]
    code, out, err = ran(capsys, *given)
    assert (code, err) == (0, "")
    plan = sbp.Plan.from_json(json.loads(out))
    assert plan.function == "train" and any("wide/kernel" in leaf.path for leaf in plan.inputs)


def test_arguments_that_need_values_and_static_ones(capsys: pytest.CaptureFixture[str]) -> None:
    at = f"{HERE / 'steps.py'}:"
    code, out, _ = ran(capsys, "plan", f"{at}doubled", "--args", f"{at}only_called", "--mesh", "4", "--json")
    assert code == 0 and sbp.Plan.from_json(json.loads(out)).inputs[0].shape == (8,)
    given = ["plan", f"{at}scaled", "--args", f"{at}make_scaled", "--static", "2", "--donate", "0", "--mesh", "4"]
    assert ran(capsys, *given)[0] == 0


AT = f"{HERE / 'steps.py'}:"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["steps.step"], "write module:function, as mypackage.train:train_step, or path/to/file.py:train_step"),
        (["no_such_module:step"], "there is no module 'no_such_module'"),
        ([f"{HERE / 'stepss.py'}:step"], "stepss.py'; did you mean steps.py?"),
        ([f"{AT}stap"], "has no 'stap'; did you mean step"),
        ([f"{AT}stap"], "It has: Net, broken, doubled"),
        ([f"{AT}not_a_function"], "is no function: it is of type int"),
        ([STEP], "say what the function is called with: --shapes"),
        ([STEP, "--shapes", "f32[1]", "--args", MAKE], "one of them, not both"),
        ([STEP, "--shapes", "f31[8]"], "--shapes: there is no dtype 'f31'; did you mean f32"),
        ([STEP, "--args", f"{AT}maek"], "--args"),
        ([STEP, "--args", f"{AT}raises"], "raises failed: KeyError: 'no data here'"),
        ([STEP, "--shapes", "f32[1]"], "step failed: TypeError: "),
        ([f"{AT}broken", "--shapes", SHAPES], 'steps.py:59: return w["a"] @ x'),
        ([STEP, "--shapes", SHAPES, "--donate", "2"], "--donate/--static [2]: step has 2 arguments here, 0 to 1"),
        ([STEP, "--shapes", SHAPES, "--donate", "w"], "--donate 'w': write positions of arguments, from 0"),
        ([STEP, "--shapes", SHAPES, "--mesh", "2by4"], "--mesh '2by4': write the sizes of its axes with x between"),
        ([STEP, "--shapes", SHAPES, "--mesh", "2x4", "--axes", "dp"], "--axes 'dp': 2 different names are needed"),
        ([STEP, "--shapes", SHAPES, "--axes", "dp"], "names the axes of --mesh, which is not given"),
        ([STEP, "--shapes", SHAPES, "--mesh", "2x8"], "--mesh 2x8 is 16 devices, and there are 8 of kind cpu here"),
        ([STEP, "--shapes", SHAPES, "--mesh", "8", "--devices", "8"], "--mesh and --devices: give one"),
        ([STEP, "--shapes", SHAPES, "--devices", "0"], "--devices 0: at least 1"),
        ([STEP, "--shapes", SHAPES, "--cluster", "h100"], "--cluster h100: say how much of it there is"),
        (
            [STEP, "--shapes", SHAPES, "--mesh", "8", "--cluster", "h10"],
            "cluster 'h10' is not known; did you mean h100",
        ),
        ([STEP, "--shapes", SHAPES, "--solver", "ipl"], "'ipl'"),
        ([STEP, "--shapes", SHAPES, "--memory-limit", "40 bananas"], "--memory-limit '40 bananas': write bytes"),
        ([STEP, "--shapes", SHAPES, "--config", "tim_limit=3"], "mean time_limit or memory_limit? Keys: solver"),
        ([STEP, "--shapes", SHAPES, "--config", "gap"], "--config 'gap': write key=value"),
        ([STEP, "--shapes", SHAPES, "--config", "gap=none"], "--config 'gap=none': it cannot be none"),
        ([STEP, "--shapes", SHAPES, "--config", "trunk_algo=maybe"], "'trunk_algo=maybe': write true or false"),
        ([STEP, "--shapes", SHAPES, "--config", "time_limit=long"], "'time_limit=long': write a number"),
        ([STEP, "--shapes", SHAPES, "--config", "zero_stage=5"], "zero_stage is None"),
        ([STEP, "--shapes", SHAPES, "-o", "nowhere/plan.json"], "there is no folder"),
        ([STEP, "--shapes", SHAPES, "-o", str(HERE)], "is a folder: give the name of a file in it"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "plan", *argv)
    assert code == 2 and out == ""
    assert says in err and err.startswith("sbp-jax: ") and "Traceback" not in err


def test_a_traceback_where_one_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "plan", f"{AT}broken", "--shapes", SHAPES, "--mesh", "8", "--traceback")
    assert code == 2 and "Traceback" in err and "sbp-jax: broken failed" in err


def test_a_file_that_may_not_be_written(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(stat.S_IRUSR)
    monkeypatch.setattr(os, "access", lambda p, mode: not (Path(p) == path and mode == os.W_OK))
    code, _, err = ran(capsys, "plan", STEP, "--shapes", SHAPES, "-o", str(path))
    assert code == 2 and "no permission to write there" in err and path.read_text() == "old"


def test_a_module_that_does_not_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad_module.py").write_text("import math\nmath.no_such_name\n")
    code, _, err = ran(capsys, "plan", f"{tmp_path / 'bad_module.py'}:f", "--shapes", "f32[1]")
    assert code == 2 and "bad_module.py:2: math.no_such_name" in err and "AttributeError" in err
    assert "bad_module" not in sys.modules


def test_a_module_of_a_package_imports_its_neighbours(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "some_package_of_steps"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("def double(x):\n    return x * 2\n")
    (package / "train.py").write_text("from .other import double\n\n\ndef step(x):\n    return double(x)\n")
    code, out, _ = ran(capsys, "plan", f"{package / 'train.py'}:step", "--shapes", "f32[8]", "--mesh", "2")
    assert code == 0 and out.startswith("Plan of step")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("40GiB", 40 * 2**30), ("40 gb", 40e9), ("1.5e9", 1.5e9), ("512", 512), ("2KiB", 2048), ("1.5TB", 1.5e12)],
)
def test_sizes(text: str, expected: float) -> None:
    assert parse_bytes(text, "--x") == expected


def test_from_a_shell() -> None:
    """``python -m sbp_jax`` in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1] / "src")}
    command = [sys.executable, "-m", "sbp_jax", "plan", STEP, "--shapes", SHAPES, "--mesh", "8", "--cluster", "h100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Plan of step on abstract h100") and done.stderr == ""
