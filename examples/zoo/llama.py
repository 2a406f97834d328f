"""A LLaMA style language model in plain JAX (Touvron et al., arXiv:2302.13971; Llama 3, arXiv:2407.21783).

Pre-norm blocks with RMSNorm, rotary positions (Su et al., arXiv:2104.09864), grouped-query attention (Ainslie et
al., arXiv:2305.13245), SwiGLU (Shazeer, arXiv:2002.05202), no biases, AdamW after clipping by global norm.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .common import Case, Tree, adamw, configure, cross_entropy, normal, through, trained
from .gpt import counting_text


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """A LLaMA and its training. ``dtype`` is the compute dtype; parameters are float32.

    ``kv_heads`` heads of keys and values each serve ``heads / kv_heads`` heads of queries. ``middle`` is the width
    of the MLP. ``scan_layers`` stacks the layers' parameters and loops over them.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 8
    kv_heads: int = 4
    middle: int = 128
    seq: int = 32
    vocab: int = 128
    batch: int = 16
    rope_base: float = 10_000.0
    dtype: str = "float32"
    remat: bool = False
    scan_layers: bool = False
    learning_rate: float = 3e-3


_LLAMA3 = {"kv_heads": 8, "seq": 8192, "vocab": 128256, "batch": 128, "rope_base": 5e5, "dtype": "bfloat16",
           "learning_rate": 3e-4}  # fmt: skip
SIZES = {
    "tiny": LlamaConfig(),
    "llama3-8b": LlamaConfig(layers=32, hidden=4096, heads=32, middle=14336, **_LLAMA3),
    "llama3-70b": LlamaConfig(layers=80, hidden=8192, heads=64, middle=28672, **_LLAMA3),
}

# Column-parallel into the heads and the MLP's middle, row-parallel out of them, vocabulary-parallel embedding.
MEGATRON = (
    (r"w_(q|k|v|gate|up)$", -1),
    (r"w_(o|down)$", -2),
    (r"(^|/)embed$", -2),
    (r"(^|/)head$", -1),
)


def init_params(config: LlamaConfig, key: jax.Array) -> Tree:
    """The parameters: normal(0.02), the matrices that end a residual branch scaled by 1/sqrt(2 layers)."""
    h, m, std, std_out = config.hidden, config.middle, 0.02, 0.02 / (2 * config.layers) ** 0.5
    kv = h // config.heads * config.kv_heads
    key_embed, key_head, *keys = jax.random.split(key, config.layers + 2)

    def block(key: jax.Array) -> Tree:
        k = jax.random.split(key, 7)
        return {
            "norm_attention": jnp.ones(h),
            "w_q": normal(k[0], (h, h), std),
            "w_k": normal(k[1], (h, kv), std),
            "w_v": normal(k[2], (h, kv), std),
            "w_o": normal(k[3], (h, h), std_out),
            "norm_mlp": jnp.ones(h),
            "w_gate": normal(k[4], (h, m), std),
            "w_up": normal(k[5], (h, m), std),
            "w_down": normal(k[6], (m, h), std_out),
        }

    blocks = [block(k) for k in keys]
    return {
        "embed": normal(key_embed, (config.vocab, h), std),
        "blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks) if config.scan_layers else blocks,
        "norm": jnp.ones(h),
        "head": normal(key_head, (h, config.vocab), std),
    }


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root mean square norm over the last dimension (arXiv:1910.07467), in float32 whatever the dtype of ``x``."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.square(wide).mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + 1e-5) * scale).astype(x.dtype)


def rotate(x: jax.Array, base: float) -> jax.Array:
    """Rotary positions: x (batch, seq, ..., head) turned by angles that grow with the position in the sequence."""
    seq, half = x.shape[1], x.shape[-1] // 2
    frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency
    angle = angle.reshape(1, seq, *(1,) * (x.ndim - 3), half)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attention(config: LlamaConfig, x: jax.Array, p: Tree) -> jax.Array:
    """Causal grouped-query attention; x and the result are (batch, seq, hidden)."""
    b, s, h = x.shape
    groups, size = config.heads // config.kv_heads, h // config.heads
    q = rotate((x @ p["w_q"]).reshape(b, s, config.kv_heads, groups, size), config.rope_base)
    k = rotate((x @ p["w_k"]).reshape(b, s, config.kv_heads, size), config.rope_base)
    v = (x @ p["w_v"]).reshape(b, s, config.kv_heads, size)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k).astype(jnp.float32) / size**0.5
    causal = jnp.tril(jnp.ones((s, s), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    return jnp.einsum("bkgqs,bskd->bqkgd", weights, v).reshape(b, s, h) @ p["w_o"]


def block(config: LlamaConfig, x: jax.Array, p: Tree) -> jax.Array:
    """One pre-norm block; x and the result are (batch, seq, hidden)."""
    p = jax.tree.map(lambda leaf: leaf.astype(config.dtype), p)
    x = x + attention(config, rms_norm(x, p["norm_attention"]), p)
    y = rms_norm(x, p["norm_mlp"])
    return x + (jax.nn.silu(y @ p["w_gate"]) * (y @ p["w_up"])) @ p["w_down"]


def forward(config: LlamaConfig, params: Tree, tokens: jax.Array) -> jax.Array:
    """Logits (batch, seq, vocab) of tokens (batch, seq)."""
    x = params["embed"][tokens].astype(config.dtype)
    x = through(params["blocks"], functools.partial(block, config), x, config.remat)
    return rms_norm(x, params["norm"]) @ params["head"].astype(config.dtype)


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``LlamaConfig``."""
    config = configure(SIZES, size, overrides)

    def loss_fn(params: Tree, batch: Tree) -> jax.Array:
        return cross_entropy(forward(config, params, batch["inputs"]), batch["targets"])

    def batch(seed: int) -> Tree:
        return counting_text(seed, (config.batch, config.seq), config.vocab)

    return trained(
        "llama", adamw(config.learning_rate), lambda: init_params(config, jax.random.key(0)), loss_fn, batch,
        config.layers, "adamw+clip", MEGATRON,
    )  # fmt: skip
