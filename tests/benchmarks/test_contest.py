"""benchmarks/contest.py: what it prints and writes, and what it says of files that are not such problems."""

import gzip
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_PROGRAM = Path(__file__).parents[2] / "benchmarks" / "contest.py"


def problem() -> dict[str, Any]:
    """Three nodes in a row, two choices each: the cheap ones do not fit together."""
    return {
        "name": "x-T",
        "nodes": {
            "intervals": [[0, 3], [1, 3], [2, 2]],
            "costs": [[0, 5], [0, 7], [1, 10**18]],
            "usages": [[60, 10], [60, 10], [900, 900]],
        },
        "edges": {"nodes": [[1, 0], [1, 2]], "costs": [[0, 1, 3, 0], [0, 0, 2, 0]]},
        "usage_limit": 100,
    }


def run(file: Path, *more: str) -> int:
    """The exit code."""
    known = sys.argv
    sys.argv = [str(_PROGRAM), str(file), *more]
    try:
        runpy.run_path(str(_PROGRAM), run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = known
    return 0


def written(path: Path, content: object) -> Path:
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_a_problem_is_solved_and_its_choices_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "choices.json"
    assert run(written(tmp_path / "x.json.gz", {"problem": problem()}), "--seconds", "20", "--choices", str(out)) == 0
    # Node 1 cheap, node 0 at 5: the edge between them, with node 1's choices as rows, costs 1.
    words = capsys.readouterr().out.split()
    assert words[:5] == ["cost", "7", "bound", "7", "seconds"]
    assert json.loads(out.read_text()) == [1, 0, 0]


def test_no_plan_fits_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tight = problem() | {"usage_limit": 19}
    assert run(written(tmp_path / "x.json.gz", {"problem": tight})) == 1
    assert "no plan fits: it is proven" in capsys.readouterr().out
    never = problem()
    never["nodes"]["costs"][0] = [10**17, 10**18]
    assert run(written(tmp_path / "y.json.gz", {"problem": never})) == 1


def changed(path: str, value: object) -> dict[str, Any]:
    found = problem()
    *way, last = path.split(".")
    at = found
    for name in way:
        at = at[name]
    at[last] = value
    return {"problem": found}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "no object 'problem'"),
        ({"problem": {}}, "has no 'nodes'"),
        (changed("nodes.intervals", [[0, 1]]), "3 nodes have costs, 3 usages, 1 intervals"),
        (changed("nodes.usages", [[1, 2], [1], [1, 2]]), "node 1 has 2 costs and 1 usages"),
        (changed("nodes.costs", [[1, 2], ["a", 1], [1, 2]]), "costs of node 1 are not a list of numbers"),
        (changed("edges.nodes", [[0, 1], [1, 3]]), "edge 1 joins nodes 1 and 3; there are 3"),
        (changed("edges.costs", [[0, 1, 3], [0, 0, 2, 0]]), "edge 0 has 3 costs; its nodes have 2 x 2 choices"),
        (changed("usage_limit", "much"), "usage_limit a number"),
    ],
)
def test_a_malformed_file_is_one_clear_error(
    content: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(written(tmp_path / "x.json.gz", content)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_file_that_is_cut_short_or_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = gzip.compress(np.random.default_rng(0).bytes(2000))
    (tmp_path / "cut.json.gz").write_bytes(whole[:900])
    (tmp_path / "cut.json").write_text(json.dumps({"problem": problem()})[:100])
    for name in ("cut.json.gz", "cut.json", "missing.json"):
        assert run(tmp_path / name) == 2
        error = capsys.readouterr().err
        assert name in error
        assert error.count("\n") == 1
