"""An LSTM language model (Hochreiter and Schmidhuber, 1997): ``lax.scan`` over time, AdamW with clipping."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .common import Case, Tree, adamw, apply_optimizer, configure, cross_entropy, dropout, normal
from .gpt import counting_text


@dataclass(frozen=True, slots=True)
class LstmConfig:
    """``layers`` LSTM layers of ``hidden`` units between an embedding and an output matrix."""

    layers: int = 2
    hidden: int = 64
    seq: int = 16
    vocab: int = 128
    batch: int = 16
    dropout: float = 0.1
    dtype: str = "float32"
    learning_rate: float = 1e-2


SIZES = {
    "tiny": LstmConfig(),
    "medium": LstmConfig(layers=2, hidden=1024, seq=64, vocab=8192, batch=64, learning_rate=1e-3),
}

# The gates' matrices are (inputs, 4, hidden): column-parallel splits each gate, not one gate from another.
MEGATRON = ((r"layers/\d+/(w_x|w_h|b)$", -1), (r"(^|/)embed$", -1), (r"(^|/)head$", -1))


def lstm_layer(xs: jax.Array, p: Tree) -> jax.Array:
    """One layer over time; xs and the result are (seq, batch, hidden)."""

    def cell(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        gates = jnp.einsum("bi,igh->bgh", x, p["w_x"]) + jnp.einsum("bi,igh->bgh", h, p["w_h"]) + p["b"]
        i, f, o = (jax.nn.sigmoid(gates[:, n]) for n in range(3))
        c = f * c + i * jnp.tanh(gates[:, 3])
        h = o * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros(xs.shape[1:], xs.dtype)
    return jax.lax.scan(cell, (zeros, zeros), xs)[1]


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``LstmConfig``."""
    config = configure(SIZES, size, overrides)
    tx = adamw(config.learning_rate)
    h = config.hidden

    def init() -> Tree:
        key_embed, key_head, *keys = jax.random.split(jax.random.key(0), config.layers + 2)

        def layer(key: jax.Array) -> Tree:
            key_x, key_h = jax.random.split(key)
            # A forget gate that starts open lets the gradient through time (Jozefowicz et al., 2015).
            bias = jnp.zeros((4, h)).at[1].set(1.0)
            std = h**-0.5
            return {"w_x": normal(key_x, (h, 4, h), std), "w_h": normal(key_h, (h, 4, h), std), "b": bias}

        params = {
            "embed": normal(key_embed, (config.vocab, h), 0.1),
            "layers": [layer(key) for key in keys],
            "head": normal(key_head, (h, config.vocab), h**-0.5),
        }
        return {"params": params, "opt_state": tx.init(params), "rng": jax.random.key(1)}

    def loss_fn(params: Tree, batch: Tree, key: jax.Array) -> jax.Array:
        params = jax.tree.map(lambda leaf: leaf.astype(config.dtype), params)
        keys = jax.random.split(key, config.layers)
        xs = jnp.swapaxes(params["embed"][batch["inputs"]], 0, 1)
        for layer, key in zip(params["layers"], keys, strict=True):
            xs = dropout(lstm_layer(xs, layer), config.dropout, key)
        return cross_entropy(jnp.swapaxes(xs, 0, 1) @ params["head"], batch["targets"])

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        rng, key = jax.random.split(state["rng"])
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch, key)
        return apply_optimizer(tx, state, grads, rng=rng), loss

    def batch(seed: int) -> Tree:
        return counting_text(seed, (config.batch, config.seq), config.vocab)

    return Case("lstm", init, step, batch, config.layers, "adamw+clip", MEGATRON)
