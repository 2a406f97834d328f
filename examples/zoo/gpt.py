"""A GPT-2 style language model in plain JAX, with the options that large trainings use.

Pre-norm blocks, learned positions, causal attention, GELU, AdamW after clipping by global norm
(Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .common import Case, Tree, adamw, apply_optimizer, configure, cross_entropy, dropout, normal


@dataclass(frozen=True, slots=True)
class GptConfig:
    """A GPT and its training. ``dtype`` is the compute dtype; parameters are float32.

    With ``half_parameters`` parameters and gradients are of ``dtype`` too, and the optimizer's state holds float32
    copies that it updates (mixed precision, arXiv:1710.03740). ``constrain`` is applied to activations (batch, seq,
    hidden) that go into a column-parallel product and come out of a row-parallel one: it may pin how they are split.
    ``remat`` "all" recomputes a block to its last product, as frameworks without dead-code elimination do.
    ``batch`` counts the sequences of one micro-batch; with ``grad_accumulation`` n > 1 the arrays of a
    batch are (n, batch, seq) and their gradients are summed in a scan. ``fused_qkv`` makes one matrix
    (hidden, 3 hidden) of the three. ``lone_softmax`` keeps scale, mask and softmax of the scores a kernel of their own.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 8
    seq: int = 32
    vocab: int = 128
    batch: int = 16
    dropout: float = 0.1
    dtype: str = "float32"
    tied: bool = True
    fused_qkv: bool = False
    lone_softmax: bool = False
    remat: bool | str = False
    scan_layers: bool = False
    half_parameters: bool = False
    constrain: Callable[[jax.Array], jax.Array] = lambda x: x
    constrain_inner: Callable[[jax.Array], jax.Array] = lambda x: x
    grad_accumulation: int = 1
    learning_rate: float = 3e-3


_GPT2 = {"seq": 1024, "vocab": 50304, "batch": 16, "dtype": "bfloat16", "dropout": 0.0, "learning_rate": 3e-4}
SIZES = {
    "tiny": GptConfig(),
    "small": GptConfig(layers=4, hidden=256, heads=8, seq=128, vocab=256, batch=16, dropout=0.0, learning_rate=1e-3),
    "gpt2": GptConfig(layers=12, hidden=768, heads=12, **_GPT2),
    "gpt2-medium": GptConfig(layers=24, hidden=1024, heads=16, **_GPT2),
    "gpt2-large": GptConfig(layers=36, hidden=1280, heads=20, **_GPT2),
    "gpt2-xl": GptConfig(layers=48, hidden=1600, heads=25, **_GPT2),
}

# Column-parallel into the heads and the MLP's middle, row-parallel out of them, vocabulary-parallel embedding.
MEGATRON = (
    (r"w_(q|k|v|qkv|in)$", -1),
    (r"b_(q|k|v|qkv|in)$", -1),
    (r"w_(o|out)$", -2),
    (r"embed/tokens$", -2),
    (r"(^|/)head$", -1),
)


def init_params(config: GptConfig, key: jax.Array) -> Tree:
    """The parameters: GPT-2's normal(0.02), the matrices that end a residual branch scaled by 1/sqrt(2 layers)."""
    h, std, std_out = config.hidden, 0.02, 0.02 / (2 * config.layers) ** 0.5
    key_embed, key_head, *keys = jax.random.split(key, config.layers + 2)

    def norm() -> Tree:
        return {"scale": jnp.ones(h), "bias": jnp.zeros(h)}

    def block(key: jax.Array) -> Tree:
        k = jax.random.split(key, 6)
        if config.fused_qkv:
            qkv = {"w_qkv": normal(k[0], (h, 3 * h), std), "b_qkv": jnp.zeros(3 * h)}
        else:
            qkv = {f"w_{n}": normal(k[i], (h, h), std) for i, n in enumerate("qkv")}
            qkv |= {f"b_{n}": jnp.zeros(h) for n in "qkv"}
        return {
            "norm_attention": norm(),
            **qkv,
            "w_o": normal(k[3], (h, h), std_out),
            "b_o": jnp.zeros(h),
            "norm_mlp": norm(),
            "w_in": normal(k[4], (h, 4 * h), std),
            "b_in": jnp.zeros(4 * h),
            "w_out": normal(k[5], (4 * h, h), std_out),
            "b_out": jnp.zeros(h),
        }

    blocks = [block(k) for k in keys]
    key_tokens, key_positions = jax.random.split(key_embed)
    params = {
        "embed": {
            "tokens": normal(key_tokens, (config.vocab, h), std),
            "positions": normal(key_positions, (config.seq, h), std),
        },
        "blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks) if config.scan_layers else blocks,
        "norm": norm(),
    }
    if not config.tied:
        params["head"] = normal(key_head, (h, config.vocab), std)
    return params


