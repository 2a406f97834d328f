"""The larger models under a plan: steps equal one device's, XLA does what was planned, and plans make sense."""

from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import sbp_jax as sbp
import zoo

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dlrm": ("dlrm", {}),
}
SLOW_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "moe": ("moe", {}),
    "llama": ("llama", {}),
    "llama-scan-remat": ("llama", {"scan_layers": True, "remat": True}),
    "vit": ("vit", {}),
    "wide_resnet": ("wide_resnet", {}),
    "moe-scan": ("moe", {"scan_layers": True, "layers": 4}),
    "vit-scan-remat": ("vit", {"scan_layers": True, "remat": True}),
}


@pytest.mark.parametrize("variant", [*VARIANTS, *(pytest.param(v, marks=pytest.mark.slow) for v in SLOW_VARIANTS)])
def test_two_steps_equal_one_device(variant: str) -> None:
    name, overrides = (VARIANTS | SLOW_VARIANTS)[variant]
    case = zoo.build(name, **overrides)
    where = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    step, alone = sbp.auto_parallel(case.step, placement=where, donate_argnums=0), jax.jit(case.step)
    init = jax.jit(case.init)
    state, expected = init(), init()
    plan = step.plan(state, case.batch(0))
    assert plan.unruled == []
    for seed in range(2):
        state, loss = step(state, case.batch(seed))
        expected, wanted = alone(expected, case.batch(seed))
        assert_allclose(loss, wanted, rtol=1e-4)
    # Adam divides by the gradient's own size: where that is rounding noise, a step of the learning rate is noise too.
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True)
    close = [np.isclose(a, b, rtol=1e-3, atol=2e-4).mean() for a, b in pairs]
    assert min(close) > 0.97
    assert plan.verify().exact, str(plan.verify())


GSPMD: dict[str, tuple[str, dict[str, Any]]] = {"dlrm": ("dlrm", {})}
SLOW_GSPMD: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("mlp", "gpt", "gpt_nnx", "moe", "resnet", "wide_resnet", "lstm")},
    "gpt-accumulation": ("gpt", {"grad_accumulation": 4, "batch": 32}),
    "llama-scan-remat": ("llama", {"scan_layers": True, "remat": True}),
    "vit-scan-remat": ("vit", {"scan_layers": True, "remat": True}),
}


@pytest.mark.parametrize("mesh", [(2, 4), pytest.param((8, 1), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("variant", [*GSPMD, *(pytest.param(v, marks=pytest.mark.slow) for v in SLOW_GSPMD)])
def test_two_steps_equal_one_device_as_sharding_constraints(variant: str, mesh: tuple[int, int]) -> None:
    name, overrides = (GSPMD | SLOW_GSPMD)[variant]
    case = zoo.build(name, **overrides)
    where = sbp.placement("cpu", np.arange(8).reshape(mesh), axis_names=("dp", "tp"))
    config = sbp.AutoParallelConfig(lowering="gspmd")
    step, alone = sbp.auto_parallel(case.step, placement=where, donate_argnums=0, config=config), jax.jit(case.step)
    state, expected = jax.jit(case.init)(), jax.jit(case.init)()
    for seed in range(2):
        state, loss = step(state, case.batch(seed))
        expected, wanted = alone(expected, case.batch(seed))
        assert_allclose(loss, wanted, rtol=1e-4)
    report = step.plan(state, case.batch(0)).verify()
    assert report.found_bytes <= 1.5 * report.expected_bytes, str(report)


def planned(name: str, size: str, mesh: tuple[int, ...], **overrides: Any) -> sbp.Plan:
    case = zoo.build(name, size, **overrides)
    where = sbp.placement.abstract(mesh, axis_names=("dp", "tp"), cluster="h100")
    return sbp.plan(case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0)


def test_experts_stay_and_tokens_travel() -> None:
    plan = planned("moe", "moe-10b", (2, 4), layers=2, batch=32)
    experts = [leaf for leaf in plan.inputs if "experts" in leaf.path]
    assert len(experts) == 6
    assert all(sbp.split(0) in leaf.signature for leaf in experts)
    assert "all_to_all" in {move.kind for boxing in plan.boxings() for move in boxing.moves}
    # What travels are tokens, not experts.
    moved = {boxing.shape for boxing in plan.boxings()}
    assert not moved & {leaf.shape for leaf in experts}


def test_large_tables_are_never_copied() -> None:
    plan = planned("dlrm", "criteo-small", (2, 4))
    large = [leaf for leaf in plan.inputs if "tables" in leaf.path and leaf.shape[0] >= 1024]
    assert len(large) == 2 * sum(n // 10 > 1024 for n in zoo.dlrm.CRITEO)
    assert all(sbp.broadcast not in leaf.signature for leaf in large)
    assert not {boxing.shape for boxing in plan.boxings()} & {leaf.shape for leaf in large}


@pytest.mark.parametrize(
    ("name", "size", "overrides"),
    [("vit", "vit-b16", {"layers": 2}), ("wide_resnet", "wrn-28-10", {"depth": 10})],
)
def test_images_are_split_by_the_batch(name: str, size: str, overrides: dict[str, Any]) -> None:
    """Where a device has many. With 16 each on 64 devices of eight nodes it is cheaper to repeat a network's narrow
    first layers on every node than to reduce its norms' statistics over nodes: latency, not bytes."""
    plan = planned(name, size, (2, 4), **overrides)
    images = next(leaf for leaf in plan.inputs if len(leaf.shape) == 4 and leaf.shape[-1] == 3)
    assert set(images.signature) == {sbp.split(0)}
