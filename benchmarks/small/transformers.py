"""Transformers of more than one part: encoder and decoder, two towers, latents, diffusion."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
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
    pictures,
    rms_norm,
    token_loss,
    train,
    train_keyed,
)


def pairs_of_text(vocab: int, seq: int, batch: int = BATCH) -> Callable[[], Tree]:
    """A source, a target and its successors."""

    def make() -> Tree:
        rng = np.random.default_rng(0)
        target = rng.integers(0, vocab, (batch, seq + 1), dtype=np.int32)
        return {"source": rng.integers(0, vocab, (batch, seq), dtype=np.int32), "inputs": target[:, :-1],
                "targets": target[:, 1:]}  # fmt: skip

    return make


def t5(layers: int = 3, width: int = 256, vocab: int = 4096, seq: int = 96, batch: int = BATCH) -> Model:
    """Relative positions shared by layers, gated GELU, RMS norms, an own head; Adafactor."""
    heads, ff, buckets = 8, 2 * width, 32

    def attention(keys: Keys) -> Tree:
        return {name: keys.dense(width, width) for name in "qkvo"} | {"norm": jnp.ones(width)}

    def feed(keys: Keys) -> Tree:
        return {"norm": jnp.ones(width), "gate": keys.dense(width, ff), "up": keys.dense(width, ff),
                "down": keys.dense(ff, width)}  # fmt: skip

    def init() -> Tree:
        keys = Keys()
        return {
            "embed": keys.table(vocab, width), "head": keys.dense(width, vocab),
            "bias": [keys.table(buckets, heads) for _ in range(2)], "norms": [jnp.ones(width) for _ in range(2)],
            "encoder": [{"self": attention(keys), "feed": feed(keys)} for _ in range(layers)],
            "decoder": [
                {"self": attention(keys), "cross": attention(keys), "feed": feed(keys)} for _ in range(layers)
            ],
        }  # fmt: skip

    def bucket(both: bool) -> Array:
        distance = jnp.arange(seq)[None, :] - jnp.arange(seq)[:, None]
        n = buckets // 2 if both else buckets
        offset = jnp.where(both & (distance > 0), n, 0)
        d = jnp.abs(distance) if both else jnp.maximum(-distance, 0)
        far = n // 2 + (jnp.log(jnp.maximum(d, 1) / (n // 2)) / np.log(128 / (n // 2)) * (n - n // 2)).astype(int)
        return offset + jnp.where(d < n // 2, d, jnp.minimum(far, n - 1))

    def attended(x: Array, other: Array, p: Tree, bias: Array | None) -> Array:
        b = x.shape[0]
        split = lambda y, w: (y @ w).reshape(b, -1, heads, width // heads)  # noqa: E731
        y = attend(split(x, p["q"]), split(other, p["k"]), split(other, p["v"]), bias)
        return y.reshape(x.shape) @ p["o"]

    def fed(x: Array, p: Tree) -> Array:
        y = rms_norm(x, p["norm"])
        return x + (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]

    def loss(params: Tree, batch: Tree) -> Array:
        two_way = params["bias"][0][bucket(True)].transpose(2, 0, 1)
        one_way = params["bias"][1][bucket(False)].transpose(2, 0, 1) + causal_bias(seq)
        x = params["embed"][batch["source"]]
        for p in params["encoder"]:
            y = rms_norm(x, p["self"]["norm"])
            x = fed(x + attended(y, y, p["self"], two_way), p["feed"])
        memory = rms_norm(x, params["norms"][0])
        x = params["embed"][batch["inputs"]]
        for p in params["decoder"]:
            y = rms_norm(x, p["self"]["norm"])
            x = x + attended(y, y, p["self"], one_way)
            x = x + attended(rms_norm(x, p["cross"]["norm"]), memory, p["cross"], None)
            x = fed(x, p["feed"])
        return token_loss(rms_norm(x, params["norms"][1]) @ params["head"], batch["targets"])

    return train(init, loss, pairs_of_text(vocab, seq, batch), optax.adafactor(1e-3))


class Translator(nn.Module):
    """Vaswani et al., 2017: sinusoidal positions, post-norm, one table of tokens for all."""

    vocab: int
    width: int = 256
    layers: int = 2

    @nn.compact
    def __call__(self, source: Array, target: Array, train: bool) -> Array:
        embed, dropout = nn.Embed(self.vocab, self.width), nn.Dropout(0.1, deterministic=not train)
        angle = np.arange(source.shape[1])[:, None] / 10_000 ** (np.arange(0, self.width, 2) / self.width)
        positions = np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)

        def feed(x: Array) -> Array:
            y = nn.Dense(self.width)(dropout(nn.relu(nn.Dense(4 * self.width)(x))))
            return nn.LayerNorm()(x + dropout(y))

        x = dropout(embed(source) * self.width**0.5 + positions)
        for _ in range(self.layers):
            x = feed(nn.LayerNorm()(x + dropout(nn.MultiHeadDotProductAttention(8)(x, x))))
        y = dropout(embed(target) * self.width**0.5 + positions)
        mask = nn.make_causal_mask(target)
        for _ in range(self.layers):
            y = nn.LayerNorm()(y + dropout(nn.MultiHeadDotProductAttention(8)(y, y, mask=mask)))
            y = feed(nn.LayerNorm()(y + dropout(nn.MultiHeadDotProductAttention(8)(y, x))))
        return embed.attend(y)


def translator() -> Model:
    """With label smoothing and the inverse square root schedule."""
    vocab = 4096
    model: Any = Translator(vocab)
    batch = pairs_of_text(vocab, 64)

    def loss(params: Tree, b: Tree, key: Array) -> Array:
        logits = model.apply({"params": params}, b["source"], b["inputs"], True, rngs={"dropout": key})
        labels = optax.smooth_labels(jax.nn.one_hot(b["targets"], vocab), 0.1)
        return optax.softmax_cross_entropy(logits, labels).mean()

    def init() -> Tree:
        b = batch()
        return model.init(jax.random.key(0), b["source"], b["inputs"], False)["params"]

    rate = lambda step: 256**-0.5 * jnp.minimum((step + 1) ** -0.5, (step + 1) * 400**-1.5)  # noqa: E731
    return train_keyed(init, loss, batch, optax.adam(rate, b2=0.98))


def tower_block(keys: Keys, width: int) -> Tree:
    """Parameters of ``tower``'s blocks."""
    return {"n1": norm_params(width), "n2": norm_params(width), "qkv": keys.dense(width, 3, 8, width // 8),
            "o": keys.dense(width, width), "up": keys.dense(width, 4 * width), "b_up": jnp.zeros(4 * width),
            "down": keys.dense(4 * width, width), "b_down": jnp.zeros(width)}  # fmt: skip


def tower(x: Array, blocks: Tree, bias: Array | None) -> Array:
    """Pre-norm blocks."""
    for p in blocks:
        q, k, v = jnp.einsum("bsh,htnd->tbsnd", layer_norm(x, p["n1"]), p["qkv"])
        x = x + attend(q, k, v, bias).reshape(x.shape) @ p["o"]
        y = jax.nn.gelu(layer_norm(x, p["n2"]) @ p["up"] + p["b_up"])
        x = x + y @ p["down"] + p["b_down"]
    return x


def clip() -> Model:
    """Pictures and captions, each against all others of the batch."""
    width, layers, vocab, seq, joint = 256, 3, 4096, 32, 128

    def init() -> Tree:
        keys = Keys()
        return {
            "patch": keys.dense(8 * 8 * 3, width), "pos_image": keys.table(65, width), "class": keys.table(width),
            "image": [tower_block(keys, width) for _ in range(layers)], "to_joint_image": keys.dense(width, joint),
            "tokens": keys.table(vocab, width), "pos_text": keys.table(seq, width),
            "text": [tower_block(keys, width) for _ in range(layers)], "to_joint_text": keys.dense(width, joint),
            "norm_image": norm_params(width), "norm_text": norm_params(width), "scale": jnp.float32(2.6),
        }  # fmt: skip

    def batch() -> Tree:
        tokens = np.random.default_rng(0).integers(0, vocab, (BATCH, seq), dtype=np.int32)
        return {"image": pictures(64, 10)()["image"], "tokens": tokens}

    def loss(params: Tree, b: Tree) -> Array:
        n = b["image"].shape[0]
        x = b["image"].reshape(n, 8, 8, 8, 8, 3).transpose(0, 1, 3, 2, 4, 5).reshape(n, 64, -1) @ params["patch"]
        x = jnp.concatenate([jnp.broadcast_to(params["class"], (n, 1, width)), x], 1) + params["pos_image"]
        x = layer_norm(tower(x, params["image"], None)[:, 0], params["norm_image"]) @ params["to_joint_image"]
        y = tower(params["tokens"][b["tokens"]] + params["pos_text"], params["text"], causal_bias(seq))
        last = b["tokens"].argmax(-1)
        y = layer_norm(y[jnp.arange(n), last], params["norm_text"]) @ params["to_joint_text"]
        x, y = (z / jnp.linalg.norm(z, axis=-1, keepdims=True) for z in (x, y))
        logits, labels = jnp.exp(params["scale"]) * x @ y.T, jnp.arange(n)
        return (token_loss(logits, labels) + token_loss(logits.T, labels)) / 2

    return train(init, loss, batch)


class Perceiver(nn.Module):
    """Latents read a long input by cross-attention, again before each stage (Jaegle et al., 2021)."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        latents = self.param("latents", nn.initializers.normal(0.02), (64, 256))
        z = jnp.broadcast_to(latents, (x.shape[0], *latents.shape))
        x = nn.Dense(64)(x)
        for _ in range(2):
            key = nn.LayerNorm()(x)
            z = z + nn.MultiHeadDotProductAttention(1, qkv_features=64, out_features=256)(nn.LayerNorm()(z), key, key)
            z = z + nn.Dense(256)(nn.gelu(nn.Dense(512)(nn.LayerNorm()(z))))
            for _ in range(2):
                z = z + nn.MultiHeadDotProductAttention(8)(nn.LayerNorm()(z))
                z = z + nn.Dense(256)(nn.gelu(nn.Dense(1024)(nn.LayerNorm()(z))))
        return nn.Dense(40)(nn.LayerNorm()(z).mean(1))


def perceiver() -> Model:
    """Clouds of points in 40 classes."""
    model: Any = Perceiver()

    def batch() -> Tree:
        rng = np.random.default_rng(0)
        return {"points": rng.standard_normal((BATCH, 1024, 33), dtype=np.float32),
                "label": rng.integers(0, 40, (BATCH,), dtype=np.int32)}  # fmt: skip

    return train(
        lambda: model.init(jax.random.key(0), batch()["points"])["params"],
        lambda params, b: token_loss(model.apply({"params": params}, b["points"]), b["label"]),
        batch,
        optax.lion(1e-4),
    )


def dit() -> Model:
    """A diffusion transformer (Peebles and Xie, 2023): norms scaled and shifted by time and class; an average of
    parameters is kept."""
    width, layers, patches = 256, 4, 64

    def init() -> Tree:
        keys = Keys()
        blocks = [tower_block(keys, width) | {"ada": jnp.zeros((width, 6 * width))} for _ in range(layers)]
        return {"patch": keys.dense(16, width), "pos": keys.table(patches, width), "classes": keys.table(11, width),
                "time": [keys.dense(width, width), keys.dense(width, width)], "blocks": blocks,
                "norm": norm_params(width), "out": jnp.zeros((width, 16))}  # fmt: skip

    def predict(params: Tree, x: Array, time: Array, label: Array) -> Array:
        angle = time[:, None] * jnp.exp(-jnp.arange(width // 2) * (np.log(10_000) / (width // 2)))
        c = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1) @ params["time"][0]
        c = jax.nn.silu(c) @ params["time"][1] + params["classes"][label]
        x = x @ params["patch"] + params["pos"]
        for p in params["blocks"]:
            s1, b1, g1, s2, b2, g2 = jnp.split((jax.nn.silu(c) @ p["ada"])[:, None], 6, axis=-1)
            y = layer_norm(x, p["n1"]) * (1 + s1) + b1
            q, k, v = jnp.einsum("bsh,htnd->tbsnd", y, p["qkv"])
            x = x + g1 * (attend(q, k, v).reshape(x.shape) @ p["o"])
            y = layer_norm(x, p["n2"]) * (1 + s2) + b2
            x = x + g2 * (jax.nn.gelu(y @ p["up"] + p["b_up"]) @ p["down"] + p["b_down"])
        return layer_norm(x, params["norm"]) @ params["out"]

    def batch() -> Tree:
        rng = np.random.default_rng(0)
        return {"latent": rng.standard_normal((BATCH, patches, 16), dtype=np.float32),
                "label": rng.integers(0, 10, (BATCH,), dtype=np.int32)}  # fmt: skip

    tx = optax.adamw(1e-4, weight_decay=0)

    def make() -> Tree:
        params = init()
        return params, jax.tree.map(jnp.copy, params), tx.init(params), jax.random.key(0)

    def step(state: Tree, b: Tree) -> tuple[Tree, Array]:
        params, average, opt, key = state
        key, now = jax.random.split(key)
        first, second, third = jax.random.split(now, 3)
        noise = jax.random.normal(first, b["latent"].shape)
        time = jax.random.randint(second, b["label"].shape, 0, 1000)
        label = jnp.where(jax.random.bernoulli(third, 0.1, b["label"].shape), 10, b["label"])
        kept = jnp.cos(time / 1000 * jnp.pi / 2)[:, None, None]

        def loss(params: Tree) -> Array:
            x = kept * b["latent"] + jnp.sqrt(1 - kept**2) * noise
            return ((predict(params, x, time, label) - noise) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt = tx.update(grads, opt, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 0.001)
        return (params, average, opt, key), value

    return Model(make, batch, step)


MODELS: dict[str, Callable[[], Model]] = {
    "t5": t5,
    "translator": translator,
    "clip": clip,
    "perceiver": perceiver,
    "dit": dit,
}
