"""Plans that treat several axes of a mesh as one."""

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
from sbp_jax.planner.solvers import Task, base, coarse
from sbp_jax.planner.solvers.family import best_of_family


def train(w1, w2, x):
    loss = lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]))  # noqa: E731
    return jax.tree.map(lambda w, g: w - 0.1 * g, [w1, w2], jax.grad(loss)([w1, w2]))


ARGS = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((512, 2048), (2048, 512), (256, 512))]


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [((8,), []), ((1, 8), []), ((2, 4), [(0, 1)]), ((2, 1, 4), [(0, 2)]), ((2, 2, 2), [(0, 1, 2), (0, 1), (1, 2)])],
)
def test_which_axes_are_one(mesh: tuple[int, ...], axes: list[tuple[int, ...]]) -> None:
    assert list(coarse.merged_axes(mesh)) == axes


def planned(solver: str, *shape: int) -> sbp.Plan:
    where = sbp.placement.abstract(shape, axis_names=("a", "b", "c")[: len(shape)], cluster="a100-80")
    config = sbp.AutoParallelConfig(solver=solver)
    return sbp.plan(train, *ARGS, placement=where, donate_argnums=(0, 1), config=config)


def test_the_best_plan_with_axes_as_one_is_that_of_the_smaller_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    def together(task: Task):
        (axes, *_) = coarse.merged_axes(task.anatomy.axis_sizes)
        return best_of_family(task, coarse.restriction(task, axes))

    monkeypatch.setitem(base._SOLVERS, "axes together", together)
    for mesh in ((2, 4), (2, 2, 2)):
        ours = planned("axes together", *mesh)
        assert ours.objective == pytest.approx(planned("ilp", 8).objective, rel=1e-6)
        for signature in (leaf.signature for leaf in ours.inputs):
            assert len(set(signature)) == 1, "an axis of its own"
