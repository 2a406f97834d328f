"""Encoders of text, pictures and sound, most of them in Flax Linen."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
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
    layer_norm,
    norm_params,
    pictures,
    token_loss,
    train,
    train_keyed,
    train_nnx,
    train_stats,
)

VOCAB, SEQ = 8192, 128


class PostNormLayer(nn.Module):
    """BERT's layer: norms after the residuals."""

    heads: int
    dropout: float = 0.1

    @nn.compact
    def __call__(self, x: Array, mask: Array | None, train: bool) -> Array:
        y = nn.MultiHeadDotProductAttention(self.heads, dropout_rate=self.dropout)(
            x, mask=mask, deterministic=not train
        )
        x = nn.LayerNorm()(x + nn.Dropout(self.dropout)(y, deterministic=not train))
        y = nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(x)))
        return nn.LayerNorm()(x + nn.Dropout(self.dropout)(y, deterministic=not train))


class Bert(nn.Module):
    """Masked language model with a tied decoder."""

    layers: int = 4
    width: int = 256

    @nn.compact
    def __call__(self, tokens: Array, kinds: Array, padding: Array, train: bool) -> Array:
        embed = nn.Embed(VOCAB, self.width)
        x = embed(tokens) + nn.Embed(SEQ, self.width)(jnp.arange(tokens.shape[1])) + nn.Embed(2, self.width)(kinds)
        x = nn.Dropout(0.1)(nn.LayerNorm()(x), deterministic=not train)
        mask = nn.make_attention_mask(padding > 0, padding > 0)
        for _ in range(self.layers):
            x = PostNormLayer(8)(x, mask, train)
        x = nn.LayerNorm()(nn.gelu(nn.Dense(self.width)(x)))
        return embed.attend(x) + self.param("bias", nn.initializers.zeros, (VOCAB,))


def bert() -> Model:
    """Only masked positions count."""
    model: Any = Bert()

    def batch() -> Tree:
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, VOCAB, (BATCH, SEQ), dtype=np.int32)
        lengths = rng.integers(SEQ // 2, SEQ, (BATCH, 1))
        return {
            "tokens": tokens, "targets": tokens, "kinds": (tokens % 2).astype(np.int32),
            "padding": (np.arange(SEQ) < lengths).astype(np.int32),
            "masked": (rng.random((BATCH, SEQ)) < 0.15).astype(np.float32),
        }  # fmt: skip

    def loss(params: Tree, b: Tree, key: Array) -> Array:
        logits = model.apply({"params": params}, b["tokens"], b["kinds"], b["padding"], True, rngs={"dropout": key})
        each = optax.softmax_cross_entropy_with_integer_labels(logits, b["targets"])
        return (each * b["masked"]).sum() / jnp.maximum(b["masked"].sum(), 1)

    def init() -> Tree:
        b = batch()
        return model.init(jax.random.key(0), b["tokens"], b["kinds"], b["padding"], False)["params"]

    return train_keyed(init, loss, batch)


class RobertaLayer(nnx.Module):
    """With nnx's own attention."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(8, width, decode=False, rngs=rngs)
        self.first, self.second = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: Array, mask: Array) -> Array:
        x = self.first(x + self.attention(x, mask=mask))
        return self.second(x + self.down(nnx.gelu(self.up(x))))


class RobertaClassifier(nnx.Module):
    """The first token's vector is classified; positions count from the padding on."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens, self.positions = nnx.Embed(VOCAB, 256, rngs=rngs), nnx.Embed(SEQ + 2, 256, rngs=rngs)
        self.layers = nnx.List([RobertaLayer(256, rngs) for _ in range(4)])
        self.dense, self.head = nnx.Linear(256, 256, rngs=rngs), nnx.Linear(256, 3, rngs=rngs)

    def __call__(self, tokens: Array) -> Array:
        there = tokens != 1
        x = self.tokens(tokens) + self.positions(jnp.cumsum(there, 1) * there + 1)
        for layer in self.layers:
            x = layer(x, there[:, None, None, :])
        return self.head(jnp.tanh(self.dense(x[:, 0])))


def roberta() -> Model:
    """Fine-tuning for three classes, by AdamW with a decay that leaves vectors alone."""
    decays = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)  # noqa: E731

    def batch() -> Tree:
        rng = np.random.default_rng(0)
        return {"tokens": rng.integers(0, VOCAB, (BATCH, SEQ), dtype=np.int32),
                "label": rng.integers(0, 3, (BATCH,), dtype=np.int32)}  # fmt: skip

    return train_nnx(
        lambda: RobertaClassifier(nnx.Rngs(0)),
        lambda model, b: token_loss(model(b["tokens"]), b["label"]),
        batch,
        optax.adamw(2e-5, mask=decays),
    )


