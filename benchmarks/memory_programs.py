"""Programs unlike the models of ``examples/zoo``, for ``memory.py``: single ops, gradients, small training steps.

Each is a function and the types of its arguments, some megabytes large. Nothing is run, only planned and compiled.
"""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from jax import lax

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _convolution_gradient() -> Case:
    def loss(w: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.sum(jax.nn.relu(y) ** 2)

    return jax.grad(loss, argnums=(0, 1)), (_f32(3, 3, 32, 64), _f32(32, 32, 32, 32))


def _chain_of_where() -> Case:
    def chain(x: Any, y: Any) -> Any:
        for k in range(8):
            x = jnp.where(x > 0.1 * k, x * 1.5 + k, y - x)
        return x

    return chain, (_f32(1024, 1024), _f32(1024, 1024))


def _mlp_gradient() -> Case:
    def loss(weights: Any, x: Any, y: Any) -> Any:
        for w, b in weights:
            x = jnp.tanh(x @ w + b)
        return jnp.mean((x - y) ** 2)

    weights = [(_f32(512, 512), _f32(512)) for _ in range(4)]
    return jax.grad(loss), (weights, _f32(2048, 512), _f32(2048, 512))


def _ctc() -> Case:
    def loss(w: Any, x: Any, paddings: Any, labels: Any, label_paddings: Any) -> Any:
        return jnp.mean(optax.ctc_loss(x @ w, paddings, labels, label_paddings))

    return jax.value_and_grad(loss), (_f32(64, 128), _f32(16, 256, 64), _f32(16, 256), _i32(16, 64), _f32(16, 64))


def _ppo() -> Case:
    """One update of proximal policy optimisation: advantages by a scan, four epochs of clipped gradients."""

    def network(p: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"])
        return h @ p["pi"], (h @ p["v"])[..., 0]

    def update(p: Any, opt: Any, obs: Any, actions: Any, rewards: Any, dones: Any, old: Any, values: Any) -> Any:
        def back(carry: Any, xs: Any) -> Any:
            adv, next_value = carry
            r, d, v = xs
            adv = r + 0.99 * next_value * (1 - d) - v + 0.95 * 0.99 * (1 - d) * adv
            return (adv, v), adv

        zero = jnp.zeros(rewards.shape[1])
        _, adv = lax.scan(back, (zero, zero), (rewards, dones, values), reverse=True)
        returns = adv + values
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)

        def loss(p: Any) -> Any:
            logits, v = network(p, obs)
            logp = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]
            ratio = jnp.exp(logp - old)
            policy = -jnp.minimum(ratio * adv, jnp.clip(ratio, 0.8, 1.2) * adv).mean()
            entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), -1).mean()
            return policy + 0.5 * jnp.mean((v - returns) ** 2) - 0.01 * entropy

        def epoch(carry: Any, _: Any) -> Any:
            p, opt = carry
            value, g = jax.value_and_grad(loss)(p)
            updates, opt = optax.adam(3e-4).update(g, opt, p)
            return (optax.apply_updates(p, updates), opt), value

        (p, opt), losses = lax.scan(epoch, (p, opt), None, length=4)
        return p, opt, losses.mean()

    p = {"a": _f32(64, 256), "b": _f32(256, 256), "pi": _f32(256, 16), "v": _f32(256, 1)}
    opt = jax.eval_shape(optax.adam(3e-4).init, p)
    t, n = 128, 64
    steps = _f32(t, n)
    return update, (p, opt, _f32(t, n, 64), _i32(t, n), steps, steps, steps, steps)


def _seq2seq() -> Case:
    """A step of an encoder and a decoder of gated recurrent units, with attention between them."""

    def gru(p: Any, h: Any, x: Any) -> Any:
        z, r = jnp.split(jax.nn.sigmoid(x @ p["wx"] + h @ p["wh"]), 2, -1)
        n = jnp.tanh(x @ p["nx"] + r * (h @ p["nh"]))
        return (1 - z) * n + z * h

    def loss(p: Any, source: Any, target: Any) -> Any:
        xs, ys = p["embed"][source.T], p["embed"][target.T]
        h0 = jnp.zeros((source.shape[0], p["embed"].shape[1]))

        def encode(h: Any, x: Any) -> Any:
            h = gru(p["encoder"], h, x)
            return h, h

        h, memory = lax.scan(encode, h0, xs)

        def decode(h: Any, y: Any) -> Any:
            h = gru(p["decoder"], h, y)
            weights = jax.nn.softmax(jnp.einsum("bd,tbd->bt", h, memory))
            return h, jnp.concatenate([h, jnp.einsum("bt,tbd->bd", weights, memory)], -1)

        _, out = lax.scan(decode, h, ys[:-1])
        logits = out @ p["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, target.T[1:]).mean()

    def step(p: Any, opt: Any, source: Any, target: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, source, target)
        updates, opt = optax.adam(1e-3).update(g, opt, p)
        return optax.apply_updates(p, updates), opt, value

    d, vocabulary = 128, 512
    cell = {"wx": _f32(d, 2 * d), "wh": _f32(d, 2 * d), "nx": _f32(d, d), "nh": _f32(d, d)}
    p = {"embed": _f32(vocabulary, d), "encoder": cell, "decoder": cell, "head": _f32(2 * d, vocabulary)}
    opt = jax.eval_shape(optax.adam(1e-3).init, p)
    return step, (p, opt, _i32(32, 48), _i32(32, 48))


PROGRAMS: dict[str, Callable[[], Case]] = {
    "gradient of a convolution": _convolution_gradient,
    "chain of where": _chain_of_where,
    "svd": lambda: (lambda x: jnp.linalg.svd(x, full_matrices=False), (_f32(512, 512),)),
    "associative_scan": lambda: (lambda x: lax.associative_scan(jnp.add, x), (_f32(1024, 1024),)),
    "cumsum": lambda: (lambda x: jnp.cumsum(x, axis=0), (_f32(1024, 1024),)),
    "fft": lambda: (lambda x: jnp.abs(jnp.fft.fft(x)), (_f32(1024, 1024),)),
    "gradient of an MLP": _mlp_gradient,
    "concatenate": lambda: (lambda x, y: jnp.concatenate([x, y * 2], axis=1) + 1, (_f32(1024, 512),) * 2),
    "categorical": lambda: (lambda key, x: jax.random.categorical(key, x), (_key(), _f32(1024, 1024))),
    "ctc": _ctc,
    "ppo": _ppo,
    "seq2seq": _seq2seq,
}


def random_program(seed: int) -> Any:
    """The random program of a seed (``tests/random_programs.py``), dims 16 times as large: values of up to 4 MiB."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from random_program import generate, moving, nested, pointwise, reducing, scope

    sizes = {"DIMS": tuple(16 * n if n > 1 else 1 for n in scope.DIMS), "MAX_ELEMENTS": 2**20}
    with contextlib.ExitStack() as stack:
        for module in (scope, moving, nested, pointwise, reducing):
            here = {name: value for name, value in sizes.items() if hasattr(module, name)}
            stack.enter_context(mock.patch.multiple(module, **here))
        return generate.generate(seed, wide=False)
