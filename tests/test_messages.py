"""What a user tries first and gets wrong: each is taken, or an error that says what to write."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.differences import both, differences

PLACE = sbp.placement("cpu", ranks=np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
X = np.ones((8, 8), np.float32)


def step(state, batch, n=1):
    return state + batch["x"].sum() * n, batch["x"] * 2


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (8, r"ranks=8 is one number: 8 devices are sbp.placement\('cpu', ranks=range\(8\)\), all that there are "
            r"sbp.placement.all\('cpu'\), device number 8 alone is ranks=\[8\]"),
        (np.int64(3), r"ranks=3 is one number"),
        ((2, 4), r"ranks=\(2, 4\): a mesh of that shape is sbp.placement\('cpu', ranks=np.arange\(8\).reshape\(2, 4\)\)"
                 r", or jax.make_mesh\(\(2, 4\), ...\) as the placement; devices number 2, 4 are ranks=\[2, 4\]"),
        ("8", "must be a non-empty regular array of integers"),
    ],
)  # fmt: skip
def test_ranks_that_are_no_ranks(ranks: Any, message: str) -> None:
    with pytest.raises(sbp.PlacementError, match=message):
        sbp.placement("cpu", ranks=ranks)


def test_ranks_that_are() -> None:
    assert sbp.placement("cpu", ranks=0).flat_ranks == (0,)
    assert sbp.placement("cpu", ranks=[8]).flat_ranks == (8,)
    assert sbp.placement("cpu", ranks=[2, 4]).flat_ranks == (2, 4)
    assert sbp.placement("cpu", ranks=(0, 1)).flat_ranks == (0, 1)
    assert sbp.placement("cpu", ranks=((2, 3), (4, 5))).shape == (2, 2)
    assert sbp.placement("cpu", ranks=range(4)).shape == (4,)


def test_an_unknown_cluster_is_said_at_once() -> None:
    with pytest.raises(sbp.SbpError, match=r"cluster 'h1000' is not known; did you mean h100"):
        sbp.placement.abstract((2, 4), cluster="h1000")
    with pytest.raises(sbp.SbpError, match=r"cluster 'a100-8' is not known; did you mean a100"):
        sbp.AutoParallelConfig(cluster="a100-8")
    assert sbp.placement.abstract((2, 4), cluster="h100").cluster == "h100"


@pytest.mark.parametrize(("text", "number"), [("40GB", 40e9), ("40GiB", 40 * 2**30), ("1.5e9", 1.5e9), ("16 mb", 16e6)])
def test_a_memory_limit_as_on_the_command_line(text: str, number: float) -> None:
    config = sbp.AutoParallelConfig(memory_limit=text)
    assert config.memory_limit == number and config == sbp.AutoParallelConfig(memory_limit=number)
    plan = sbp.plan(step, X, {"x": X}, placement=PLACE, config=config)
    assert plan.statistics["memory_limit_bytes"] == number


@pytest.mark.parametrize("wrong", ["40 apples", "", "-1GB", 0, "0GB"])
def test_what_is_no_memory_limit(wrong: Any) -> None:
    with pytest.raises(sbp.SbpError, match="memory_limit"):
        sbp.AutoParallelConfig(memory_limit=wrong)


def test_a_string_in_the_batch_by_its_path() -> None:
    batch = {"x": X, "meta": {"name": "a" * 100}}
    message = (
        r"argument 1/meta/name \(of batch\) of step is a str, 'a+\.\.\.: a planned function takes arrays.*static_arg"
    )
    planned = sbp.auto_parallel(step, placement=PLACE)
    for ask in (lambda: sbp.plan(step, X, batch, placement=PLACE), lambda: planned(X, batch)):
        with pytest.raises(sbp.PlanError, match=message):
            ask()
    planned(X, {"x": X})
    planned(X, {"x": X})
    with pytest.raises(sbp.PlanError, match=message):
        planned(X, batch)
    with pytest.raises(sbp.PlanError, match=r"argument state of step is a object"):
        planned(batch={"x": X}, state=object())


def test_a_placement_that_is_given_by_position() -> None:
    mesh: Any = jax.make_mesh((2, 4), ("dp", "tp"))
    for where in (PLACE, mesh):
        with pytest.raises(
            sbp.PlanError, match=r"sbp.plan takes placement= by name, got .*sbp.plan\(fn, \*args, placem"
        ):
            sbp.plan(step, X, {"x": X}, where)
    with pytest.raises(sbp.PlanError, match="takes config= by name"):
        sbp.plan(step, X, {"x": X}, sbp.AutoParallelConfig(), placement=PLACE)


def test_the_replanning_warning_says_what_differs() -> None:
    planned = sbp.auto_parallel(lambda x, n: x["a"]["b"] * n, placement=PLACE, static_argnums=1)
    for rows in (8, 16, 24, 32):
        planned({"a": {"b": np.ones((rows, 8), np.float32)}}, 2)
    with pytest.warns(
        UserWarning, match=r"5th set of argument shapes \(0/a/b was float32\[32, 8\], is float32\[40, 8\]\)"
    ):
        planned({"a": {"b": np.ones((40, 8), np.float32)}}, 2)
    with pytest.warns(
        UserWarning, match=r"6th set of argument shapes \(0/a/b was float32\[40, 8\], is bfloat16\[40, 8\]\)"
    ):
        planned({"a": {"b": jnp.ones((40, 8), jnp.bfloat16)}}, 2)
    with pytest.warns(UserWarning, match=r"7th set of argument shapes \(static argument 1 was 2, is 3\)"):
        planned({"a": {"b": jnp.ones((40, 8), jnp.bfloat16)}}, 3)


def test_two_long_texts_are_cut_where_they_differ() -> None:
    a, b = "x" * 100 + "a", "x" * 100 + "b"
    assert both(a, b)[0] != both(a, b)[1] and len(both(a, b)[0]) < 70
    assert both("ab", "ac") == ("ab", "ac")
    assert both(a, a)[1] == "another object that prints the same"
    assert differences({"k": 2, "gone": 1}, {"k": 2.0, "new": 1}) == [
        "new is new (1)", "gone is gone (1)", "k was 2, is 2.0",
    ]  # fmt: skip


def test_repr() -> None:
    planned = sbp.auto_parallel(step, placement=PLACE)
    assert repr(planned) == "<step run by a plan on cpu[dp=2, tp=4]: 0 plan(s) made>"
    planned.plan(X, {"x": X})
    assert repr(planned) == "<step run by a plan on cpu[dp=2, tp=4]: 1 plan(s) made>"
    assert repr(sbp.auto_parallel(step)) == "<step run by a plan on every visible device: 0 plan(s) made>"
    assert "auto" in repr(sbp.auto_parallel(step, placement="auto"))
