"""What every command shares: versions, help, completion, errors."""

import subprocess
import sys

import pytest
import shtab

import sbp_jax as sbp
from sbp_jax.cli import base, main

COMMANDS = ["plan", "explain", "diff", "html", "bench", "doctor", "calibrate"]


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
