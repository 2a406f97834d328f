"""PipeDream and PipeDream-2BW against a plain simulation of them: stale weights, versions held, what is refused."""

import gc
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sbp_jax as sbp
from sbp_jax.pipeline.run.stage_versions import VersionedRun
from sbp_jax.pipeline.run.step import PipelineStep
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

    def __init__(self, ws: Any, optimizer: optax.GradientTransformation) -> None:
        self.newest: Any = ws
        self.optimizer, self.held = optimizer, optimizer.init(ws)
        self.under_way: dict[int, Any] = {}
        self.history: list[Any] = [ws]
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
@pytest.mark.parametrize("solver", ["ilp", "zero2", "zero3"])
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


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw"])
def test_so_many_arrays_of_its_weights_are_on_a_stages_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most, plain = [0, 0, 0], VersionedRun.update
    gc.collect()
    others = jax.live_arrays()  # what other tests left; kept, so that no number of theirs is given again
    known = {id(x) for x in others}

    def counted(self: VersionedRun, group: int) -> Any:
        made, s = plain(self, group), self.parts.source.stage
        (device,) = self.parts.plan.placement.flat_ranks
        alive = [x for x in jax.live_arrays() if id(x) not in known and x.shape == (WIDTH, WIDTH)]
        there = [x for x in alive if [d.id for d in x.devices()] == [device]]
        most[s] = max(most[s], len({x.unsafe_buffer_pointer() for x in there}) // (LAYERS // 3))
        return made

    monkeypatch.setattr(VersionedRun, "update", counted)
    run = run_of(OPTIMIZERS["sgd"], 3, {"microbatches": 12, "schedule": name})
    state = weights(), OPTIMIZERS["sgd"].init(weights())
    state = run(state, *batch())[0]
    gc.collect()
    most[:] = [0, 0, 0]
    run(state, *batch())
    # The caller still holds what the call began with.
    assert most == [n + 1 for n in by_name(name, 3, 12).weight_versions]
    run.close()


def told_step(state: Any, x: Any, y: Any) -> Any:
    """Clips each array by its own norm; tells of all gradients, of the weights before and after, and of the rate."""

    def loss_of(ws: Any) -> tuple[jax.Array, jax.Array]:
        h = layers(ws, x)
        return error(h, y), h

    (loss, h), g = jax.value_and_grad(loss_of, has_aux=True)(state["w"])
    rate = 0.02 / (1.0 + state["count"])
    clipped = [a / jnp.maximum(jnp.linalg.norm(a), 1.0) for a in g]
    w = [a - rate * b for a, b in zip(state["w"], clipped, strict=True)]
    told = {
        "loss": loss, "rate": rate, "h": h, "largest": jnp.max(jnp.abs(h - y)),
        "norm": jnp.sqrt(sum(jnp.vdot(a, a) for a in g)), "before": sum(jnp.vdot(a, a) for a in state["w"]),
        "after": sum(jnp.vdot(a, a) for a in w), "again": w[0],
    }  # fmt: skip
    return {"w": w, "count": state["count"] + 1, "frozen": state["frozen"]}, told


def test_what_is_told_is_of_all_micro_batches_and_of_the_last_update() -> None:
    m, where = 4, sbp.placement("cpu", ranks=[0, 1])
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(["w/3"], m, "pipedream"))
    run = sbp.auto_parallel(told_step, placement=where, donate_argnums=0, config=config)
    state, told = run({"w": weights(), "count": jnp.zeros(()), "frozen": jnp.ones(3)}, *batch())
    # By hand: two stages; micro-batch k on stage 0 has version max(0, k - 1), on stage 1 version k.
    x, y = (np.split(a, m) for a in batch())
    first, second, under_way = [weights()[:3]], [weights()[3:]], {}
    sums, losses, outs = [jnp.zeros((WIDTH, WIDTH))] * LAYERS, [], []

    def clipped(w: Any, g: Any, k: int) -> Any:
        return [a - 0.02 / (1 + k) * b / max(np.linalg.norm(b), 1.0) for a, b in zip(w, g, strict=True)]

    for k in range(m):
        h, under_way[k] = jax.vjp(layers, first[max(0, k - 1)], x[k])
        out, loss_back = jax.vjp(lambda ws, h: layers(ws, h), second[k], h)
        loss, error_back = jax.vjp(lambda o, k=k: error(o, y[k]), out)
        dw1, dh = loss_back(error_back(jnp.ones(()))[0])
        dw0, _ = under_way[k](dh)
        sums = [a + b / m for a, b in zip(sums, [*dw0, *dw1], strict=True)]
        first.append(clipped(first[-1], dw0, k))
        second.append(clipped(second[-1], dw1, k))
        losses.append(loss)
        outs.append(out)
    final, before = [*first[m], *second[m]], [*first[m - 1], *second[m - 1]]
    expected = {
        "loss": np.mean(losses), "rate": 0.02 / m, "h": np.concatenate(outs),
        "largest": np.abs(np.concatenate(outs) - batch()[1]).max(), "norm": np.sqrt(sum(np.vdot(a, a) for a in sums)),
        "before": sum(np.vdot(a, a) for a in before), "after": sum(np.vdot(a, a) for a in final), "again": final[0],
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(told[name], value, rtol=3e-5, atol=3e-5, err_msg=name)
    for a, b in zip(state["w"], final, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)
    assert float(state["count"]) == m
    np.testing.assert_array_equal(state["frozen"], np.ones(3))
    run.close()


def test_running_statistics_are_those_of_each_micro_batch() -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        def loss_of(w: Any) -> Any:
            h = x @ w[0]
            mean = h.mean(0)
            return error((h - mean) @ w[1], y), mean

        (loss, mean), g = jax.value_and_grad(loss_of, has_aux=True)(state["w"])
        w = [a - 0.02 * b for a, b in zip(state["w"], g, strict=True)]
        return {"w": w, "mean": 0.5 * state["mean"] + 0.5 * mean}, loss

    def first() -> Any:
        return {"w": weights()[:2], "mean": jnp.zeros(WIDTH)}

    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(1, 4, "pipedream", batch_statistics="microbatch"))
    run = sbp.auto_parallel(step, placement=sbp.placement("cpu", ranks=[0]), donate_argnums=0, config=config)
    found, _ = run(first(), *batch())
    right = first()
    for x, y in zip(*(np.split(a, 4) for a in batch()), strict=True):
        right, _ = step(right, x, y)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)
    run.close()