class Vit(nn.Module):
    """A class token, learned positions, pre-norm layers; ``tokens``: how many extra ones are read."""

    layers: int = 4
    width: int = 256
    classes: int = 100

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = nn.Conv(self.width, (8, 8), strides=(8, 8))(image)
        x = x.reshape(x.shape[0], -1, self.width)
        first = self.param("class", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.tile(first, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], self.width))
        for _ in range(self.layers):
            x = x + nn.SelfAttention(8)(nn.LayerNorm()(x))
            x = x + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        return nn.Dense(self.classes)(nn.LayerNorm()(x)[:, 0])


def vit() -> Model:
    """With label smoothing."""
    model: Any = Vit()
    batch = pictures(64, 100)

    def loss(params: Tree, b: Tree) -> Array:
        labels = optax.smooth_labels(jax.nn.one_hot(b["label"], 100), 0.1)
        return optax.softmax_cross_entropy(model.apply({"params": params}, b["image"]), labels).mean()

    return train(lambda: model.init(jax.random.key(0), batch()["image"])["params"], loss, batch)


def deit() -> Model:
    """Distillation (Touvron et al., 2021): a student with two tokens, a fixed convolutional teacher."""
    width, layers, classes = 192, 4, 100

    def block(keys: Keys) -> Tree:
        return {"n1": norm_params(width), "n2": norm_params(width), "qkv": keys.dense(width, 3 * width),
                "o": keys.dense(width, width), "up": keys.dense(width, 4 * width),
                "down": keys.dense(4 * width, width)}  # fmt: skip

    def init() -> Tree:
        keys = Keys()
        return {
            "patch": keys.dense(8 * 8 * 3, width), "tokens": keys.table(1, 2, width), "pos": keys.table(66, width),
            "blocks": [block(keys) for _ in range(layers)], "norm": norm_params(width),
            "class": keys.dense(width, classes), "distil": keys.dense(width, classes),
        }  # fmt: skip

    def teacher(p: Tree, image: Array) -> Array:
        x = image
        for w in p["convs"]:
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            )
        return x.mean((1, 2)) @ p["head"]

    def student(p: Tree, image: Array) -> tuple[Array, Array]:
        b = image.shape[0]
        x = image.reshape(b, 8, 8, 8, 8, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, 64, -1) @ p["patch"]
        x = jnp.concatenate([jnp.broadcast_to(p["tokens"], (b, 2, width)), x], 1) + p["pos"]
        for q in p["blocks"]:
            heads = jnp.split((layer_norm(x, q["n1"]) @ q["qkv"]).reshape(b, 66, 3, -1), 3, axis=-1)
            x = x + attend(*heads).reshape(x.shape) @ q["o"]
            x = x + jax.nn.gelu(layer_norm(x, q["n2"]) @ q["up"]) @ q["down"]
        x = layer_norm(x, p["norm"])
        return x[:, 0] @ p["class"], x[:, 1] @ p["distil"]

    tx = optax.lamb(1e-3)

    def make() -> Tree:
        keys, params = Keys(1), init()
        shapes = ((3, 3, 3, 32), (3, 3, 32, 64), (3, 3, 64, 128))
        fixed = {"convs": [0.1 * jax.random.normal(keys(), s) for s in shapes], "head": keys.dense(128, classes)}
        return params, fixed, tx.init(params)

    def loss(params: Tree, fixed: Tree, b: Tree) -> Array:
        first, second = student(params, b["image"])
        hard = teacher(fixed, b["image"]).argmax(-1)
        return 0.5 * token_loss(first, b["label"]) + 0.5 * token_loss(second, hard)

    def step(state: Tree, b: Tree) -> tuple[Tree, Array]:
        params, fixed, opt = state
        value, grads = jax.value_and_grad(loss)(params, fixed, b)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), fixed, opt), value

    return Model(make, pictures(64, classes), step)


