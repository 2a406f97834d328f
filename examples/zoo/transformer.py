"""The parts of a transformer block that ``moe`` and ``vit`` share, in plain JAX."""

import jax
import jax.numpy as jnp

from .common import Tree, normal
from .gpt import layer_norm


def init_norm(hidden: int) -> Tree:
    """A layer norm's scale and bias."""
    return {"scale": jnp.ones(hidden), "bias": jnp.zeros(hidden)}


def init_attention(key: jax.Array, hidden: int, std: float, std_out: float) -> Tree:
    """Norm, four square matrices and their biases; the last matrix has its own deviation."""
    k = jax.random.split(key, 4)
    matrices = {f"w_{n}": normal(k[i], (hidden, hidden), std_out if n == "o" else std) for i, n in enumerate("qkvo")}
    return {"norm_attention": init_norm(hidden), **matrices, **{f"b_{n}": jnp.zeros(hidden) for n in "qkvo"}}


def init_mlp(key: jax.Array, hidden: int, std: float, std_out: float) -> Tree:
    """Norm, and two matrices with a middle four times as wide."""
    k = jax.random.split(key)
    return {
        "norm_mlp": init_norm(hidden),
        "w_in": normal(k[0], (hidden, 4 * hidden), std),
        "b_in": jnp.zeros(4 * hidden),
        "w_out": normal(k[1], (4 * hidden, hidden), std_out),
        "b_out": jnp.zeros(hidden),
    }


def attend(x: jax.Array, p: Tree, heads: int, causal: bool) -> jax.Array:
    """x plus the self-attention of its norm; (batch, seq, hidden) -> the same."""
    b, s, h = x.shape
    y = layer_norm(x, p["norm_attention"])
    q, k, v = ((y @ p[f"w_{n}"] + p[f"b_{n}"]).reshape(b, s, heads, h // heads) for n in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / (h // heads) ** 0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, s, h) @ p["w_o"] + p["b_o"]


def mlp(x: jax.Array, p: Tree) -> jax.Array:
    """x plus the two-layer perceptron of its norm; (batch, seq, hidden) -> the same."""
    return x + jax.nn.gelu(layer_norm(x, p["norm_mlp"]) @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"]
