"""``sbp.flax.jit`` with a pipeline: modules and optimizers are updated in place, each stage keeping its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import sbp_jax as sbp
import sbp_jax.flax


class Layers(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(8, 16, rngs=rngs)
        self.second = nnx.Linear(16, 8, rngs=rngs)
        self.third = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.third(jax.nn.relu(self.second(jax.nn.relu(self.first(x)))))


def step(model: Layers, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, g = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, g)
    return loss


def test_a_module_is_trained_on_stages() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 12, 8)).astype(np.float32)
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(["second"], microbatches=3))
    losses = []
    for run in (sbp.flax.jit(step, placement=sbp.placement("cpu", ranks=[0, 1]), config=config), nnx.jit(step)):
        model = Layers(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        losses.append([float(run(model, optimizer, x, y)) for _ in range(4)])
        if len(losses) == 1:
            kernels = (model.first.kernel, model.second.kernel, model.third.kernel)
            assert [{d.id for d in k[...].devices()} for k in kernels] == [{0}, {1}, {1}]
    np.testing.assert_allclose(*losses, rtol=1e-5)
