"""Decoder-only language models, in plain JAX and Flax nnx."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from .common import (
    BATCH,
    Keys,
    Model,
    Tree,
    attend,
    causal_bias,
    layer_norm,
    norm_params,
    rms_norm,
    rotary,
    text,
    token_loss,
    train,
    train_nnx,
)

VOCAB, SEQ = 8192, 128


class NnxBlock(nnx.Module):
    """Pre-norm, with dropout."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs, parallel: bool = False) -> None:
        self.first, self.second = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, rngs=rngs)
        self.out = nnx.Linear(width, width, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.heads, self.parallel = heads, parallel

    def attention(self, x: Array) -> Array:
        b, s, h = x.shape
        q, k, v = jnp.split(self.qkv(x).reshape(b, s, self.heads, -1), 3, axis=-1)
        if self.parallel:
            q, k = rotary(q, jnp.arange(s)), rotary(k, jnp.arange(s))
        return self.out(attend(q, k, v, causal_bias(s)).reshape(b, s, h))

    def __call__(self, x: Array) -> Array:
        y = self.first(x)
        if self.parallel:  # as GPT-J: one norm, attention and MLP side by side
            return x + self.attention(y) + self.down(nnx.gelu(self.up(y)))
        x = x + self.dropout(self.attention(y))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.second(x)))))


class NnxGpt(nnx.Module):
    """Learned positions and a tied head, or (parallel) rotary ones and a head of its own."""

    def __init__(self, layers: int, width: int, heads: int, parallel: bool, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(VOCAB, width, rngs=rngs)
        self.positions = None if parallel else nnx.Embed(SEQ, width, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(width, heads, rngs, parallel) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, VOCAB, rngs=rngs) if parallel else None

    def __call__(self, tokens: Array) -> Array:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.tokens.attend(x) if self.head is None else self.head(x)


def gpt(layers: int = 4, parallel: bool = False) -> Model:
    """GPT-2 (or GPT-J's block), nnx, dropout, clipped AdamW with a schedule."""
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-4, 10, 100)))
    return train_nnx(
        lambda: NnxGpt(layers, 256, 8, parallel, nnx.Rngs(0)),
        lambda model, batch: token_loss(model(batch["inputs"]), batch["targets"]),
        text(VOCAB, SEQ),
        tx,
    )


def llama_params(layers: int, width: int, heads: int, kv_heads: int, ff: int, stacked: bool = False) -> Tree:
    """Parameters of a LLaMA; ``stacked``: layers along a leading dim, for ``scan``."""
    keys, d = Keys(), width // heads
    blocks = [
        {
            "norm1": jnp.ones(width), "norm2": jnp.ones(width),
            "q": keys.dense(width, heads, d), "k": keys.dense(width, kv_heads, d), "v": keys.dense(width, kv_heads, d),
            "o": keys.dense(heads * d, width).reshape(heads, d, width),
            "gate": keys.dense(width, ff), "up": keys.dense(width, ff), "down": keys.dense(ff, width),
        }
        for _ in range(layers)
    ]  # fmt: skip
    if stacked:
        blocks = jax.tree.map(lambda *x: jnp.stack(x), *blocks)
    return {"embed": keys.table(VOCAB, width), "blocks": blocks, "norm": jnp.ones(width),
            "head": keys.dense(width, VOCAB)}  # fmt: skip


