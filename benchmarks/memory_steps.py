"""Training steps unlike the models of ``examples/zoo``, for ``memory.py``: their state, the first argument, is donated.

Each is a function and the types of its arguments, some megabytes large. Nothing is run, only planned and compiled.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

Case = tuple[Callable[..., Any], tuple[Any, ...]]
_labels_loss = optax.softmax_cross_entropy_with_integer_labels


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _trained(loss: Callable[..., Any], p: Any, *batch: Any, by: Any = None) -> Case:
    """A step of an optimizer, AdamW if none is given."""
    optimizer = optax.adamw(1e-3) if by is None else by

    def step(state: Any, *batch: Any) -> Any:
        p, optimizer_state = state
        value, g = jax.value_and_grad(loss)(p, *batch)
        updates, optimizer_state = optimizer.update(g, optimizer_state, p)
        return (optax.apply_updates(p, updates), optimizer_state), value

    return step, ((p, jax.eval_shape(optimizer.init, p)), *batch)


def _autoencoder() -> Case:
    def loss(p: Any, x: Any, noise: Any) -> Any:
        h = jax.nn.gelu(x @ p["in"])
        mean, log_variance = h @ p["mean"], h @ p["variance"]
        z = mean + jnp.exp(0.5 * log_variance) * noise
        again = jax.nn.sigmoid(jax.nn.gelu(z @ p["back"]) @ p["out"])
        divergence = jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), -1)
        return jnp.mean(jnp.sum((again - x) ** 2, -1)) - 0.5 * jnp.mean(divergence)

    p = {"in": _f32(784, 512), "mean": _f32(512, 32), "variance": _f32(512, 32)}
    return _trained(loss, p | {"back": _f32(32, 512), "out": _f32(512, 784)}, _f32(1024, 784), _f32(1024, 32))


def _grouped_queries() -> Case:
    def loss(p: Any, x: Any, y: Any) -> Any:
        b, t, d = x.shape
        q, k, v = ((x @ p[n]).reshape(b, t, -1, 32) for n in "qkv")
        k, v = jnp.repeat(k, 4, 2), jnp.repeat(v, 4, 2)
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), jnp.einsum("bthd,bshd->bhts", q, k) / 6, -1e9)
        x = x + jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v).reshape(b, t, d) @ p["o"]
        x = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        x = x + (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]
        return _labels_loss(x @ p["head"], y).mean()

    p = {"q": _f32(256, 256), "k": _f32(256, 64), "v": _f32(256, 64), "o": _f32(256, 256), "head": _f32(256, 1000)}
    p |= {"gate": _f32(256, 688), "up": _f32(256, 688), "down": _f32(688, 256)}
    return _trained(loss, p, _f32(16, 128, 256), _i32(16, 128))


def _contrastive() -> Case:
    def loss(p: Any, a: Any, b: Any) -> Any:
        u, v = (jax.nn.relu(x @ p[n][0]) @ p[n][1] for n, x in (("a", a), ("b", b)))
        u, v = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (u, v))
        logits, labels = u @ v.T * jnp.exp(p["scale"]), jnp.arange(u.shape[0])
        return (_labels_loss(logits, labels).mean() + _labels_loss(logits.T, labels).mean()) / 2

    towers = {"a": (_f32(512, 1024), _f32(1024, 256)), "b": (_f32(300, 1024), _f32(1024, 256))}
    return _trained(loss, towers | {"scale": _f32()}, _f32(1024, 512), _f32(1024, 300))


def _experts() -> Case:
    def loss(p: Any, x: Any, y: Any) -> Any:
        weights, chosen = lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
        mask = jnp.sum(jax.nn.one_hot(chosen, 8) * weights[..., None], 1)
        h = jax.nn.gelu(jnp.einsum("td,edf->etf", x, p["up"]))
        return jnp.mean((x + jnp.einsum("etf,efd,te->td", h, p["down"], mask) - y) ** 2)

    p = {"router": _f32(128, 8), "up": _f32(8, 128, 512), "down": _f32(8, 512, 128)}
    return _trained(loss, p, _f32(2048, 128), _f32(2048, 128), by=optax.sgd(0.1, momentum=0.9))


def _graph_network() -> Case:
    def loss(p: Any, x: Any, senders: Any, receivers: Any, y: Any) -> Any:
        for w in p["layers"]:
            x = jax.nn.relu(jax.ops.segment_sum((x @ w)[senders], receivers, num_segments=x.shape[0]) + x)
        return jnp.mean((x @ p["out"] - y) ** 2)

    p = {"layers": [_f32(64, 64)] * 3, "out": _f32(64, 8)}
    return _trained(loss, p, _f32(4096, 64), _i32(32768), _i32(32768), _f32(4096, 8))


def _convolved(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _unet() -> Case:
    def block(x: Any, w: Any, stride: int = 1) -> Any:
        x = _convolved(x, w, stride)
        y = x.reshape(*x.shape[:3], 8, -1)
        y = (y - y.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
        return jax.nn.silu(y.reshape(x.shape))

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = block(x, p["in"])
        low = block(block(h, p["down"], 2), p["middle"])
        up = jax.image.resize(low, (*h.shape[:3], low.shape[-1]), "nearest")
        return jnp.mean((_convolved(block(jnp.concatenate([up, h], -1), p["up"]), p["out"]) - y) ** 2)

    p = {"in": _f32(3, 3, 3, 32), "down": _f32(3, 3, 32, 64), "middle": _f32(3, 3, 64, 64), "up": _f32(3, 3, 96, 32)}
    return _trained(loss, p | {"out": _f32(3, 3, 32, 3)}, _f32(32, 32, 32, 3), _f32(32, 32, 32, 3))


def _recurrent() -> Case:
    def loss(p: Any, x: Any, y: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            z, r = jnp.split(jax.nn.sigmoid(x @ p["x"] + h @ p["h"]), 2, -1)
            h = (1 - z) * jnp.tanh(x @ p["nx"] + r * (h @ p["nh"])) + z * h
            return h, h

        _, states = lax.scan(cell, jnp.zeros((x.shape[1], 256)), x)
        return jnp.mean((states @ p["out"] - y) ** 2)

    p = {"x": _f32(64, 512), "h": _f32(256, 512), "nx": _f32(64, 256), "nh": _f32(256, 256), "out": _f32(256, 16)}
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    return _trained(loss, p, _f32(64, 128, 64), _f32(64, 128, 16), by=clipped)


def _batch_norm() -> Case:
    def loss(p: Any, x: Any, y: Any) -> Any:
        for w, scale, bias in p["layers"]:
            x = _convolved(x, w)
            x = jax.nn.relu((x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5) * scale + bias)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return _labels_loss(x.mean((1, 2)) @ p["out"], y).mean()

    layers = [(_f32(3, 3, 3, 32), _f32(32), _f32(32)), (_f32(3, 3, 32, 64), _f32(64), _f32(64))]
    p = {"layers": layers, "out": _f32(64, 10)}
    return _trained(loss, p, _f32(128, 32, 32, 3), _i32(128), by=optax.sgd(0.1))


def _mixer() -> Case:
    def loss(p: Any, x: Any, y: Any) -> Any:
        for a, b, c, d in p["layers"]:
            x = x + jnp.swapaxes(jax.nn.gelu(jnp.swapaxes(x, 1, 2) @ a) @ b, 1, 2)
            x = x + jax.nn.gelu(x @ c) @ d
        return jnp.mean((x.mean(1) - y) ** 2)

    layers = [(_f32(64, 128), _f32(128, 64), _f32(192, 384), _f32(384, 192))] * 3
    return _trained(loss, {"layers": layers}, _f32(64, 64, 192), _f32(64, 192), by=optax.lion(1e-4))


STEPS: dict[str, Callable[[], Case]] = {
    "variational autoencoder": _autoencoder,
    "grouped queries": _grouped_queries,
    "contrastive": _contrastive,
    "experts": _experts,
    "graph network": _graph_network,
    "U-Net": _unet,
    "recurrent, clipped": _recurrent,
    "batch norm": _batch_norm,
    "mixer": _mixer,
}
