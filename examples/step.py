"""A training step as the command line takes it: a function, and functions that make its arguments.

sbp-jax plan examples/step.py:step --args examples/step.py:shapes --donate 0 --mesh 2x8 --cluster h100
sbp-jax bench examples/step.py:step --args examples/step.py:arrays --donate 0 --mesh 2x4
"""

import jax
import jax.numpy as jnp

Weights = dict[str, jax.Array]


def loss(weights: Weights, x: jax.Array) -> jax.Array:
    """How far two layers are from giving back what they are given."""
    return jnp.mean(jnp.square(jax.nn.relu(x @ weights["up"]) @ weights["down"] - x))


def step(weights: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
    """One step of gradient descent: the new weights, and the loss before."""
    value, grads = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def shapes() -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
    """The step's arguments as shapes: enough to plan for hardware that is not here."""

    def f32(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {"up": f32(4096, 16384), "down": f32(16384, 4096)}, f32(512, 4096)


def arrays() -> tuple[Weights, jax.Array]:
    """The step's arguments as arrays, small ones."""
    up, down, x = jax.random.split(jax.random.key(0), 3)
    weights = {"up": jax.random.normal(up, (64, 256)) / 8, "down": jax.random.normal(down, (256, 64)) / 16}
    return weights, jax.random.normal(x, (32, 64))
