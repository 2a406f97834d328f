"""A step that takes its gradients inside a loop of its own has no forward pass to cut: the error says what to do."""

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
from sbp_jax.errors import PlanError


def loss(w, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w))


def step(w, batch):
    def add(total, x):
        return total + jax.grad(loss)(w, x), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(w), batch.reshape(4, -1, 16))
    return w - 0.1 * total


@pytest.mark.parametrize("stages", [2, "auto"])
def test_gradients_inside_a_scan_cannot_be_cut(stages):
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(stages=stages, microbatches=2))
    planned = sbp.auto_parallel(step, placement=sbp.placement("cpu", [0, 1]), donate_argnums=0, config=config)
    shapes = jax.ShapeDtypeStruct((16, 16), "float32"), jax.ShapeDtypeStruct((32, 16), "float32")
    with pytest.raises(PlanError, match=r"gradients inside a scan at .*one jax\.value_and_grad"):
        planned.plan(*shapes)