def llama_block(x: Array, p: Tree, bias: Array, turn: bool = True) -> Array:
    """One block; fewer heads of keys and values than of queries are repeated."""
    y = rms_norm(x, p["norm1"])
    q, k, v = (jnp.einsum("bsh,hnd->bsnd", y, p[name]) for name in "qkv")
    if turn:
        q, k = (rotary(z, jnp.arange(x.shape[1])) for z in (q, k))
    groups = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(z, groups, axis=2) for z in (k, v))
    x = x + jnp.einsum("bsnd,ndh->bsh", attend(q, k, v, bias), p["o"])
    y = rms_norm(x, p["norm2"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def _llama(
    layers: int, width: int, heads: int, kv_heads: int, ff: int, *, stacked: bool = False, remat: bool = False,
    turn: bool = True, dtype: Any = jnp.float32, bias: Callable[[int], Array] = causal_bias, accumulate: int = 1,
) -> Model:  # fmt: skip
    def loss(params: Tree, batch: Tree) -> Array:
        params = jax.tree.map(lambda p: p.astype(dtype), params)
        x = params["embed"][batch["inputs"]]
        mask = bias(x.shape[1])
        block = lambda x, p: llama_block(x, p, mask, turn)  # noqa: E731
        if remat:
            block = jax.checkpoint(block)
        if stacked:
            x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["blocks"])
        else:
            for p in params["blocks"]:
                x = block(x, p)
        return token_loss(rms_norm(x, params["norm"]) @ params["head"], batch["targets"])

    tx = optax.adamw(3e-4, b2=0.95, weight_decay=0.1)
    if accumulate > 1:
        tx = optax.MultiSteps(tx, accumulate).gradient_transformation()
    return train(lambda: llama_params(layers, width, heads, kv_heads, ff, stacked), loss, text(VOCAB, SEQ), tx)


def alibi_bias(n: int) -> Array:
    """Distances times a slope for each of 8 heads."""
    slopes = 2.0 ** -(jnp.arange(8) + 1)
    distance = jnp.arange(n)[None, :] - jnp.arange(n)[:, None]
    return slopes[:, None, None] * distance + causal_bias(n)


def sliding_bias(n: int) -> Array:
    """The last 32 positions."""
    distance = jnp.arange(n)[:, None] - jnp.arange(n)[None, :]
    return jnp.where((distance >= 0) & (distance < 32), 0.0, -1e9)


def moe() -> Model:
    """Mixtral's kind: top 2 of 8 experts, dispatched with a capacity, a balancing loss."""
    layers, width, heads, ff, experts, vocab = 3, 256, 8, 512, 8, 4096

    def init() -> Tree:
        keys = Keys()
        blocks = [
            {
                "norm1": norm_params(width), "norm2": norm_params(width),
                "qkv": keys.dense(width, 3, heads, width // heads), "o": keys.dense(width, width),
                "router": keys.dense(width, experts),
                "up": 0.05 * jax.random.normal(keys(), (experts, width, ff)),
                "down": 0.05 * jax.random.normal(keys(), (experts, ff, width)),
            }
            for _ in range(layers)
        ]  # fmt: skip
        return {"embed": keys.table(vocab, width), "pos": keys.table(SEQ, width), "blocks": blocks}

    def experts_of(x: Array, p: Tree) -> tuple[Array, Array]:
        tokens = x.reshape(-1, width)
        n = tokens.shape[0]
        capacity = 2 * n // experts
        gates = jax.nn.softmax(tokens @ p["router"])
        top, index = jax.lax.top_k(gates, 2)
        top = top / top.sum(-1, keepdims=True)
        chosen = jax.nn.one_hot(index, experts)  # tokens, 2, experts
        order = jnp.cumsum(chosen.reshape(2 * n, experts), 0).reshape(n, 2, experts) * chosen - 1
        place = jax.nn.one_hot(order, capacity) * (chosen * (order < capacity))[..., None]
        combine = jnp.einsum("nk,nkec->nec", top, place)
        inside = jnp.einsum("nec,nh->ech", (combine > 0).astype(x.dtype), tokens)
        inside = jax.nn.relu(jnp.einsum("ech,ehf->ecf", inside, p["up"]))
        out = jnp.einsum("ecf,efh->ech", inside, p["down"])
        balance = experts * (gates.mean(0) * chosen[:, 0].mean(0)).sum()
        return jnp.einsum("nec,ech->nh", combine, out).reshape(x.shape), balance

    def loss(params: Tree, batch: Tree) -> Array:
        x = params["embed"][batch["inputs"]] + params["pos"]
        b, s, h = x.shape
        aux = jnp.zeros(())
        for p in params["blocks"]:
            q, k, v = jnp.einsum("bsh,htnd->tbsnd", layer_norm(x, p["norm1"]), p["qkv"])
            x = x + attend(q, k, v, causal_bias(s)).reshape(b, s, h) @ p["o"]
            y, balance = experts_of(layer_norm(x, p["norm2"]), p)
            x, aux = x + y, aux + balance
        return token_loss(x @ params["embed"].T, batch["targets"]) + 0.01 * aux

    return train(init, loss, text(vocab, SEQ))


def decode() -> Model:
    """One token for every sequence, with a cache of keys and values; no gradient."""
    layers, width, heads, kv, ff, length = 4, 256, 8, 2, 704, 256

    def init() -> Tree:
        cache = jnp.zeros((layers, 2, BATCH, length, kv, width // heads))
        return {"params": llama_params(layers, width, heads, kv, ff), "cache": cache, "at": jnp.int32(0)}

    def step(state: Tree, tokens: Array) -> tuple[Tree, Array]:
        params, cache, at = state["params"], state["cache"], state["at"]
        x = params["embed"][tokens]
        for k, p in enumerate(params["blocks"]):
            y = rms_norm(x, p["norm1"])
            q, key, value = (jnp.einsum("bsh,hnd->bsnd", y, p[name]) for name in "qkv")
            q, key = rotary(q, at[None]), rotary(key, at[None])
            cache = jax.lax.dynamic_update_slice(cache, jnp.stack([key, value])[None], (k, 0, 0, at, 0, 0))
            keys, values = (jnp.repeat(cache[k, i], heads // kv, axis=2) for i in (0, 1))
            seen = jnp.where(jnp.arange(length) <= at, 0.0, -1e9)
            x = x + jnp.einsum("bsnd,ndh->bsh", attend(q, keys, values, seen), p["o"])
            y = rms_norm(x, p["norm2"])
            x = x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
        logits = rms_norm(x, params["norm"]) @ params["head"]
        return {"params": params, "cache": cache, "at": at + 1}, logits[:, -1].argmax(-1)

    return Model(init, lambda: np.random.default_rng(0).integers(0, VOCAB, (BATCH, 1), dtype=np.int32), step)


def lora() -> Model:
    """Adapters of rank 8 on queries and values; what they adapt is only read."""
    rank, width, heads = 8, 256, 8

    def init() -> Tree:
        base, keys = llama_params(4, width, heads, heads, 704), Keys(1)
        return {"base": base, "lora": [
            {name: {"a": keys.dense(width, rank), "b": jnp.zeros((rank, width))} for name in "qv"}
            for _ in base["blocks"]
        ]}  # fmt: skip

    tx = optax.adam(1e-3)

    def loss(adapters: Tree, base: Tree, batch: Tree) -> Array:
        x = base["embed"][batch["inputs"]]
        bias = causal_bias(x.shape[1])
        for p, low in zip(base["blocks"], adapters, strict=True):
            p = p | {name: p[name] + (low[name]["a"] @ low[name]["b"]).reshape(p[name].shape) for name in "qv"}
            x = llama_block(x, p, bias)
        return token_loss(rms_norm(x, base["norm"]) @ base["head"], batch["targets"])

    def make() -> Tree:
        params = init()
        return params["base"], params["lora"], tx.init(params["lora"])

    def step(state: Tree, batch: Tree) -> tuple[Tree, Array]:
        base, adapters, opt = state
        value, grads = jax.value_and_grad(loss)(adapters, base, batch)
        updates, opt = tx.update(grads, opt)
        return (base, optax.apply_updates(adapters, updates), opt), value

    return Model(make, text(VOCAB, SEQ), step)


class Decisions(nnx.Module):
    """Returns, states and actions in turns (Chen et al., 2021)."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        width = 256
        self.returns, self.states = nnx.Linear(1, width, rngs=rngs), nnx.Linear(17, width, rngs=rngs)
        self.actions, self.times = nnx.Linear(6, width, rngs=rngs), nnx.Embed(1024, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(width, 4, rngs) for _ in range(3)])
        self.head = nnx.Linear(width, 6, rngs=rngs)

    def __call__(self, batch: Tree) -> Array:
        times = self.times(batch["times"])
        parts = [
            f(batch[name]) + times
            for f, name in ((self.returns, "returns"), (self.states, "states"), (self.actions, "actions"))
        ]
        b, s, h = times.shape
        x = self.norm(jnp.stack(parts, axis=2).reshape(b, 3 * s, h))
        for block in self.blocks:
            x = block(x)
        return jnp.tanh(self.head(x.reshape(b, s, 3, h)[:, :, 1]))


def decision_transformer() -> Model:
    """Continuous control: the mean squared error of actions."""

    def batch() -> Tree:
        rng = np.random.default_rng(0)
        sizes = {"returns": 1, "states": 17, "actions": 6}
        return {k: rng.standard_normal((BATCH, 32, n), dtype=np.float32) for k, n in sizes.items()} | {
            "times": rng.integers(0, 1024, (BATCH, 32), dtype=np.int32)
        }

    return train_nnx(lambda: Decisions(nnx.Rngs(0)), lambda model, b: ((model(b) - b["actions"]) ** 2).mean(), batch)


MODELS: dict[str, Callable[[], Model]] = {
    "gpt2": gpt,
    "gptj": lambda: gpt(parallel=True),
    "llama": lambda: _llama(4, 256, 8, 2, 704),
    "llama_scan_remat": lambda: _llama(6, 256, 8, 4, 704, stacked=True, remat=True, dtype=jnp.bfloat16),
    "alibi": lambda: _llama(3, 256, 8, 8, 704, turn=False, bias=alibi_bias),
    "sliding_window": lambda: _llama(4, 256, 8, 4, 704, bias=sliding_bias, remat=True),
    "multi_query": lambda: _llama(4, 256, 8, 1, 1024, accumulate=2),
    "moe_top2": moe,
    "decode_kv": decode,
    "lora": lora,
    "decision_transformer": decision_transformer,
}
