"""The benchmark for GPUs runs through without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def dry_run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, str(SCRIPT), "--dry-run", *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_parts_run_on_a_cpu() -> None:
    ended = dry_run("--only", "versions", "--only", "attention")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "sbp_jax plans for: cpu" in ended.stdout and "without a rule: none" in ended.stdout
    assert "FAILED" not in ended.stdout and "no figure means anything" in ended.stdout


@pytest.mark.slow
def test_all_parts_run_on_a_cpu() -> None:
    ended = dry_run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for part in ("versions", "steps", "attention", "calibrate", "memory", "examples"):
        assert f"== {part}" in ended.stdout
    assert "FAILED" not in ended.stdout
