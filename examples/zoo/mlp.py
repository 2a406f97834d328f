"""A multi-layer perceptron that classifies vectors, in plain JAX, trained by Adam."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .common import Case, Tree, apply_optimizer, configure, cross_entropy, dropout, normal


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """``layers`` weight matrices: features -> hidden -> ... -> classes. ``dtype`` is the compute dtype."""

    layers: int = 4
    features: int = 64
    hidden: int = 64
    classes: int = 16
    batch: int = 16
    dropout: float = 0.1
    dtype: str = "float32"
    learning_rate: float = 3e-3


SIZES = {
    "tiny": MlpConfig(),
    "wide": MlpConfig(layers=2, features=1024, hidden=8192, classes=1024, batch=16, dropout=0.0),
    "large": MlpConfig(layers=8, features=4096, hidden=16384, classes=1024, batch=512, dtype="bfloat16"),
}


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``MlpConfig``."""
    config = configure(SIZES, size, overrides)
    tx = optax.adam(config.learning_rate)
    widths = [config.features, *[config.hidden] * (config.layers - 1), config.classes]

    def init() -> Tree:
        keys = jax.random.split(jax.random.key(0), config.layers)
        layers = [
            {"w": normal(key, (n_in, n_out), (2 / n_in) ** 0.5), "b": jnp.zeros(n_out)}
            for key, n_in, n_out in zip(keys, widths[:-1], widths[1:], strict=True)
        ]
        return {"params": layers, "opt_state": tx.init(layers), "rng": jax.random.key(1)}

    def loss_fn(layers: Tree, batch: Tree, key: jax.Array) -> jax.Array:
        h = batch["x"].astype(config.dtype)
        keys = jax.random.split(key, config.layers)
        for i, layer in enumerate(layers):
            h = h @ layer["w"].astype(config.dtype) + layer["b"].astype(config.dtype)
            if i < config.layers - 1:
                h = dropout(jax.nn.relu(h), config.dropout, keys[i])
        return cross_entropy(h, batch["y"])

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        rng, key = jax.random.split(state["rng"])
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch, key)
        return apply_optimizer(tx, state, grads, rng=rng), loss

    def batch(seed: int) -> Tree:
        # Each class is a cloud around a centre of its own.
        rng, centres = np.random.default_rng(seed), np.random.default_rng(0)
        y = rng.integers(0, config.classes, config.batch)
        x = centres.normal(size=(config.classes, config.features))[y] + rng.normal(size=(config.batch, config.features))
        return {"x": x.astype(np.float32), "y": y.astype(np.int32)}

    # Megatron's pairs: odd layers (from 0) row-parallel, even ones column-parallel with their bias.
    rules = []
    for i in range(config.layers):
        row = i % 2 == 1
        rules.append((rf"(^|/){i}/w$", -2 if row else -1))
        if not row:
            rules.append((rf"(^|/){i}/b$", -1))
    return Case("mlp", init, step, batch, config.layers, "adam", tuple(rules))
