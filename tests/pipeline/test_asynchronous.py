"""PipeDream and PipeDream-2BW against a plain simulation of them: stale weights, versions held, what is refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sbp_jax as sbp
from sbp_jax.pipeline.step import PipelineStep
from sbp_jax.schedules import by_name, peak_versions

LAYERS, WIDTH, SIZE = 6, 8, 24


def weights() -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5, jnp.float32) for _ in range(LAYERS)]


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(SIZE, WIDTH)).astype(np.float32), rng.normal(size=(SIZE, WIDTH)).astype(np.float32)


def layers(ws: Any, h: Any) -> Any:
    for w in ws:
        h = h + jnp.tanh(h @ w)
    return h


def error(h: Any, y: Any) -> Any:
    return jnp.mean(jnp.sum(jnp.square(h - y), -1))


def step_of(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    def step(state: Any, x: Any, y: Any) -> Any:
        ws, held = state
        loss, g = jax.value_and_grad(lambda ws: error(layers(ws, x), y))(ws)
        change, held = optimizer.update(g, held, ws)
        return (optax.apply_updates(ws, change), held), loss

    return step


OPTIMIZERS = {
    "sgd": optax.sgd(0.02),
    "momentum": optax.sgd(0.02, momentum=0.9),
    "adam": optax.adam(1e-2),
    "adamw with rates": optax.adamw(optax.linear_schedule(1e-2, 1e-3, 10), weight_decay=0.1),
}


class Simulated:
    """A stage of the plain simulation: its weights, and the functions that the micro-batches under way left."""

    def __init__(self, ws: list[Any], optimizer: optax.GradientTransformation) -> None:
        self.newest, self.optimizer, self.held = ws, optimizer, optimizer.init(ws)
        self.under_way: dict[int, Any] = {}
        self.history = [ws]
        self.sum: Any = None

    def forward(self, k: int, ws: Any, h: Any, y: Any, last: bool) -> Any:
        f = (lambda ws, h: error(layers(ws, h), y)) if last else layers
        out, self.under_way[k] = jax.vjp(f, ws, h)
        return out

    def backward(self, k: int, g: Any, every: int) -> Any:
        dw, dh = self.under_way.pop(k)(g)
        self.sum = dw if self.sum is None else jax.tree.map(jnp.add, self.sum, dw)
        if (k + 1) % every == 0:
            mean = jax.tree.map(lambda x: x / every, self.sum)
            change, self.held = self.optimizer.update(mean, self.held, self.newest)
            self.newest, self.sum = optax.apply_updates(self.newest, change), None
            self.history.append(self.newest)
        return dh


def simulated(
    optimizer: optax.GradientTransformation, stages: int, microbatches: int, every: int, is_delayed: bool, calls: int
) -> tuple[list[Any], list[float]]:
    """Weights and losses after some calls, by one forward and one backward in turn."""
    ws, n = weights(), LAYERS // stages
    own = [Simulated(ws[s * n : (s + 1) * n], optimizer) for s in range(stages)]
    x, y = (np.split(a, microbatches) for a in batch())
    losses = []
    for _ in range(calls):
        for stage in own:
            stage.history = [stage.newest]
        out: dict[tuple[int, int], Any] = {(-1, k): part for k, part in enumerate(x)}
        back: dict[tuple[int, int], Any] = {(stages, k): jnp.ones(()) for k in range(microbatches)}
        orders = []
        for s in range(stages):
            ahead = min(stages - 1 - s, microbatches)
            order = [("F", k) for k in range(ahead)]
            for k in range(ahead, microbatches):
                order += [("F", k), ("B", k - ahead)]
            orders.append(order + [("B", k) for k in range(microbatches - ahead, microbatches)])
        while any(orders):
            for s, order in enumerate(orders):
                if not order:
                    continue
                kind, k = order[0]
                if kind == "F" and (s - 1, k) in out:
                    version = max(k // every - 1, 0) if is_delayed else -1
                    out[s, k] = own[s].forward(k, own[s].history[version], out[s - 1, k], y[k], s == stages - 1)
                    order.pop(0)
                elif kind == "B" and (s + 1, k) in back:
                    back[s, k] = own[s].backward(k, back[s + 1, k], every)
                    order.pop(0)
        losses.append(float(np.mean([out[stages - 1, k] for k in range(microbatches)])))
    return [w for stage in own for w in stage.newest], losses


def run_of(
    optimizer: Any, stages: int, pipeline: dict[str, Any], devices: int = 1, donate: bool = True,
    **config: Any,
) -> Any:  # fmt: skip
    cuts = [f"state/0/{k * LAYERS // stages}" for k in range(1, stages)]
    ranks = np.arange(stages * devices).reshape(stages, devices)
    where = sbp.placement("cpu", ranks=ranks, axis_names=("stage", "data"))
    options = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(cuts or 1, **pipeline), **config)
    return sbp.auto_parallel(step_of(optimizer), placement=where, donate_argnums=0 if donate else (), config=options)


def compared(run: Any, optimizer: Any, expected: list[Any], losses: list[float]) -> None:
    """Call a step, and hold its results against those of a simulation."""
    state = weights(), optimizer.init(weights())
    for loss in losses:
        state, told = run(state, *batch())
        assert float(told) == pytest.approx(loss, rel=2e-5)
    for a, b in zip(state[0], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)


def step_in(run: Any) -> PipelineStep:
    """What a function that has run runs."""
    (entry,) = run._entries.values()
    return entry.step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 6), (3, 2)])
def test_pipedream_is_its_simulation(name: str, stages: int, microbatches: int) -> None:
    optimizer = OPTIMIZERS[name]
    run = run_of(optimizer, stages, {"microbatches": microbatches, "schedule": "pipedream"})
    compared(run, optimizer, *simulated(optimizer, stages, microbatches, 1, False, 2))
    schedule = by_name("pipedream", stages, microbatches)
    assert step_in(run).weight_versions == list(peak_versions(schedule))
    if microbatches >= 2 * stages - 1:
        assert step_in(run).weight_versions == list(schedule.weight_versions)
    run.close()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("stages", "microbatches", "every"), [(2, 6, 2), (2, 6, 3), (3, 12, None), (2, 4, 4)])
def test_2bw_is_its_simulation(name: str, stages: int, microbatches: int, every: int | None) -> None:
    optimizer = OPTIMIZERS[name]
    run = run_of(optimizer, stages, {"microbatches": microbatches, "schedule": "pipedream_2bw", "update_every": every})
    compared(run, optimizer, *simulated(optimizer, stages, microbatches, every or stages, True, 2))
    groups = microbatches // (every or stages)
    assert step_in(run).weight_versions == [2 if groups > 1 else 1] * stages
    run.close()


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw"])
def test_it_is_not_the_synchronous_step(name: str) -> None:
    right, _ = simulated(OPTIMIZERS["sgd"], 2, 1, 1, False, 1)
    run = run_of(OPTIMIZERS["sgd"], 2, {"microbatches": 6, "schedule": name})
    (ws, _), _ = run((weights(), OPTIMIZERS["sgd"].init(weights())), *batch())
    assert max(float(jnp.abs(jax.device_get(a) - b).max()) for a, b in zip(ws, right, strict=True)) > 1e-2
    run.close()


def test_pipedream_of_one_stage_is_as_many_steps_of_sgd() -> None:
    run = run_of(OPTIMIZERS["adam"], 1, {"microbatches": 4, "schedule": "pipedream"}, devices=2)
    found, _ = run((weights(), OPTIMIZERS["adam"].init(weights())), *batch())
    right = weights(), OPTIMIZERS["adam"].init(weights())
    for x, y in zip(*(np.split(a, 4) for a in batch()), strict=True):
        right, _ = jax.jit(step_of(OPTIMIZERS["adam"]))(right, x, y)
    assert int(found[1][0].count) == 4
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)
    assert step_in(run).weight_versions == [1]
    run.close()


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw"])
@pytest.mark.parametrize("solver", ["auto", "zero2", "zero3"])
def test_stages_on_several_devices(name: str, solver: str) -> None:
    optimizer, every = OPTIMIZERS["adam"], 1 if name == "pipedream" else 2
    run = run_of(optimizer, 2, {"microbatches": 4, "schedule": name}, 4, solver=solver)
    compared(run, optimizer, *simulated(optimizer, 2, 4, every, every > 1, 2))
    run.close()


def test_state_that_is_not_donated_stays() -> None:
    optimizer = OPTIMIZERS["adam"]
    run = run_of(optimizer, 2, {"microbatches": 4, "schedule": "pipedream"}, donate=False)
    state = weights(), optimizer.init(weights())
    first, again = run(state, *batch()), run(state, *batch())
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(state[0][0], weights()[0])
    expected, _ = simulated(optimizer, 2, 4, 1, False, 1)
    for a, b in zip(first[0][0], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)
    run.close()
