"""A plan made elsewhere runs for the function and the options it was made for, and is refused for any other."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp

X = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def place(*shape: int) -> sbp.Placement:
    size = int(np.prod(shape))
    return sbp.placement("cpu", np.arange(size).reshape(shape), axis_names=("dp", "tp")[: len(shape)])


def step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * g, loss


def test_a_plan_for_another_parameter_is_refused() -> None:
    def summed(axis):
        return lambda x: jnp.cumsum(x, axis=axis)

    plan = sbp.plan(summed(0), X, placement=place(8))
    np.testing.assert_allclose(sbp.auto_parallel(summed(0), plan=plan)(X), np.cumsum(X, 0))
    with pytest.raises(sbp.PlanError, match=r"another function or other shapes.*Arguments and results are alike"):
        sbp.auto_parallel(summed(1), plan=plan)(X)


def test_what_differs_is_said() -> None:
    plan = sbp.plan(step, X, X, placement=place(8), donate_argnums=0)
    for fn, args, donate, said in (
        (step, (X, X[:4]), 0, r"argument 1 is float32\[4,8\], in the plan it is float32\[8,8\]"),
        (lambda w, x: (w, x, x), (X, X), 0, "The plan has 2 results, this function 3"),
        (lambda w, x: (w @ x, jnp.sum(x)), (X, X), 0, r"The plan is of \d+ ops"),
        (step, (X, X), (), "which arguments are donated"),
    ):
        with pytest.raises(sbp.PlanError, match=said):
            sbp.auto_parallel(fn, plan=plan, donate_argnums=donate)(*args)


@pytest.mark.parametrize("read_back", [False, True])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"placement": place(2, 4)}, r"placement= is cpu\[dp=2, tp=4\], the plan is for cpu\[dp=8\]"),
        ({"placement": sbp.placement("cpu", list(range(8))[::-1], axis_names=("dp",))}, "ranks .7, 6, 5.* and .0, 1"),
        ({"placement": 4}, "placement=4 is a number of devices, the plan is for 8"),
        ({"in_sbp": ("B", "B")}, r"in_sbp of 1 is \(B\), in the plan it is \(S\(0\)\)"),
        ({"out_sbp": (sbp.split(1), None)}, r"out_sbp of 0 is \(S\(1\)\), in the plan it is \(B\)"),
        ({"config": sbp.AutoParallelConfig(solver="greedy")}, "solver='greedy', the plan was made with solver='ilp'"),
        ({"config": sbp.AutoParallelConfig(cluster="h100")}, "asks for cluster 'h100', the plan was made for 'cpu'"),
        ({"config": sbp.AutoParallelConfig(memory_limit=16.0)}, "allows .* MiB a device, the plan needs"),
    ],
    ids=str,
)
def test_options_that_disagree_with_the_plan_are_errors(tmp_path: Path, options, said: str, read_back: bool) -> None:
    pins = ("B", "S(0)")
    plan = sbp.plan(step, X, X, placement=place(8), donate_argnums=0, in_sbp=pins)
    if read_back:
        plan.save(tmp_path / "plan.json")
        plan = sbp.Plan.load(tmp_path / "plan.json")
    with pytest.raises(sbp.PlanError, match=f"disagree: .*{said}"):
        sbp.auto_parallel(step, plan=plan, donate_argnums=0, **options)(X, X)


def test_options_that_agree_or_say_nothing_are_taken(tmp_path: Path) -> None:
    config = sbp.AutoParallelConfig(solver="dp", cluster="cpu", time_limit=5.0)
    pins = ("B", "S(0)")
    sbp.plan(step, X, X, placement=place(8), donate_argnums=0, in_sbp=pins, config=config).save(tmp_path / "p")
    plan = sbp.Plan.load(tmp_path / "p")
    assert plan.options == {"solver": "dp"}
    every: list[dict[str, Any]] = [
        {}, {"placement": place(8)}, {"placement": 8}, {"placement": "auto"}, {"in_sbp": pins}, {"config": config},
        {"out_sbp": (None, sbp.broadcast)}, {"config": sbp.AutoParallelConfig(memory_limit=1e9, gap=0.1)},
    ]  # fmt: skip
    for options in every:
        run = sbp.auto_parallel(step, plan=plan, donate_argnums=0, **options)
        np.testing.assert_allclose(run(X, X)[1], step(X, X)[1], rtol=1e-5)
    assert plan.in_tree is None  # what runs it leaves the user's plan as it is


def test_what_older_plans_of_this_schema_wrote_otherwise_is_understood(tmp_path: Path) -> None:
    """The text of the hardware, which another writer wrote, and the name of a statistic."""
    plan = sbp.plan(step, X, X, placement=place(8), donate_argnums=0)
    data = json.loads(json.dumps(plan.to_json()))
    data["statistics"]["cells"] = data["statistics"].pop("clusters")
    data["hardware"] = "# by another writer\n" + plan.hardware.replace("tiles = []", "tiles = [\n]")
    old = sbp.Plan.from_json(data)
    assert str(old) == str(plan) and old.hardware != plan.hardware
    old.to_html(tmp_path / "plan.html")
    assert not sbp.diff(old, plan).remarks
    config = sbp.AutoParallelConfig(cluster="cpu")
    run = sbp.auto_parallel(step, plan=old, donate_argnums=0, config=config)
    np.testing.assert_allclose(run(X, X)[1], step(X, X)[1], rtol=1e-5)


def test_a_plan_of_an_older_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    sbp.plan(step, X, X, placement=place(8)).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 3}))
    with pytest.raises(sbp.PlanError, match=r"schema version 3; this version of sbp_jax reads .*Make the plan again"):
        sbp.Plan.load(path)