def layer_norm(x: jax.Array, norm: Tree) -> jax.Array:
    """Layer norm over the last dimension with scale and bias, in float32 whatever the dtype of ``x``."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5) * norm["scale"] + norm["bias"]).astype(x.dtype)


def attention(config: GptConfig, x: jax.Array, p: Tree, key: jax.Array | None) -> jax.Array:
    """Causal self-attention; x and the result are (batch, seq, hidden)."""
    b, s, h = x.shape
    if config.fused_qkv:
        parts = jnp.split(x @ p["w_qkv"] + p["b_qkv"], 3, axis=-1)
    else:
        parts = [config.constrain_inner(x @ p[f"w_{n}"] + p[f"b_{n}"]) for n in "qkv"]
    q, k, v = (part.reshape(b, s, config.heads, h // config.heads) for part in parts)
    scores, causal, low = jnp.einsum("bqhd,bkhd->bhqk", q, k), jnp.tril(jnp.ones((s, s), bool)), jnp.float32(-1e30)
    if config.lone_softmax:
        scores, causal, low = jax.lax.optimization_barrier((scores, causal, low))
    scores = scores.astype(jnp.float32) / (h // config.heads) ** 0.5
    weights = jax.nn.softmax(jnp.where(causal, scores, low), axis=-1).astype(x.dtype)
    if config.lone_softmax:
        weights = jax.lax.optimization_barrier(weights)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", dropout(weights, config.dropout, key), v)
    return config.constrain(config.constrain_inner(mixed.reshape(b, s, h)) @ p["w_o"]) + p["b_o"]


def block(config: GptConfig, x: jax.Array, p: Tree, key: jax.Array | None) -> jax.Array:
    """One pre-norm block; x and the result are (batch, seq, hidden)."""
    keys = (None,) * 3 if key is None else jax.random.split(key, 3)
    p = jax.tree.map(lambda leaf: leaf.astype(config.dtype), p)
    mixed = attention(config, config.constrain(layer_norm(x, p["norm_attention"])), p, keys[0])
    x = config.constrain(x + dropout(mixed, config.dropout, keys[1]))
    middle = jax.nn.gelu(config.constrain(layer_norm(x, p["norm_mlp"])) @ p["w_in"] + p["b_in"])
    middle = config.constrain_inner(middle)
    return config.constrain(x + dropout(config.constrain(middle @ p["w_out"]) + p["b_out"], config.dropout, keys[2]))


def recompute_all(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """``function`` of (x, parameters, key), computed again in the backward pass, its result included."""

    def backward(saved: tuple[jax.Array, Tree, Any], cotangent: jax.Array) -> tuple[jax.Array, Tree, None]:
        x, p, key = jax.lax.optimization_barrier(saved)  # else the first run's values would be taken
        y, pull = jax.vjp(lambda x, p: function(x, p, key), x, p)
        return (*pull(cotangent + 0 * y), None)

    run = jax.custom_vjp(function)
    run.defvjp(lambda x, p, key: (function(x, p, key), (x, p, key)), backward)
    return run


def forward(config: GptConfig, params: Tree, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Logits (batch, seq, vocab) of tokens (batch, seq); ``key`` None switches dropout off."""
    x = params["embed"]["tokens"][tokens] + params["embed"]["positions"][: tokens.shape[1]]
    x = x.astype(config.dtype)
    keys = None if key is None or config.dropout == 0.0 else jax.random.split(key, config.layers + 1)
    if keys is not None:
        x = dropout(x, config.dropout, keys[-1])
    one_block = functools.partial(block, config)
    if config.remat:
        one_block = recompute_all(one_block) if config.remat == "all" else jax.checkpoint(one_block)
    if config.scan_layers:
        layer_keys = None if keys is None else keys[:-1]
        x, _ = jax.lax.scan(lambda h, xs: (one_block(h, xs[0], xs[1]), None), x, (params["blocks"], layer_keys))
    else:
        for i, p in enumerate(params["blocks"]):
            x = one_block(x, p, None if keys is None else keys[i])
    x = config.constrain(layer_norm(x, params["norm"]))
    if config.tied:
        return jnp.einsum("bsh,vh->bsv", x, params["embed"]["tokens"].astype(config.dtype))
    return x @ params["head"].astype(config.dtype)