def swin() -> Model:
    """Windows of 4 x 4 patches, every second layer shifted, two stages with merging between."""
    width, window, heads = 96, 4, 4

    def block(keys: Keys, n: int) -> Tree:
        return {"n1": norm_params(n), "n2": norm_params(n), "qkv": keys.dense(n, 3 * n), "o": keys.dense(n, n),
                "bias": keys.table(heads, window**2, window**2), "up": keys.dense(n, 4 * n),
                "down": keys.dense(4 * n, n)}  # fmt: skip

    def init() -> Tree:
        keys = Keys()
        return {"patch": keys.dense(48, width), "one": [block(keys, width) for _ in range(2)],
                "merge": keys.dense(4 * width, 2 * width), "two": [block(keys, 2 * width) for _ in range(2)],
                "norm": norm_params(2 * width), "head": keys.dense(2 * width, 100)}  # fmt: skip

    def layer(x: Array, p: Tree, shift: int) -> Array:
        b, n, _, c = x.shape
        y = jnp.roll(layer_norm(x, p["n1"]), (-shift, -shift), (1, 2))
        k = n // window
        y = y.reshape(b, k, window, k, window, c).transpose(0, 1, 3, 2, 4, 5).reshape(-1, window**2, c)
        q, key, v = ((y @ p["qkv"]).reshape(-1, window**2, 3, heads, c // heads)[:, :, i] for i in range(3))
        y = attend(q, key, v, p["bias"]).reshape(y.shape) @ p["o"]
        y = y.reshape(b, k, k, window, window, c).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
        x = x + jnp.roll(y, (shift, shift), (1, 2))
        return x + jax.nn.gelu(layer_norm(x, p["n2"]) @ p["up"]) @ p["down"]

    def loss(params: Tree, batch: Tree) -> Array:
        image = batch["image"]
        b = image.shape[0]
        x = image.reshape(b, 16, 4, 16, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, 16, 16, 48) @ params["patch"]
        for k, p in enumerate(params["one"]):
            x = layer(x, p, 2 * (k % 2))
        x = jnp.concatenate([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1) @ params["merge"]
        for k, p in enumerate(params["two"]):
            x = layer(x, p, 2 * (k % 2))
        return token_loss(layer_norm(x, params["norm"]).mean((1, 2)) @ params["head"], batch["label"])

    return train(init, loss, pictures(64, 100))


class ConformerBlock(nn.Module):
    """Half feed-forward, attention, convolution, half feed-forward (Gulati et al., 2020)."""

    width: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        def feed(x: Array) -> Array:
            return nn.Dense(self.width)(nn.swish(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))

        x = x + 0.5 * feed(x)
        x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
        y = nn.glu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)))
        y = nn.Conv(self.width, (15,), feature_group_count=self.width, padding="SAME")(y)
        y = nn.swish(nn.BatchNorm(use_running_average=not train, momentum=0.9)(y))
        x = x + nn.Dense(self.width)(y)
        return nn.LayerNorm()(x + 0.5 * feed(x))


class Conformer(nn.Module):
    """Sound by two strided convolutions, then blocks; a letter for each frame."""

    @nn.compact
    def __call__(self, sound: Array, train: bool) -> Array:
        x = sound[..., None]
        for _ in range(2):
            x = nn.relu(nn.Conv(64, (3, 3), strides=(2, 2))(x))
        x = nn.Dense(144)(x.reshape(*x.shape[:2], -1))
        for _ in range(3):
            x = ConformerBlock(144)(x, train)
        return nn.Dense(64)(x)


def conformer() -> Model:
    """CTC over letters."""
    model: Any = Conformer()

    def batch() -> Tree:
        rng = np.random.default_rng(0)
        return {"sound": rng.standard_normal((BATCH, 256, 80), dtype=np.float32),
                "letters": rng.integers(1, 64, (BATCH, 20), dtype=np.int32)}  # fmt: skip

    def loss(params: Tree, stats: Tree, b: Tree) -> tuple[Array, Tree]:
        logits, new = model.apply({"params": params, "batch_stats": stats}, b["sound"], True, mutable=["batch_stats"])
        none, some = jnp.zeros(logits.shape[:2]), jnp.zeros(b["letters"].shape)
        return optax.ctc_loss(logits, none, b["letters"], some).mean(), new["batch_stats"]

    return train_stats(lambda: model.init(jax.random.key(0), batch()["sound"], False), loss, batch, optax.adam(1e-3))


MODELS: dict[str, Callable[[], Model]] = {
    "bert": bert,
    "roberta_classifier": roberta,
    "vit": vit,
    "deit": deit,
    "swin": swin,
    "conformer": conformer,
}
