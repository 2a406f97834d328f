"""Every search method of every family answers alike: twice, whatever clocks say, in threads, under any hash seed."""

import functools
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from other_process import under_another_hash_seed
from sbp_jax.pipeline.searches import search_stages
from sbp_jax.pipeline.stages import StageCosts, in_flight_of
from sbp_jax.planner.catalogue import lookup
from sbp_jax.planner.placing import PlacingTask, sample_graph
from sbp_jax.planner.rewriting.taso import taso
from sbp_jax.trace import build

METHODS = sbp.planner.solvers()
# Their networks take seconds to compile: without the slow tests they are asked twice, in test_placing.py.
LEARNED = ("colocrl", "gdp", "hdp", "heterps", "placeto", "spotlight", "tapp")
SHORT: dict[str, dict[str, Any]] = {n: {"steps": 2, "samples": 4} for n in LEARNED} | {
    "auto_map": {"episodes": 4}, "automap": {"episodes": 8}, "flexflow": {"steps": 2000}, "tensoropt": {"points": 4},
    "regal": {"priors": "uniform", "generations": 5},
}  # fmt: skip
PINS = ({"table": None, "a": "B, S(1)", "b": None}, "S(0), B", None)
MESH = sbp.placement.abstract((2, 4), cluster="a100-80")
DEVICES = sbp.Devices.of("a100-80", "v100", "host")
NEAR = sbp.Devices.of("a100-80", "v100", bytes_per_second=6e11, latency_seconds=2e-6)


def step(w: dict[str, jax.Array], x: jax.Array, ids: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss(w: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] + w["table"][ids]) ** 2)

    value, grads = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), value


def shapes() -> tuple[Any, ...]:
    sizes = {"table": (4096, 64), "a": (64, 128), "b": (128, 64)}
    f = {k: jax.ShapeDtypeStruct(s, np.float32) for k, s in sizes.items()}
    return f, jax.ShapeDtypeStruct((256, 64), np.float32), jax.ShapeDtypeStruct((256,), np.int32)


def plan_of(name: str) -> sbp.Plan:
    options = dict(SHORT.get(name, {}))
    if name == "adaptive_paddle":
        options["earlier"] = plan_of("zero3")
    config = sbp.AutoParallelConfig(solver=name, solver_options=options, overlap=False)
    if name == "exhaustive":
        small = jax.ShapeDtypeStruct((64, 64), np.float32)
        return sbp.plan(lambda w, x: w * x.sum(), small, small, placement=MESH, config=config)
    pins: Any = {"in_sbp": PINS} if name == "gspmd" else {}
    return sbp.plan(step, *shapes(), placement=MESH, donate_argnums=0, config=config, **pins)


def answer(name: str) -> str:
    """What a method says of a small problem, without the seconds that it took."""
    method = lookup(name, METHODS[name].family)
    if method.family == "signatures":
        plan = json.loads(json.dumps(plan_of(name).to_json()))
        del plan["planning_seconds"]
        for key in ("build_seconds", "solve_seconds"):
            del plan["statistics"][key]
        return json.dumps(plan, sort_keys=True)
    if name == "accpar_ratios":  # it cuts the ops of a program
        x = jax.ShapeDtypeStruct((16384, 1024), np.float32)
        w = jax.ShapeDtypeStruct((1024, 1024), np.float32)
        placed = sbp.place_ops(lambda x, a, b: (jnp.tanh(x @ a) @ b).sum(), x, w, w, devices=NEAR, solver=name)
        assert "products cut" in placed.notes[0], placed.notes
        return repr((placed.timeline.seconds, sorted(placed.device_of.items()), placed.notes))
    if method.family == "placing":
        return repr(method.run(PlacingTask(sample_graph(7, 10, DEVICES), DEVICES, method.checked(SHORT.get(name)))))
    if method.family == "stages":
        random, sizes = np.random.default_rng(0), (1, 2, 4)
        work = np.concatenate([[0.0], np.cumsum(random.uniform(0.2, 2.0, 6))])
        seconds = np.array([[[max(work[j] - work[i], 0.0) / d if j > i else np.inf for d in sizes]
                             for j in range(7)] for i in range(6)])  # fmt: skip
        costs = StageCosts(seconds, random.uniform(0, 0.2, (6, 3)), np.zeros((6, 7, 3)))
        meshes: Any = [SimpleNamespace(devices=d) for d in sizes]
        return repr(search_stages(name, {}, costs, meshes, 4, 4, limit_bytes=None, in_flight=in_flight_of("1f1b"),
                                  overlaps=False))  # fmt: skip
    assert method.family == "rewriting"
    x = jax.ShapeDtypeStruct((8, 8), np.float32)
    program = build(jax.make_jaxpr(lambda x, a, b: (jnp.tanh(x @ a).T, (x @ b).T.T @ a))(x, x, x))
    found = taso(program, lambda p, origin: 1.01 ** len(p.nodes), method.checked({"steps": 20}))
    return repr((found.moves, found.seconds, found.priced))


QUICK = [n for n in METHODS if n not in LEARNED]
once = functools.cache(answer)


def scaled(clock: Callable[[], float], factor: float) -> Callable[[], float]:
    begin = clock()
    return lambda: begin + factor * (clock() - begin)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in LEARNED)])
def test_whatever_clocks_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = once(name)
    for factor in (0.4, 2.5):
        with monkeypatch.context() as patch:
            for clock in ("monotonic", "perf_counter", "process_time", "time"):
                patch.setattr(time, clock, scaled(getattr(time, clock), factor))
            assert answer(name) == first, factor


def test_in_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        for name, found in zip(QUICK, pool.map(answer, QUICK), strict=True):
            assert found == once(name), name


def test_under_any_hash_seed() -> None:
    there = under_another_hash_seed(__file__, "{n: t.answer(n) for n in t.QUICK}")
    assert there.keys() == set(QUICK)
    for name in QUICK:
        assert there[name] == once(name), name