def loss_fn(config: GptConfig, params: Tree, batch: Tree, key: jax.Array | None = None) -> jax.Array:
    """Mean cross entropy in nats a token of one (micro-)batch."""
    return cross_entropy(forward(config, params, batch["inputs"], key), batch["targets"])


def build(size: str = "tiny", **overrides: object) -> Case:
    """The training step; ``size`` is a key of ``SIZES``, ``overrides`` are fields of ``GptConfig``."""
    config = configure(SIZES, size, overrides)
    tx = adamw(config.learning_rate)
    accumulation = config.grad_accumulation
    value_and_grad = jax.value_and_grad(functools.partial(loss_fn, config))

    def init() -> Tree:
        params = init_params(config, jax.random.key(0))
        narrow = jax.tree.map(lambda leaf: leaf.astype(config.dtype), params)
        copies = {"copies": params} if config.half_parameters else {}
        return {
            "params": narrow if config.half_parameters else params,
            **copies,
            "opt_state": tx.init(params),
            "rng": jax.random.key(1),
            "step": jnp.zeros((), jnp.int32),
        }

    def accumulate(params: Tree, batch: Tree, key: jax.Array) -> tuple[jax.Array, Tree]:
        def micro_step(sums: Tree, micro: tuple[Tree, jax.Array]) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, sums, value_and_grad(params, *micro)), None

        zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        sums, _ = jax.lax.scan(micro_step, zeros, (batch, jax.random.split(key, accumulation)))
        return jax.tree.map(lambda leaf: leaf / accumulation, sums)

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        key = jax.random.fold_in(state["rng"], state["step"])
        loss, grads = (accumulate if accumulation > 1 else value_and_grad)(state["params"], batch, key)
        if config.half_parameters:
            return apply_to_copies(tx, state, grads, step=state["step"] + 1), loss
        return apply_optimizer(tx, state, grads, step=state["step"] + 1), loss

    def batch(seed: int) -> Tree:
        leading = (accumulation, config.batch) if accumulation > 1 else (config.batch,)
        return counting_text(seed, (*leading, config.seq), config.vocab)

    return Case("gpt", init, step, batch, config.layers, "adamw+clip", MEGATRON, batch_dim=int(accumulation > 1))


def apply_to_copies(tx: optax.GradientTransformation, state: Tree, grads: Tree, **other: Tree) -> Tree:
    """``apply_optimizer`` on the float32 ``copies``; the ``params`` are the copies rounded."""
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), grads)
    updates, opt_state = tx.update(wide, state["opt_state"], state["copies"])
    copies = optax.apply_updates(state["copies"], updates)
    params = jax.tree.map(lambda new, old: new.astype(old.dtype), copies, state["params"])
    return {**state, "params": params, "copies": copies, "opt_state": opt_state, **other}


def counting_text(seed: int, shape: tuple[int, ...], vocab: int) -> Tree:
    """Token sequences with something to learn: few of the tokens are frequent, and each is followed by the next."""
    rng = np.random.default_rng(seed)
    start = rng.geometric(8 / vocab, size=(*shape[:-1], 1))
    jumps = rng.random((*shape[:-1], shape[-1] + 1)) < 0.05
    tokens = (start + np.arange(shape[-1] + 1) % 8 + np.cumsum(jumps, -1)) % vocab
    return {"inputs": tokens[..., :-1].astype(np.int32), "targets": tokens[..., 1:].astype(np.int32)}