def test_a_gradient_is_taken_times_the_number_of_groups() -> None:
    # Of a sum over the examples, too: each update is the step's own, of a batch of copies of the group.
    def step(w: Any, x: Any) -> Any:
        loss, g = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w[0])))(w)
        return [w[0] - 0.01 * g[0]], loss

    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(1, 2, "pipedream"))
    run = sbp.auto_parallel(step, placement=sbp.placement("cpu", ranks=[0]), donate_argnums=0, config=config)
    found, loss = run(weights()[:1], batch()[0])
    right, total = weights()[:1], 0.0
    for x in np.split(batch()[0], 2):
        right, twice = step(right, np.concatenate([x, x]))
        total += float(twice) / 2
    np.testing.assert_allclose(found[0], right[0], rtol=3e-5, atol=3e-5)
    assert float(loss) == pytest.approx(total, rel=1e-5)
    run.close()


def plan_of(
    step: Any, state: Any, stages: Any = 2, schedule: str = "pipedream", microbatches: int = 4, **more: Any
) -> Any:
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(stages, microbatches, schedule, **more))
    where = sbp.placement("cpu", ranks=[0, 1])
    return sbp.plan(step, state, *batch(), placement=where, donate_argnums=0, config=config)


def test_a_plan_says_that_the_mathematics_change_and_counts_versions() -> None:
    step, state = step_of(OPTIMIZERS["sgd"]), (weights(), OPTIMIZERS["sgd"].init(weights()))
    plans = {name: plan_of(step, state, ["state/0/3"], name) for name in ("1f1b", "pipedream", "pipedream_2bw")}
    assert plans["1f1b"].notes == []
    assert plans["pipedream"].notes == [
        "pipedream changes the mathematics: 4 updates a step, one after every micro-batch, by gradients at weights "
        "that are up to 1 updates old; versions of the weights by group of devices: (2, 1)"
    ]
    assert "pipedream_2bw changes the mathematics: 2 updates a step, one after every 2 micro-batches" in str(
        plans["pipedream_2bw"]
    )
    weight = 4 * 3 * WIDTH * WIDTH
    older = [m - n for m, n in zip(plans["pipedream"].memory_by_rank, plans["1f1b"].memory_by_rank, strict=True)]
    assert older == [weight, 0]
    assert plans["pipedream"].step_seconds > plans["1f1b"].step_seconds
    one = plan_of(step, state, ["state/0/3"], "pipedream_2bw", update_every=4)
    assert "one update a step" in one.notes[0]


def global_norm(state: Any, x: Any, y: Any) -> Any:
    loss, g = jax.value_and_grad(lambda ws: error(layers(ws, x), y))(state)
    norm = optax.global_norm(g)
    return [a - 0.1 * b / jnp.maximum(norm, 1.0) for a, b in zip(state, g, strict=True)], loss


def by_the_loss(state: Any, x: Any, y: Any) -> Any:
    loss, g = jax.value_and_grad(lambda ws: error(layers(ws, x), y))(state)
    return [a - 0.1 * loss * b for a, b in zip(state, g, strict=True)], loss


def tied(state: Any, x: Any, y: Any) -> Any:
    loss, g = jax.value_and_grad(lambda ws: error(layers([*ws, ws[0]], x), y))(state)
    return [a - 0.1 * b for a, b in zip(state, g, strict=True)], loss


