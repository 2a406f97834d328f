"""The GPT of ``gpt.py`` as a Flax nnx module; the demo trains it."""

import jax
import jax.numpy as jnp
from flax import nnx

from .common import Case, Tree, adamw, configure, cross_entropy
from .gpt import SIZES, GptConfig, counting_text
from .nnx_case import case_of_module


class Attention(nnx.Module):
    """Causal self-attention, (batch, seq, hidden) -> the same."""

    def __init__(self, config: GptConfig, rngs: nnx.Rngs):
        h = config.hidden
        init = nnx.initializers.normal(0.02)
        init_out = nnx.initializers.normal(0.02 / (2 * config.layers) ** 0.5)
        self.heads = config.heads
        self.query, self.key, self.value = (
            nnx.Linear(h, h, kernel_init=init, dtype=jnp.dtype(config.dtype), rngs=rngs) for _ in range(3)
        )
        self.out = nnx.Linear(h, h, kernel_init=init_out, dtype=jnp.dtype(config.dtype), rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        b, s, h = x.shape
        q, k, v = (f(x).reshape(b, s, self.heads, h // self.heads) for f in (self.query, self.key, self.value))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / (h // self.heads) ** 0.5
        causal = jnp.tril(jnp.ones((s, s), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", self.dropout(weights), v).reshape(b, s, h))


class Block(nnx.Module):
    """One pre-norm block, (batch, seq, hidden) -> the same."""

    def __init__(self, config: GptConfig, rngs: nnx.Rngs):
        h, dtype = config.hidden, jnp.dtype(config.dtype)
        init = nnx.initializers.normal(0.02)
        init_out = nnx.initializers.normal(0.02 / (2 * config.layers) ** 0.5)
        self.norm_attention = nnx.LayerNorm(h, epsilon=1e-5, dtype=dtype, rngs=rngs)
        self.attention = Attention(config, rngs)
        self.norm_mlp = nnx.LayerNorm(h, epsilon=1e-5, dtype=dtype, rngs=rngs)
        self.wide = nnx.Linear(h, 4 * h, kernel_init=init, dtype=dtype, rngs=rngs)
        self.narrow = nnx.Linear(4 * h, h, kernel_init=init_out, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        return x + self.dropout(self.narrow(nnx.gelu(self.wide(self.norm_mlp(x)))))


class Gpt(nnx.Module):
    """Tokens (batch, seq) -> logits (batch, seq, vocab)."""

    def __init__(self, config: GptConfig, rngs: nnx.Rngs):
        dtype, init = jnp.dtype(config.dtype), nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(config.vocab, config.hidden, dtype=dtype, embedding_init=init, rngs=rngs)
        self.positions = nnx.Embed(config.seq, config.hidden, dtype=dtype, embedding_init=init, rngs=rngs)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.hidden, epsilon=1e-5, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.remat = config.remat
        if config.tied:
            self.head = None
        else:
            self.head = nnx.Linear(
                config.hidden, config.vocab, use_bias=False, kernel_init=init, dtype=dtype, rngs=rngs
            )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.dropout(self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1])))
        call = nnx.remat(lambda block, x: block(x)) if self.remat else lambda block, x: block(x)
        for block in self.blocks:
            x = call(block, x)
        x = self.norm(x)
        return self.tokens.attend(x) if self.head is None else self.head(x)


# `wide` and the attention's inputs are column-parallel, `narrow` and `out` row-parallel, tokens by vocabulary.
MEGATRON = (
    (r"(query|key|value|wide|head)/(kernel|bias)\b", -1),
    (r"(out|narrow)/kernel\b", -2),
    (r"(^|/)tokens/embedding\b", -2),
)


def loss_fn(model: Gpt, batch: Tree) -> jax.Array:
    """Mean cross entropy in nats a token."""
    return cross_entropy(model(batch["inputs"]), batch["targets"])


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``gpt.SIZES``, ``overrides`` are fields of ``gpt.GptConfig``.

    ``fused_qkv``, ``scan_layers`` and ``grad_accumulation`` are options of ``gpt.py`` only.
    """
    config = configure(SIZES, size, overrides)
    if config.fused_qkv or config.scan_layers or config.grad_accumulation > 1:
        raise ValueError("fused_qkv, scan_layers and grad_accumulation are options of zoo.gpt, not of zoo.gpt_nnx")
    return case_of_module(
        "gpt_nnx",
        lambda: Gpt(config, nnx.Rngs(0)),
        adamw(config.learning_rate),
        loss_fn,
        lambda seed: counting_text(seed, (config.batch, config.seq), config.vocab),
        layers=config.layers,
        optimizer="adamw+clip",
        megatron_rules=MEGATRON,
    )
