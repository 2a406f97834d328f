"""What every command shares: versions, help, completion, errors."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import shtab

import sbp_jax as sbp
from sbp_jax.cli import base, main, options
from sbp_jax.cli.target import load

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}
SHELL = [sys.executable, "-m", "sbp_jax"]

COMMANDS = ["plan", "explain", "diff", "html", "bench", "doctor", "calibrate", "launch"]


def test_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"sbp-jax {sbp.__version__}, jax ")


def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    whole = capsys.readouterr().out
    for name in COMMANDS:
        assert f"    {name} " in whole
        assert main([name, "--help"]) == 0
        said = capsys.readouterr().out
        assert f"examples:\n  sbp-jax {name} " in said
    assert main(["plan", "--help"]) == 0
    assert "f32[4,4]*12" in capsys.readouterr().out, "the notation of shapes"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in COMMANDS) and "memory-limit" in said


def test_completion_is_bash(tmp_path) -> None:
    script = tmp_path / "completion"
    script.write_text(shtab.complete(base.parser(), "bash"))
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_a_command_has_one_name() -> None:
    with pytest.raises(sbp.SbpError, match="there is a command 'plan' already"):
        base.command("plan", "again")(lambda parser: lambda args: None)


def test_a_reader_that_has_seen_enough() -> None:
    script = "import sys; from sbp_jax.cli import base, main\n"
    script += "base._COMMANDS['loud'] = ('', '', lambda p: lambda a: [print('x' * 100) for _ in range(100000)] and 0)\n"
    script += "sys.exit(main(['loud']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as found:
        assert found.stdout is not None and found.stderr is not None
        found.stdout.readline()
        found.stdout.close()
        assert (found.stderr.read(), found.wait(60)) == (b"", 0)


def left(*words: str, folder: Path) -> tuple[int, str]:
    """The exit code of a command whose output nobody reads, not even its first line, and what it said of that."""
    read, write = os.pipe()
    os.close(read)
    try:
        with subprocess.Popen([*SHELL, *words], stdout=write, stderr=subprocess.PIPE, text=True, cwd=folder,
                              env=ENVIRONMENT) as found:  # fmt: skip
            assert found.stderr is not None
            return found.wait(120), found.stderr.read()
    finally:
        os.close(write)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two plans that differ."""
    folder = tmp_path_factory.mktemp("plans")
    step, shapes = (load(f"{ROOT / 'examples' / 'step.py'}:{name}") for name in ("step", "shapes"))
    where = sbp.placement.abstract((8,), cluster="h100")
    sbp.plan(step, *shapes(), placement=where, donate_argnums=0).save(folder / "a.json")
    sbp.plan(step, *shapes(), placement=where, in_sbp=("B", "S(0)")).save(folder / "b.json")
    return folder


def test_a_plan_is_saved_whoever_reads_what_is_printed(plans: Path) -> None:
    given = ["plan", f"{ROOT / 'examples' / 'step.py'}:step", "--args", f"{ROOT / 'examples' / 'step.py'}:shapes"]
    for more in ([], ["--json"]):
        (plans / "p.json").unlink(missing_ok=True)
        code, said = left(*given, "--mesh", "8", "--cluster", "h100", "-o", "p.json", *more, folder=plans)
        assert code == 0 and said == "wrote p.json\n"
        assert sbp.Plan.load(plans / "p.json").placement.size == 8


@pytest.mark.parametrize(
    ("words", "code"),
    [("--help", 0), ("--version", 0), ("--print-completion bash", 0), ("plan --help", 0), ("explain a.json", 0),
     ("explain a.json --json", 0), ("diff a.json a.json", 0), ("diff a.json b.json", 1), ("html a.json", 0),
     ("explain none.json", 2)],
)  # fmt: skip
def test_every_command_survives_a_closed_pipe(words: str, code: int, plans: Path) -> None:
    """With the exit code that it has anyway, and without a word about the pipe."""
    found, said = left(*words.split(), folder=plans)
    assert found == code and "pipe" not in said.lower() and "Traceback" not in said
    assert words != "html a.json" or (plans / "a.html").stat().st_size > 1000


@pytest.mark.parametrize(
    "words", ["--help", "plan --help", "bench --help", "--print-completion bash", "plan --nonsense"]
)
def test_help_does_not_wait_for_jax(words: str) -> None:
    done = subprocess.run([sys.executable, "-X", "importtime", *SHELL[1:], *words.split()], capture_output=True,
                          text=True, check=False, env=ENVIRONMENT)  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "sbp_jax.cli.planning" in imported and not imported & {"jax", "numpy", "scipy", "flax", "sbp_jax.api"}


def test_help_is_quick() -> None:
    """Half a second on a quiet machine; the least of several, for others may be at work here."""
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        subprocess.run([*SHELL, "--help"], capture_output=True, check=True, env=ENVIRONMENT)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 0.5


def test_a_command_finds_the_whole_library(tmp_path: Path) -> None:
    """A user's module that is imported by the command line sees what every other process does."""
    (tmp_path / "mine.py").write_text(
        "import sbp_jax as sbp\nfrom sbp_jax import placement, plan\n"
        "import sbp_jax.flax\nassert callable(sbp.plan) and sbp.Plan and placement.abstract((2,))\n"
        "assert callable(plan) and sbp.flax.jit\ndef f(x):\n    return x * 2\n"
    )
    done = subprocess.run([*SHELL, "plan", "mine.py:f", "--shapes", "f32[8]", "--mesh", "2", "--cluster", "h100"],
                          capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT, check=False)  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("Plan of f on abstract h100"), done.stderr


def test_the_solvers_of_the_help_are_those_there_are() -> None:
    assert list(options.SOLVERS) == list(sbp.planner.solvers().of("signatures"))


def test_examples_in_help_texts_name_files_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Of what is read; and what they name is in the files."""
    for name in COMMANDS:
        main([name, "--help"])
        said = capsys.readouterr().out
        for path, function in re.findall(r"([\w/]+\.py):(\w+)", said):
            if "path/to" not in path:
                assert callable(load(f"{ROOT / path}:{function}")), path
        assert "model:" not in said


def test_an_example_of_the_help_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    main(["plan", "--help"])
    said = capsys.readouterr().out.replace("\\\n", " ")
    (line,) = (x for x in said.splitlines() if "zero_stage=2" in x)
    assert main(shlex.split(line)[1:]) == 0
    assert json.loads(capsys.readouterr().out)["placement"]
