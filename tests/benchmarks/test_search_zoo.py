"""The table of all searches: methods that want more than a solver's name are in it, and families run side by side."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search_zoo.py"


def ran(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_methods_that_want_pins_or_an_earlier_plan_or_a_small_graph_have_rows() -> None:
    methods = "ilp,megatron,gspmd,adaptive_paddle,exhaustive"
    ended = ran("--only", "products,mlp", "--meshes", "1x8", "--methods", methods)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {
        tuple(c.strip() for c in line.split("|")[1:4]): line for line in ended.stdout.splitlines() if "1x8 |" in line
    }
    assert rows["products", "1x8", "exhaustive"].split("|")[5].strip() == "1.000"
    assert "too large" in rows["mlp", "1x8", "exhaustive"]
    assert "refused" in rows["products", "1x8", "gspmd"]
    for name in ("gspmd", "adaptive_paddle"):
        assert float(rows["mlp", "1x8", name].split("|")[5]) >= 1.0
    assert "exhaustive: refused 1 times; mlp on 1x8: the exhaustive solver tries every plan" in ended.stdout


@pytest.mark.slow
def test_families_side_by_side_give_tables_results_and_one_picture(tmp_path: Path) -> None:
    ended = ran(
        "--families", "signatures,stages", "--only", "products", "--meshes", "1x8", "--methods", "ilp,dp", "--results",
        str(tmp_path), "--picture", str(tmp_path / "all.png"),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "== signatures" in ended.stdout and "== stages" in ended.stdout and "s of processors" in ended.stdout
    assert "| products | 1x8 | dp |" in (tmp_path / "search_zoo.txt").read_text()
    assert "| alpa_inter |" in (tmp_path / "search_stages.txt").read_text()
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_a_family_that_is_not_known_is_refused() -> None:
    ended = ran("--families", "signatures,graphs")
    assert ended.returncode == 2 and "--families graphs: possible: signatures" in ended.stderr
