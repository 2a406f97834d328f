"""OneFlow's example of a pipeline: a hidden layer on one device, the output layer on another, two micro-batches."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import sbp_jax as sbp

PIPE = sbp.placement("cpu", ranks=[0, 1])
OPTIMIZER = optax.sgd(1e-2)


class MLP(nnx.Module):
    """Pictures (batch, 28, 28, 1) to logits (batch, 10), each layer where it is to run."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(28 * 28, 64, rngs=rngs)
        self.output = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, pictures: jax.Array) -> jax.Array:
        with sbp.scope(placement=PIPE.stage(0)):
            h = nnx.relu(self.hidden(pictures.reshape(len(pictures), -1)))
        with sbp.scope(placement=PIPE.stage(1)):
            return self.output(h)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def of_module() -> tuple[Callable[..., Any], Callable[[], Any]]:
    def create() -> tuple[nnx.Module, nnx.Optimizer]:
        model = MLP(nnx.Rngs(0))
        return model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    graph, _ = nnx.split(nnx.eval_shape(create))

    def step(state: Any, pictures: jax.Array, labels: jax.Array) -> Any:
        model, optimizer = nnx.merge(graph, state)
        loss, gradient = nnx.value_and_grad(lambda m: cross_entropy(m(pictures), labels))(model)
        optimizer.update(model, gradient)
        return nnx.state((model, optimizer)), loss

    return step, lambda: nnx.state(create())


def of_functions() -> tuple[Callable[..., Any], Callable[[], Any]]:
    def loss_of(params: Any, pictures: jax.Array, labels: jax.Array) -> jax.Array:
        with sbp.scope(placement=PIPE.stage(0)):
            h = jax.nn.relu(pictures.reshape(len(pictures), -1) @ params["hidden"])
        with sbp.scope(placement=PIPE.stage(1)):
            return cross_entropy(h @ params["output"], labels)

    def step(state: Any, pictures: jax.Array, labels: jax.Array) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(state[0], pictures, labels)
        updates, rest = OPTIMIZER.update(gradient, state[1])
        return (optax.apply_updates(state[0], updates), rest), loss

    def state() -> Any:
        rng = np.random.default_rng(0)
        shapes = {"hidden": (784, 64), "output": (64, 10)}
        params = {k: jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32) for k, s in shapes.items()}
        return params, OPTIMIZER.init(params)

    return step, state


@pytest.mark.parametrize("execution", ["actors", "spmd"])
@pytest.mark.parametrize("make", [of_module, of_functions])
def test_two_stages_and_two_micro_batches(make: Callable[[], Any], execution: str) -> None:
    step, state = make()
    rng = np.random.default_rng(1)
    pictures, labels = rng.normal(size=(16, 28, 28, 1)).astype(np.float32), rng.integers(0, 10, 16)
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(microbatches=2, execution=execution))
    run = sbp.auto_parallel(step, placement=PIPE, donate_argnums=0, config=config)
    found, right = state(), state()
    unmarked = jax.jit(step)  # plain JAX takes no notice of the marks
    for _ in range(3):
        found, loss = run(found, pictures, labels)
        right, expected = unmarked(right, pictures, labels)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    leaves = jax.tree_util.tree_leaves_with_path(found)
    for (path, a), b in zip(leaves, jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=jax.tree_util.keystr(path))
    at = {name: {d.id for path, a in leaves if name in jax.tree_util.keystr(path) for d in a.devices()}
          for name in ("hidden", "output")}  # fmt: skip
    assert at == {"hidden": {0}, "output": {1}}
    plan = run.plan(found, pictures, labels)
    assert (len(plan.stages), plan.microbatches) == (2, 2)
