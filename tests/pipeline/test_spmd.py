"""Pipelines as one program, against plain ``jax.jit`` and against the actors: schedules, models, memory, what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from examples import zoo
from pipeline.steps import batch, check, mlp_state, mlp_step
from pipeline.test_pipeline import EIGHT, SYNCHRONOUS, TWO, arrays, crossed, normed
from sbp_jax.lower.hlo import collectives
from sbp_jax.schedules import peak_held, schedules

FOUR = sbp.placement("cpu", ranks=range(4))


def options(*args: Any, **kwargs: Any) -> sbp.AutoParallelConfig:
    return sbp.AutoParallelConfig(pipeline=sbp.Pipeline(*args, **kwargs, execution="spmd"))


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_every_schedule_gives_the_numbers_of_no_pipeline_and_of_the_actors(name: str, ranks: int) -> None:
    chunks = 2 if schedules()[name].chunks is None else None
    where, state = sbp.placement("cpu", ranks=range(ranks)), lambda: mlp_state(8)
    pipeline = sbp.Pipeline(ranks, 8, name, chunks, execution="spmd")
    run = check(mlp_step, state, batch(), pipeline, where)
    actors = sbp.auto_parallel(
        mlp_step, placement=where, donate_argnums=0,
        config=sbp.AutoParallelConfig(pipeline=sbp.Pipeline(ranks, 8, name, chunks)),
    )  # fmt: skip
    found, expected = run(state(), batch()), actors(state(), batch())
    close(found, expected, 1e-6)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.sharding == b.sharding and a.weak_type == b.weak_type
    actors.close()


@pytest.mark.parametrize("model", ["gpt", "lstm", "dlrm"])
def test_stages_are_planned_over_their_devices(model: str) -> None:
    case = zoo.build(model)
    data = case.batch(0)
    run = sbp.auto_parallel(case.step, placement=EIGHT, donate_argnums=0, config=options(2, 4))
    state, loss = run(case.init(), data)
    right, expected = jax.jit(case.step)(case.init(), data)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(right), strict=True):
        # Adam divides a gradient by its size: where it is zero but for rounding, so is the update's sign.
        if "b_k" not in jax.tree_util.keystr(path) and jnp.issubdtype(b.dtype, jnp.number):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("name", "stages", "chunks"), [("1f1b", 4, None), ("interleaved_1f1b", 2, 2), ("zb_v", 2, None), ("chimera", 4, None)]
)
def test_an_encoder_is_read_by_all_stages_of_a_decoder_and_shares_its_embedding(
    name: str, stages: int, chunks: int | None
) -> None:
    def state() -> Any:
        rng = np.random.default_rng(0)
        layers = {k: [[jnp.asarray(rng.normal(size=(16, 16)) / 8, jnp.float32) for _ in range(3)] for _ in range(3)]
                  for k in ("encoder", "decoder", "cross")}  # fmt: skip
        return {"embed": jnp.asarray(rng.normal(size=(32, 16)), jnp.float32), **layers}

    rng = np.random.default_rng(1)
    source, target = rng.integers(0, 32, (8, 12)), rng.integers(0, 32, (8, 10))
    run = sbp.auto_parallel(crossed, placement=FOUR, donate_argnums=0, config=options(stages, 4, name, chunks))
    mine, right = state(), state()
    for _ in range(2):
        mine, loss = run(mine, source, target)
        right, expected = jax.jit(crossed)(right, source, target)
        close((mine, loss), (right, expected), 1e-5)
