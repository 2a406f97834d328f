"""The benchmark of the lowerings goes on after a model that does not finish."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "lowerings.py"


def test_a_model_that_takes_too_long_is_ended_and_named() -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, str(SCRIPT), "--models", "mlp,lstm", "--mesh", "2x2x2", "--limit", "0.2"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    for model in ("mlp", "lstm"):
        assert f"{model} on 2x2x2: not finished within 0.2 s" in ended.stdout