def read_elsewhere(state: Any, x: Any, y: Any) -> Any:
    def loss_of(ws: Any) -> Any:
        return error(layers([*ws, jax.lax.stop_gradient(ws[0])], x), y)

    loss, g = jax.value_and_grad(loss_of)(state)
    return [a - 0.1 * b for a, b in zip(state, g, strict=True)], loss


def by_the_batch(state: Any, x: Any, y: Any) -> Any:
    loss, g = jax.value_and_grad(lambda ws: error(layers(ws, x), y))(state)
    largest = jnp.sort(x, 0)[-1, 0]
    return [state[0] - 0.1 * largest * g[0], *(a - 0.1 * b for a, b in zip(state[1:], g[1:], strict=True))], loss


def no_state(state: Any, x: Any, y: Any) -> Any:
    return error(layers(state, x), y)


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw"])
@pytest.mark.parametrize(
    ("step", "told"),
    [
        (global_norm, r"updates every stage by itself.*: \w+ at .*test_asynchronous.py:\d+ \(global_norm\) in stage \d "
                      r"needs .* of stage \d.*clip every array by its own norm.*\"1f1b\""),
        (by_the_loss, r"mul at .*test_asynchronous.py:\d+ .* in stage 0 needs .* of stage 1"),
        (tied, r"in stage \d needs .* of stage \d for it .*weights that stages share"),
        (read_elsewhere, r"argument 0/0 is read by stage 1 and updated by stage 0 \(weights that stages share\)"),
        (by_the_batch, r"updates weights after a part of the batch: \w+ at .* needs all of argument 1 for the update"),
        (no_state, r"no argument comes back as a result: donate the training state"),
    ],
)  # fmt: skip
def test_what_stages_cannot_update_alone_is_refused(name: str, step: Any, told: str) -> None:
    with pytest.raises(sbp.PlanError) as error:
        plan_of(step, weights(), ["state/3"], name)
    assert re.search(told, str(error.value)), str(error.value)


def test_one_update_is_the_synchronous_step_and_refuses_nothing() -> None:
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(["state/3"], 4, "pipedream_2bw", update_every=4))
    run = sbp.auto_parallel(global_norm, placement=sbp.placement("cpu", ranks=[0, 1]), donate_argnums=0, config=config)
    found, _ = run(weights(), *batch())
    right, _ = jax.jit(global_norm)(weights(), *batch())
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)
    run.close()


def test_numbers_that_a_schedule_does_not_have() -> None:
    with pytest.raises(sbp.PlanError, match=r"schedule '1f1b' has no choice of how many micro-batches an update is"):
        sbp.Pipeline(2, 4, "1f1b", update_every=2)
    with pytest.raises(sbp.PlanError, match=r"update_every=\.\.\.\) is a number of at least 1, got 0"):
        sbp.Pipeline(2, 4, "pipedream_2bw", update_every=0)
    step, state = step_of(OPTIMIZERS["sgd"]), (weights(), OPTIMIZERS["sgd"].init(weights()))
    with pytest.raises(sbp.SbpError, match=r"update_every=1 of 4 micro-batches is not possible, but 2, 4"):
        plan_of(step, state, 2, "pipedream_2bw", update_every=1)


@pytest.mark.parametrize("rescale", [False, True])
def test_a_bias_that_is_added_last_in_a_stage_is_updated_there(rescale: bool) -> None:
    # Its gradient is a sum of what comes from the next stage.
    def step(state: Any, x: Any, y: Any) -> Any:
        def loss_of(p: Any) -> Any:
            h = x
            for w, b in p:
                h = h + jnp.tanh(h @ w) + (b.reshape(1, 2, -1) if rescale else b).reshape(-1)
            return error(h, y)

        loss, g = jax.value_and_grad(loss_of)(state)
        return jax.tree.map(lambda a, b: a - 0.1 * b, state, g), loss

    def first() -> Any:
        return [(w, 0.1 * w[0]) for w in weights()[:2]]

    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(["state/1"], 2, "pipedream"))
    run = sbp.auto_parallel(step, placement=sbp.placement("cpu", ranks=[0, 1]), donate_argnums=0, config=config)
    state, _ = run(first(), *batch())
    assert [[d.id for d in a.devices()] for a in jax.tree.leaves(state)] == [[0], [0], [1], [1]]
    # Two micro-batches: stage 0 uses its first version for both.
    right = [first()]
    parts = list(zip(*(np.split(a, 2) for a in batch()), strict=True))
    one, _ = step(right[0], *parts[0])
    two, _ = step([right[0][0], one[1]], *parts[1])
    moved = jax.tree.map(lambda a, b, c: a + b - c, one[0], two[0], right[0][0])
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves([moved, two[1]]), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)
    run.close()
