"""Convolutional networks: residual, depthwise, and a U-Net for diffusion."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from .common import BATCH, Keys, Model, Tree, pictures, token_loss, train_nnx, train_stats


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, a projection where shapes change."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        def norm() -> Any:
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)

        y = nn.relu(norm()(nn.Conv(self.width, (3, 3), (self.stride, self.stride), use_bias=False)(x)))
        y = norm()(nn.Conv(self.width, (3, 3), use_bias=False)(y))
        if x.shape != y.shape:
            x = norm()(nn.Conv(self.width, (1, 1), (self.stride, self.stride), use_bias=False)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """ResNet-18 for small pictures."""

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        x = nn.Conv(64, (3, 3), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        for k, width in enumerate((64, 128, 256)):
            for j in range(2):
                x = ResidualBlock(width, 2 if k and not j else 1)(x, train)
        return nn.Dense(100)(x.mean((1, 2)))


def resnet() -> Model:
    """SGD with momentum and weight decay."""
    model: Any = ResNet()
    batch = pictures(32, 100, batch=32)

    def loss(params: Tree, stats: Tree, b: Tree) -> tuple[Array, Tree]:
        logits, new = model.apply({"params": params, "batch_stats": stats}, b["image"], True, mutable=["batch_stats"])
        return token_loss(logits, b["label"]), new["batch_stats"]

    tx = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.1, momentum=0.9, nesterov=True))
    return train_stats(lambda: model.init(jax.random.key(0), batch()["image"], False), loss, batch, tx)


class Inverted(nnx.Module):
    """MobileNet's block: wide, depthwise, narrow."""

    def __init__(self, inside: int, outside: int, stride: int, rngs: nnx.Rngs) -> None:
        wide = 6 * inside
        self.expand = nnx.Conv(inside, wide, (1, 1), use_bias=False, rngs=rngs)
        self.depth = nnx.Conv(wide, wide, (3, 3), stride, feature_group_count=wide, use_bias=False, rngs=rngs)
        self.project = nnx.Conv(wide, outside, (1, 1), use_bias=False, rngs=rngs)
        self.norms = nnx.List([nnx.BatchNorm(n, rngs=rngs) for n in (wide, wide, outside)])
        self.adds = stride == 1 and inside == outside

    def __call__(self, x: Array) -> Array:
        y = nnx.relu6(self.norms[0](self.expand(x)))
        y = nnx.relu6(self.norms[1](self.depth(y)))
        y = self.norms[2](self.project(y))
        return x + y if self.adds else y


class MobileNet(nnx.Module):
    """A short MobileNetV2."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, 32, (3, 3), 2, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        shapes = ((32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1))
        self.blocks = nnx.List([Inverted(*shape, rngs) for shape in shapes])
        self.last, self.head = nnx.Conv(128, 512, (1, 1), rngs=rngs), nnx.Linear(512, 100, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = nnx.relu6(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(nnx.relu6(self.last(x)).mean((1, 2)))


def mobilenet() -> Model:
    """RMSProp, as published."""
    return train_nnx(
        lambda: MobileNet(nnx.Rngs(0)),
        lambda model, b: token_loss(model(b["image"]), b["label"]),
        pictures(64, 100, batch=32),
        optax.rmsprop(1e-3, momentum=0.9),
    )


def conv(x: Array, w: Array, stride: int = 1) -> Array:
    """SAME, channels last."""
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def group_norm(x: Array, p: Tree, groups: int = 8) -> Array:
    """Over positions and the channels of a group."""
    b, h, w, c = x.shape
    y = x.reshape(b, h, w, groups, c // groups)
    y = (y - y.mean((1, 2, 4), keepdims=True)) * jax.lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
    return y.reshape(x.shape) * p["scale"] + p["bias"]


def unet() -> Model:
    """Noise prediction: residual blocks told the time, attention at the bottom, skips by concatenation."""
    widths, hidden = (32, 64, 128), 128

    def block(keys: Keys, inside: int, outside: int) -> Tree:
        def kernel(n: int, a: int, b: int) -> Array:
            return jax.random.normal(keys(), (n, n, a, b)) * (n * n * a) ** -0.5

        return {
            "n1": {"scale": jnp.ones(inside), "bias": jnp.zeros(inside)}, "c1": kernel(3, inside, outside),
            "time": keys.dense(hidden, outside),
            "n2": {"scale": jnp.ones(outside), "bias": jnp.zeros(outside)}, "c2": kernel(3, outside, outside),
            "skip": kernel(1, inside, outside),
        }  # fmt: skip

    def init() -> Tree:
        keys, last = Keys(), widths[-1]
        inside = (widths[0], *widths[:-1])
        return {
            "stem": jax.random.normal(keys(), (3, 3, 3, widths[0])) * 0.2,
            "time": [keys.dense(64, hidden), keys.dense(hidden, hidden)],
            "down": [block(keys, a, b) for a, b in zip(inside, widths, strict=True)],
            "middle": [block(keys, last, last) for _ in range(2)],
            "attention": {"norm": {"scale": jnp.ones(last), "bias": jnp.zeros(last)}, "qkv": keys.dense(last, 3 * last),
                          "o": keys.dense(last, last)},
            "up": [block(keys, 2 * b, a) for a, b in zip(inside[::-1], widths[::-1], strict=True)],
            "out": jnp.zeros((3, 3, widths[0], 3)),
        }  # fmt: skip

    def residual(x: Array, p: Tree, time: Array) -> Array:
        y = conv(jax.nn.silu(group_norm(x, p["n1"])), p["c1"]) + (time @ p["time"])[:, None, None]
        return conv(x, p["skip"]) + conv(jax.nn.silu(group_norm(y, p["n2"])), p["c2"])

    def attention(x: Array, p: Tree) -> Array:
        b, h, w, c = x.shape
        q, k, v = jnp.split((group_norm(x, p["norm"]) @ p["qkv"]).reshape(b, h * w, 3 * c), 3, axis=-1)
        weights = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", q, k) * c**-0.5, -1)
        return x + (weights @ v).reshape(x.shape) @ p["o"]

    def predict(params: Tree, x: Array, time: Array) -> Array:
        angle = time[:, None] * jnp.exp(-jnp.arange(32) * 0.29)
        t = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1) @ params["time"][0]
        t = jax.nn.silu(t) @ params["time"][1]
        x, skips = conv(x, params["stem"]), []
        for p in params["down"]:
            x = residual(x, p, t)
            skips.append(x)
            x = x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).mean((2, 4))
        x = residual(x, params["middle"][0], t)
        x = residual(attention(x, params["attention"]), params["middle"][1], t)
        for p in params["up"]:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = residual(jnp.concatenate([x, skips.pop()], -1), p, t)
        return conv(jax.nn.silu(x), params["out"])

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-4))

    def make() -> Tree:
        params = init()
        return params, tx.init(params), jax.random.key(0)

    def step(state: Tree, image: Array) -> tuple[Tree, Array]:
        params, opt, key = state
        key, first, second = jax.random.split(key, 3)
        time = jax.random.uniform(first, (image.shape[0],))
        noise = jax.random.normal(second, image.shape)
        mixed = jnp.cos(time)[:, None, None, None] * image + jnp.sin(time)[:, None, None, None] * noise

        def loss(params: Tree) -> Array:
            return ((predict(params, mixed, 1000 * time) - noise) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt, key), value

    return Model(make, lambda: np.random.default_rng(0).standard_normal((BATCH, 32, 32, 3), dtype=np.float32), step)


MODELS: dict[str, Callable[[], Model]] = {"resnet": resnet, "mobilenet": mobilenet, "unet": unet}
