"""The whole road on the model zoo: three steps by the plan equal three on one device, XLA does what was planned."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import sbp_jax as sbp

MESH_SHAPES = ((2, 4), (1, 8), (8, 1))
FAMILIES = ["mlp", "gpt", "gpt_nnx", "resnet", "lstm"]


def place(shape: tuple[int, ...]) -> sbp.Placement:
    return sbp.placement("cpu", np.arange(8).reshape(shape), axis_names=("dp", "tp"))


def plain(x: Any) -> np.ndarray:
    """A leaf as numbers."""
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.extended) else x, np.float64)


def run(case: Any, mesh: tuple[int, ...], tolerance: float, **options: Any) -> sbp.Plan:
    """Three steps both ways; the plan, verified."""
    step = sbp.auto_parallel(case.step, placement=place(mesh), donate_argnums=0, **options)
    alone = jax.jit(case.step)
    state, expected = case.init(), case.init()
    plan = step.plan(state, case.batch(0))
    for seed in range(3):
        state, loss = step(state, case.batch(seed))
        expected, wanted = alone(expected, case.batch(seed))
        assert_allclose(loss, wanted, rtol=tolerance)
    # Adam divides by the gradient's own size: where that is rounding noise (a key's bias), a step of 3e-3 is noise too.
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert_allclose(plain(a), plain(b), rtol=50 * tolerance, atol=10 * tolerance)
    report = plan.verify()
    assert report.exact, str(report)
    assert_allclose(report.found_bytes - report.widened_bytes, plan.bytes_on_wire, rtol=1e-6)
    return plan


# Every model on both axes; on one axis the quickest.
QUICK = {*((family, (2, 4)) for family in FAMILIES), ("mlp", (1, 8)), ("mlp", (8, 1))}


@pytest.mark.parametrize(
    ("family", "mesh_shape"),
    [
        pytest.param(f, m, marks=() if (f, m) in QUICK else pytest.mark.slow, id=f"{m[0]}x{m[1]}-{f}")
        for f in FAMILIES
        for m in MESH_SHAPES
    ],
)
def test_three_steps_equal_one_device(family: str, mesh_shape: tuple[int, int]) -> None:
    case = importlib.import_module(f"zoo.{family}").build("tiny")
    plan = run(case, mesh_shape, 2e-5)
    assert plan.unruled == []
    assert all(b.source or b.user for b in plan.boxings())


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16", "layers": 1},
        {"remat": True, "layers": 1},
        pytest.param({"grad_accumulation": 4, "layers": 1}, marks=pytest.mark.slow),
        pytest.param({"scan_layers": True, "layers": 3}, marks=pytest.mark.slow),
    ],
    ids=lambda o: next(iter(o)),
)
def test_gpt_variants(options: dict[str, Any]) -> None:
    case = importlib.import_module("zoo.gpt").build("tiny", **options)
    run(case, (2, 4), 2e-2 if "dtype" in options else 2e-5)
