"""Functions that the tests of the command line name."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import sbp_jax as sbp


def loss(w, x):
    return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2)


def step(w, x):
    value, grads = jax.value_and_grad(loss)(w, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), value


def make():
    key = jax.random.key(0)
    return {"a": jax.random.normal(key, (32, 64)), "b": jax.random.normal(key, (64, 16))}, np.ones((16, 32), np.float32)


def scaled(w, x, kind):
    return jax.tree.map(lambda w: w * (2.0 if kind == "double" else 3.0), w), loss(w, x)


def make_scaled():
    return *make(), "double"


parallel = sbp.auto_parallel(
    step, placement=sbp.placement("cpu", np.arange(4).reshape(2, 2), axis_names=("x", "y")), donate_argnums=0
)
jitted = jax.jit(step)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.wide, self.narrow = nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 4, rngs=rngs)

    def __call__(self, x):
        return self.narrow(jax.nn.relu(self.wide(x)))


@nnx.jit
def train(net, x):
    value, grads = nnx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
    nnx.update(net, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(net, nnx.Param), grads))
    return value


def make_net():
    return Net(nnx.Rngs(0)), jnp.ones((16, 8))


def broken(w, x):
    return w["a"] @ x  # shapes that do not fit


def keeps_nothing(w, x):
    return loss(w, x)


def only_called():
    """Arguments that depend on values, so that shapes alone will not do."""
    return (jnp.ones(int(jnp.ones(8).sum())),)


def doubled(x):
    return x * 2


def raises():
    raise KeyError("no data here")


not_a_function = 3
