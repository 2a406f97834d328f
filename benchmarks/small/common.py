"""What the models share: a step with its state and batch, and the few layers that users write by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

Tree = Any
BATCH = 16


@dataclass(frozen=True, slots=True)
class Model:
    """``step(state, batch) -> (state, result)``; ``init`` makes the state, ``batch`` an example batch."""

    init: Callable[[], Tree]
    batch: Callable[[], Tree]
    step: Callable[[Tree, Tree], tuple[Tree, Tree]]
    donates: bool = True


def train(
    init: Callable[[], Tree], loss: Callable[[Tree, Tree], Array], batch: Callable[[], Tree],
    tx: optax.GradientTransformation | None = None,
) -> Model:  # fmt: skip
    """A training step of ``loss(params, batch)``: state is (parameters, optimizer state)."""
    tx = tx or optax.adamw(3e-4)

    def make() -> Tree:
        params = init()
        return params, tx.init(params)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Array]:
        params, opt = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    return Model(make, batch, step)


def train_keyed(
    init: Callable[[], Tree], loss: Callable[[Tree, Tree, Array], Array], batch: Callable[[], Tree],
    tx: optax.GradientTransformation | None = None,
) -> Model:  # fmt: skip
    """The same with dropout: ``loss(params, batch, key)``, a key in the state."""
    tx = tx or optax.adamw(3e-4)

    def make() -> Tree:
        params = init()
        return params, tx.init(params), jax.random.key(1)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Array]:
        params, opt, key = state
        key, now = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, batch, now)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt, key), value

    return Model(make, batch, step)


def train_stats(
    init: Callable[[], Tree], loss: Callable[[Tree, Tree, Tree], tuple[Array, Tree]], batch: Callable[[], Tree],
    tx: optax.GradientTransformation,
) -> Model:  # fmt: skip
    """A Linen model with running statistics: ``loss(params, stats, batch) -> (loss, stats)``."""

    def make() -> Tree:
        variables = init()
        return variables["params"], variables["batch_stats"], tx.init(variables["params"])

    def step(state: Tree, batch: Tree) -> tuple[Tree, Array]:
        params, stats, opt = state
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, stats, batch)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), stats, opt), value

    return Model(make, batch, step)


def train_nnx(
    make: Callable[[], nnx.Module], loss: Callable[[Any, Tree], Array], batch: Callable[[], Tree],
    tx: optax.GradientTransformation | None = None,
) -> Model:  # fmt: skip
    """A training step of an nnx module in its functional form (split, merge)."""

    def create() -> tuple[nnx.Module, nnx.Optimizer]:
        model = make()
        return model, nnx.Optimizer(model, tx or optax.adamw(3e-4), wrt=nnx.Param)

    graph, _ = nnx.split(nnx.eval_shape(create))

    def step(state: Tree, batch: Tree) -> tuple[Tree, Array]:
        model, optimizer = nnx.merge(graph, state)
        value, grads = nnx.value_and_grad(loss)(model, batch)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    return Model(lambda: nnx.state(create()), batch, step)


class Keys:
    """A new random key at every call."""

    def __init__(self, seed: int = 0) -> None:
        self.key = jax.random.key(seed)

    def __call__(self) -> Array:
        self.key, now = jax.random.split(self.key)
        return now

    def dense(self, *shape: int) -> Array:
        """A matrix scaled by its first dim."""
        return jax.random.normal(self(), shape) * shape[0] ** -0.5

    def table(self, *shape: int) -> Array:
        """An embedding."""
        return 0.02 * jax.random.normal(self(), shape)


def rms_norm(x: Array, scale: Array) -> Array:
    """Root mean square norm, in float32."""
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def layer_norm(x: Array, p: Tree) -> Array:
    """Layer norm with scale and bias."""
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["scale"] + p["bias"]


def norm_params(n: int) -> Tree:
    """For ``layer_norm``."""
    return {"scale": jnp.ones(n), "bias": jnp.zeros(n)}


def rotary(x: Array, positions: Array) -> Array:
    """Rotary positions of (batch, seq, heads, head dim)."""
    half = x.shape[-1] // 2
    angle = positions[:, None] / 10_000 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attend(q: Array, k: Array, v: Array, bias: Array | None = None) -> Array:
    """(batch, queries, heads, dim) x (batch, keys, heads, dim); ``bias`` is added to (batch, heads, queries, keys)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    weights = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def causal_bias(n: int) -> Array:
    """0 where a query may look, a large negative number where not."""
    return jnp.where(jnp.tril(jnp.ones((n, n), bool)), 0.0, -1e9)


def token_loss(logits: Array, targets: Array) -> Array:
    """Mean cross entropy of integer targets."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets).mean()


def text(vocab: int, seq: int, batch: int = BATCH) -> Callable[[], Tree]:
    """Random tokens and their successors."""

    def make() -> Tree:
        tokens = np.random.default_rng(0).integers(0, vocab, (batch, seq + 1), dtype=np.int32)
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

    return make


def pictures(size: int, classes: int, batch: int = BATCH, channels: int = 3) -> Callable[[], Tree]:
    """Random pictures with labels."""

    def make() -> Tree:
        rng = np.random.default_rng(0)
        return {
            "image": rng.standard_normal((batch, size, size, channels), dtype=np.float32),
            "label": rng.integers(0, classes, (batch,), dtype=np.int32),
        }

    return make
