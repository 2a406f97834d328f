"""Pipelines of which the planner chooses all: stages, what each splits, micro-batches. A GPT, a T5, a Wide-ResNet."""

import importlib
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import sbp_jax as sbp
from zoo import build

ROOT = Path(__file__).parents[2]


def slow_network(per_node: int) -> sbp.Cluster:
    """Nodes of V100s whose network is so slow that stages are worth it, even for small models."""
    v100 = sbp.cluster.get("v100")
    node, network = v100.levels
    slow = replace(network, bytes_per_second=network.bytes_per_second / 1000)
    return replace(v100, levels=(replace(node, devices=per_node), slow))


def example(model: str) -> tuple[Any, Any, Any]:
    """A step, what makes its state, its batch."""
    if model == "t5":
        # Not for longer: a file there has the name of a folder of tests, and would be found in its place.
        sys.path.append(str(ROOT / "benchmarks"))
        transformers = importlib.import_module("small.transformers")
        sys.path.remove(str(ROOT / "benchmarks"))
        made = transformers.t5(layers=2, width=64, vocab=256, seq=16, batch=32)
        return made.step, made.init, made.batch()
    case = build(model, "tiny", batch=32, **({"layers": 4, "dropout": 0.0} if model == "gpt" else {}))
    return case.step, case.init, case.batch(0)


def compared(model: str, devices: int, execution: str = "actors", steps: int = 2) -> Any:
    """Steps of a chosen pipeline against ``jax.jit``; the plan."""
    step, init, data = example(model)
    where = sbp.placement("cpu", np.arange(devices).reshape(2, -1), axis_names=("nodes", "gpus"))
    pipeline = sbp.Pipeline("auto", "auto", execution=execution)
    config = sbp.AutoParallelConfig(pipeline=pipeline, cluster=slow_network(devices // 2))
    run = sbp.auto_parallel(step, placement=where, donate_argnums=0, config=config)
    state, right, plain = init(), init(), jax.jit(step)
    for _ in range(steps):
        state, told = run(state, data)
        right, expected = plain(right, data)
        for a, b in zip(jax.tree.leaves(told), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4)
    plan = run.plan(state, data)
    run.close()
    return plan


_CASES = [("gpt", "spmd"), ("gpt", "actors"), ("t5", "actors"), ("t5", "spmd")]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "execution"), _CASES)
def test_what_is_chosen_has_the_same_numbers_and_is_no_slower_than_no_pipeline(model: str, execution: str) -> None:
    assert compared(model, 8, execution).step_seconds <= 1.1 * alone(model).step_seconds


def alone(model: str) -> Any:
    """The plan without a pipeline."""
    step, init, data = example(model)
    where = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("nodes", "gpus"))
    config = sbp.AutoParallelConfig(cluster=slow_network(4))
    return sbp.plan(step, jax.eval_shape(init), data, placement=where, donate_argnums=0, config=config)


@pytest.mark.slow
def test_statistics_of_the_batch_leave_one_micro_batch() -> None:
    assert compared("wide_resnet", 8, steps=1).microbatches == 1


_PROGRAM = """
import sys
from pipeline.test_combined import compared
plan = compared(sys.argv[1], int(sys.argv[2]))
used = sorted(d for s in plan.stages for d in s.placement.flat_ranks)
assert used == list(range(int(sys.argv[2]))), used
print("PLAN", len(plan.stages), plan.microbatches, [str(x.signature) for s in plan.stages for x in s.inputs])
"""


def subprocess_of(model: str, devices: int, seed: str) -> str:
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, model, str(devices)], env=env, text=True, capture_output=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("PLAN")]
    return line


@pytest.mark.slow
@pytest.mark.parametrize("devices", [16, 64])
@pytest.mark.parametrize("model", ["gpt", "t5", "wide_resnet"])
def test_on_more_devices(model: str, devices: int) -> None:
    assert math.prod(map(int, subprocess_of(model, devices, "0").split()[1:3])) >= 1


@pytest.mark.slow
def test_the_same_pipeline_under_two_hash_seeds() -> None:
    assert subprocess_of("gpt", 8, "1") == subprocess_of("gpt", 8, "2")
