"""``sbp-jax bench``: what it times and counts is what the plan and plain jit do."""

import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from sbp_jax.cli import main, timing

AT = f"{Path(__file__).parent / 'steps.py'}:"


def test_a_step_is_timed_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["bench", f"{AT}step", "--args", f"{AT}make", "--donate", "0", "--mesh", "2x4", "--steps", "3"]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ours, theirs = found["planned"], found["data_parallel"]
    assert found["placement"] == "cpu[dp=2, tp=4]" and found["steps"] == 3
    assert found["speedup"] == pytest.approx(theirs["step_seconds"] / ours["step_seconds"])
    assert ours["step_seconds"] > 0 and ours["plan_seconds"] > 0 == theirs["plan_seconds"]
    # Data parallel: both gradients and the loss are reduced among 8.
    assert theirs["sent_bytes"] == 2 * 7 / 8 * 4 * (32 * 64 + 64 * 16 + 1)
    assert ours["sent_bytes"] < theirs["sent_bytes"]
    # The loss after 6 steps is a millionth of the first one, so rounding shows.
    assert 0 <= found["largest_relative_difference"] < 1e-3
    assert found["predicted_over_measured"] == pytest.approx(found["predicted_seconds"] / ours["step_seconds"])


def test_it_is_told_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"{AT}scaled", "--args", f"{AT}make_scaled", "--static", "2", "--donate", "0", "--mesh", "8"]
    assert main(["bench", *given, "--steps", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("scaled on cpu[dp=8], median of 1 steps\n")
    assert "times as fast as plain jax.jit" in out and "what the last steps return differs by" in out


def test_flax_objects(capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"{AT}train", "--args", f"{AT}make_net", "--mesh", "8", "--steps", "1", "--json"]
    assert main(["bench", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["function"] == "train" and found["largest_relative_difference"] < 1e-3
    assert found["data_parallel"]["sent_bytes"] == 2 * 7 / 8 * 4 * (8 * 32 + 32 + 32 * 4 + 4 + 1)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([f"{AT}step"], "bench runs the step, so it needs arrays: --args"),
        ([f"{AT}step", "--args", f"{AT}make", "--steps", "0"], "--steps 0: at least 1"),
        ([f"{AT}step", "--args", f"{AT}make", "--data", "5"], "--data '5': step takes the arrays 0, 1"),
        ([f"{AT}keeps_nothing", "--args", f"{AT}make", "--donate", "0"], "nothing replaces 0/a, 0/b. Donate only"),
        ([f"{AT}step", "--args", f"{AT}make", "--mesh", "4x4"], "--mesh 4x4 is 16 devices"),
    ],
)
def test_errors(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 2
    said = capsys.readouterr()
    assert says in said.err and said.out == ""


def test_differences_are_relative_to_the_largest_number() -> None:
    ones, ids = jnp.array([1.0, -4.0]), jnp.arange(2)
    assert timing._difference([ones, ids], [ones, ids + 1]) == 0
    assert timing._difference([ones + 1], [ones]) == 0.25
    assert timing._difference([ids], [ids]) is None
