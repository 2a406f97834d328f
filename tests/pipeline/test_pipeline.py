"""Pipelined steps against the same steps on one device: every schedule, marks, statistics, what is refused."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
import zoo
from pipeline.steps import batch, check, mlp_state, mlp_step
from sbp_jax.schedules import peak_held, schedules

EIGHT = sbp.placement("cpu", ranks=np.arange(8).reshape(2, 4), axis_names=("stage", "data"))
TWO = sbp.placement("cpu", ranks=[0, 1])
SYNCHRONOUS = sorted(set(schedules()) - {"pipedream", "pipedream_2bw"})


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_every_schedule_gives_the_numbers_of_no_pipeline_and_holds_what_it_promises(name: str) -> None:
    chunks = 2 if schedules()[name].chunks is None else None
    run = check(mlp_step, mlp_state, batch(), sbp.Pipeline(2, 4, name, chunks), TWO)
    schedule = run.plan(mlp_state(), batch()).schedule
    record = run.record()
    for rank, promised in enumerate(peak_held(schedule)):
        forward = [f"F{s}" + "'" * d for d, s in schedule.stages_of(rank)]
        assert record.peak_together(forward) == promised
    run.close()
    assert run.record() is record


@pytest.mark.parametrize("model", ["gpt", "lstm", "dlrm"])
def test_stages_are_planned_over_their_devices(model: str) -> None:
    case = zoo.build(model)
    data = case.batch(0)
    run = sbp.auto_parallel(
        case.step, placement=EIGHT, donate_argnums=0, config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2, 4))
    )
    state, loss = run(case.init(), data)
    right, expected = jax.jit(case.step)(case.init(), data)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(right), strict=True):
        # Adam divides a gradient by its size: where it is zero but for rounding, so is the update's sign.
        if "b_k" not in jax.tree_util.keystr(path) and jnp.issubdtype(b.dtype, jnp.number):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4, err_msg=jax.tree_util.keystr(path))
    plan = run.plan(case.init(), data)
    assert [p.placement for p in plan.stages] == [EIGHT.stage(0), EIGHT.stage(1)]
    assert {d.id for d in jax.tree.leaves(state)[0].devices()} <= set(range(8))
    run.close()


def test_stages_alike_have_paths_of_their_own() -> None:
    pipeline = sbp.Pipeline([f"params/layers/{k}" for k in (1, 2, 3)], 4)
    plan = sbp.plan(
        mlp_step, mlp_state(), batch(), placement=sbp.placement("cpu", ranks=range(4)), donate_argnums=0,
        config=sbp.AutoParallelConfig(pipeline=pipeline),
    )  # fmt: skip
    assert isinstance(plan, sbp.PipelinePlan)
    for s, stage in enumerate(plan.stages):
        weights = [x.path for x in stage.inputs if "params/layers" in x.path]
        assert weights == [f"0/params/layers/{s}"]


@pytest.mark.parametrize("path", ["layers/2", "state/params/layers/2"])
def test_a_stage_keeps_its_own_weights_and_state_only(path: str) -> None:
    run = check(mlp_step, mlp_state, batch(), sbp.Pipeline([path], 4), TWO)
    state, _ = run(mlp_state(), batch())
    for part in ("params", "momentum"):
        assert [min(d.id for d in w.devices()) for w in state[part]["layers"]] == [0, 0, 1, 1]
    run.close()


def test_weights_are_gathered_once_before_the_micro_batches_and_gradients_reduced_once_after() -> None:
    # Data parallel with the optimizer's state split over devices: what a user of other pipelines arranges by hand.
    case = zoo.build("gpt", dropout=0.0)
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2, 8), solver="zero2")
    run = sbp.auto_parallel(case.step, placement=EIGHT, donate_argnums=0, config=config)
    run(case.init(), case.batch(0))
    plan = run.plan(case.init(), case.batch(0))
    for stage in plan.stages:
        weights = {leaf.shape for leaf in stage.inputs if "params" in leaf.path}
        sent = [b for b in stage.boxing_list if b.shape in weights and b.collective != "none"]
        assert sent and all(b.times == 1 for b in sent)
    run.close()


def two_stages(first: Any, second: Any) -> Any:
    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(p: Any) -> jax.Array:
            with sbp.scope(placement=first):
                h = jax.nn.relu(x @ p[0])
            with sbp.scope(placement=second):
                return jnp.mean((h @ p[1] - y) ** 2)

        value, g = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value

    return step


def arrays() -> tuple[Any, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 6)).astype(np.float32), rng.normal(size=(12, 3)).astype(np.float32)
    weights = (rng.normal(size=(6, 8)).astype(np.float32), rng.normal(size=(8, 3)).astype(np.float32))
    return jax.tree.map(jnp.asarray, weights), x, y


@pytest.mark.parametrize("microbatches", [1, 3])
def test_marks_put_ops_on_devices(microbatches: int) -> None:
    step = two_stages(TWO.stage(0), TWO.stage(1))
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(microbatches=microbatches))
    run = sbp.auto_parallel(step, placement=TWO, donate_argnums=0, config=config)
    p, x, y = arrays()
    (a, b), loss = run(p, x, y)
    p, x, y = arrays()
    right, expected = step(p, x, y)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for mine, other in zip((a, b), right, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    assert [{d.id for d in w.devices()} for w in (a, b)] == [{0}, {1}]
    run.close()


def refused(step: Any, pipeline: sbp.Pipeline, where: Any = TWO) -> str:
    run = sbp.auto_parallel(step, placement=where, config=sbp.AutoParallelConfig(pipeline=pipeline))
    with pytest.raises(sbp.PlanError) as error:
        run.plan(*arrays())
    return str(error.value)


def test_a_value_used_in_an_earlier_stage_is_refused() -> None:
    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        with sbp.scope(placement=TWO.stage(0)):
            a = x @ p[0]
        with sbp.scope(placement=TWO.stage(1)):
            b = jnp.tanh(a)
        with sbp.scope(placement=TWO.stage(0)):
            return b @ p[1]

    told = refused(step, sbp.Pipeline())
    assert re.search(r"dot_general is marked for stage 0 and uses .*, which is made in stage 1", told)


def test_a_mark_inside_a_loop_is_refused() -> None:
    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        def body(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            with sbp.scope(placement=TWO.stage(1)):
                return jnp.tanh(h), None

        return jax.lax.scan(body, x @ p[0], None, length=2)[0]

    assert "sbp.scope inside the body of a scan" in refused(step, sbp.Pipeline())


@pytest.mark.parametrize(
    ("pipeline", "where", "told"),
    [
        (sbp.Pipeline(2, 5), TWO, r"a batch of 12 .* cannot be cut into microbatches=5 .*possible: 1, 2, 3, 4, 6, 12"),
        (sbp.Pipeline(3, 2), TWO, r"2 devices cannot be shared out over 3 stages; possible: 1, 2"),
        (sbp.Pipeline(["nothing"], 2), TWO, r"no op of the forward pass reads an argument below 'nothing'"),
        (sbp.Pipeline(64, 2), sbp.placement.abstract(64), r"64 stages are asked for, and the step has \d+ ops"),
        (sbp.Pipeline(2, 3, "chimera"), TWO, r"even numbers of ranks and micro-batches"),
    ],
)
def test_what_cannot_be_is_refused(pipeline: sbp.Pipeline, where: Any, told: str) -> None:
    def step(p: Any, x: jax.Array, y: jax.Array) -> Any:
        value, g = jax.value_and_grad(lambda p: jnp.mean((jax.nn.relu(x @ p[0]) @ p[1] - y) ** 2))(p)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value

    run = sbp.auto_parallel(step, placement=where, config=sbp.AutoParallelConfig(pipeline=pipeline))
    with pytest.raises(sbp.SbpError, match=told):
        run.plan(*arrays())


def normed(p: Any, x: Any, y: Any) -> Any:
    """A batch norm between two layers."""

    def loss(p: Any) -> jax.Array:
        h = x @ p[0]
        h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)
        return jnp.mean((h @ p[1] - y) ** 2)

    return jax.value_and_grad(loss)(p)[::-1]


def test_statistics_of_the_whole_batch_are_refused_and_those_of_a_micro_batch_given_where_asked() -> None:
    assert re.search(r"sub at .* needs all examples of the batch", refused(normed, sbp.Pipeline(2, 2)))
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2, 2, batch_statistics="microbatch"))
    p, x, y = arrays()
    run = sbp.auto_parallel(normed, placement=TWO, config=config)
    found = run(p, x, y)
    halves = [normed(p, x[k : k + 6], y[k : k + 6]) for k in (0, 6)]
    for a, b, c in zip(*map(jax.tree.leaves, (found, *halves)), strict=True):
        np.testing.assert_allclose(a, (b + c) / 2, rtol=1e-5, atol=1e-6)
    run.close()


def compared(p: Any, x: Any, y: Any) -> Any:
    """A loss over pairs of examples."""

    def loss(p: Any) -> jax.Array:
        a = x @ p[0]
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(a @ a.T)))

    return jax.value_and_grad(loss)(p)[::-1]


@pytest.mark.parametrize("step", [normed, compared])
def test_one_micro_batch_may_need_all_examples(step: Any) -> None:
    run = sbp.auto_parallel(step, placement=TWO, config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2)))
    p, x, y = arrays()
    for a, b in zip(jax.tree.leaves(run(p, x, y)), jax.tree.leaves(step(p, x, y)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    run.close()


def test_settings_of_the_callers_thread_hold_in_the_stages() -> None:
    p, x, y = arrays()
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), p), x.astype(float), y.astype(float)
        run = sbp.auto_parallel(compared, placement=TWO, config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2)))
        for a, b in zip(jax.tree.leaves(run(*wide)), jax.tree.leaves(compared(*wide)), strict=True):
            assert a.dtype == np.float64
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        run.close()


def crossed(p: Any, source: Any, target: Any) -> Any:
    """An encoder and a decoder that reads its result in every layer, and one embedding for both and the output."""

    def attend(q: Any, kv: Any, w: Any) -> Any:
        return jax.nn.softmax((q @ w[0]) @ jnp.swapaxes(kv @ w[1], -1, -2) / 4) @ (kv @ w[2])

    def loss(p: Any) -> jax.Array:
        e, d = p["embed"][source], p["embed"][target]
        for w in p["encoder"]:
            e = e + attend(e, e, w)
        for w, c in zip(p["decoder"], p["cross"], strict=True):
            d = d + attend(d, d, w)
            d = d + attend(d, e, c)
        scores = jax.nn.log_softmax(d @ p["embed"].T)
        return -jnp.mean(jnp.take_along_axis(scores, target[..., None], -1))

    value, g = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value


@pytest.mark.parametrize(
    ("name", "stages", "chunks"), [("1f1b", 4, None), ("interleaved_1f1b", 2, 2), ("zb_v", 2, None)]
)
def test_an_encoder_is_read_by_all_stages_of_a_decoder(name: str, stages: int, chunks: int | None) -> None:
    def state() -> Any:
        rng = np.random.default_rng(0)
        layers = {k: [[jnp.asarray(rng.normal(size=(16, 16)) / 8, jnp.float32) for _ in range(3)] for _ in range(3)]
                  for k in ("encoder", "decoder", "cross")}  # fmt: skip
        return {"embed": jnp.asarray(rng.normal(size=(32, 16)), jnp.float32), **layers}

    rng = np.random.default_rng(1)
    source, target = rng.integers(0, 32, (8, 12)), rng.integers(0, 32, (8, 10))
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(stages, 4, name, chunks))
    run = sbp.auto_parallel(crossed, placement=sbp.placement("cpu", ranks=range(4)), donate_argnums=0, config=config)
    found, expected = run(state(), source, target), jax.jit(crossed)(state(), source, target)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    run.close()


def test_it_cannot_be_traced_or_lowered() -> None:
    run = sbp.auto_parallel(normed, placement=TWO, config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2)))
    with pytest.raises(sbp.PlanError, match="cannot be traced by"):
        jax.jit(run)(*arrays())
    with pytest.raises(sbp.PlanError, match="no one program to lower"):
        run.lower(*arrays())


def test_a_plan_for_described_devices_says_what_it_takes() -> None:
    case = zoo.build("gpt")
    where = sbp.placement.abstract((2, 4), ("stage", "data"), "h100")
    plan = sbp.plan(
        case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0,
        config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2, 4)),
    )  # fmt: skip
    assert isinstance(plan, sbp.PipelinePlan)
    assert plan.microbatches == 4 and len(plan.stages) == 2
    assert plan.step_seconds >= plan.timing.makespan_seconds > 0
    assert 0 < plan.bubble_fraction < 1
    assert "2 stages, 4 micro-batches, 1f1b" in str(plan)
    assert plan.to_svg().startswith("<svg")


@pytest.mark.parametrize(
    "options", [{"microbatches": 0}, {"stages": 0}, {"stages": "some"}, {"schedule": "2f2b"}, {"stages": []},
                {"chunks": 2}, {"batch_statistics": "none"}, {"microbatches": True}],
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(sbp.PlanError):
        sbp.Pipeline(**options)


def test_config_takes_a_pipeline_only() -> None:
    with pytest.raises(sbp.PlanError, match=r"pipeline is a sbp\.Pipeline"):
        sbp.AutoParallelConfig(pipeline=3)  # pyright: ignore


def test_stages_are_found_and_run() -> None:
    where = sbp.placement("cpu", ranks=range(8))
    run = check(mlp_step, mlp_state, batch(), sbp.Pipeline(microbatches=4), where)
    plan = run.plan(mlp_state(), batch())
    ranks = sorted(r for p in plan.stages for r in p.placement.flat_ranks)
    assert ranks == list(range(8))
    assert "stages chosen among ranges of" in plan.notes[0]
    for n in (1, 2, 4, 8):
        other = sbp.plan(
            mlp_step, mlp_state(), batch(), placement=where, donate_argnums=0,
            config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(n, 4)),
        )  # fmt: skip
        assert plan.step_seconds <= other.step_seconds
    run.close()


def deep(layers: int, width: int, size: int, microbatches: int, **options: Any) -> Any:
    """The plan of a stack of layers on two nodes of 8 GPUs whose links are slow between nodes."""
    state = jax.eval_shape(lambda: mlp_state(layers, width))
    data = {k: jax.ShapeDtypeStruct((size, *v.shape[1:-1], *([width] if v.ndim > 1 else [])), v.dtype)
            for k, v in batch().items()}  # fmt: skip
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(microbatches=microbatches), **options)
    return sbp.plan(
        mlp_step, state, data, placement=sbp.placement.abstract((2, 8), ("node", "gpu"), "v100"), donate_argnums=0,
        config=config,
    )  # fmt: skip


@pytest.mark.slow
def test_wide_layers_are_cut_between_nodes() -> None:
    # Gradients of 8 layers of 8192 x 8192 would cross the slow links; activations of 64 examples hardly do.
    plan = deep(8, 8192, 512, 8)
    assert len(plan.stages) > 1
    assert all(p.placement.size <= 8 for p in plan.stages)


def test_many_examples_of_a_small_model_are_not() -> None:
    assert len(deep(2, 64, 65536, 2).stages) == 1


def test_stages_that_do_not_fit_are_refused_with_what_they_hold() -> None:
    with pytest.raises(sbp.PlanError, match=r"MiB|GiB|bytes"):
        deep(8, 8192, 512, 8, memory_limit="64MiB")


def test_marks_without_a_pipeline_are_an_error() -> None:
    def f(w: jax.Array, x: jax.Array) -> jax.Array:
        with sbp.scope(placement=TWO.stage(1)):
            return jnp.tanh(x @ w)

    with pytest.raises(sbp.PlanError, match=r"sbp\.scope, and is not asked to run as a pipeline"):
        sbp.plan(f, jnp.ones((4, 4)), jnp.ones((8, 4)), placement=TWO)
