"""Ops cut by ratios among unlike devices: run by actors, they give the numbers, types and trees of ``jax.jit``."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
from placed import assert_same

# So fast are links here, and so little does the smallest kernel take, that small programs are worth cutting.
SPEEDS = (7.0, 3.0, 2.0)


def devices(n: int) -> sbp.Devices:
    speeds = [1e9 * s for s in SPEEDS[:n]]
    return sbp.Devices.by_speed(["fast", "slow", "slower"][:n], flops_per_second=speeds, memory_bytes_per_second=speeds,
                                memory_bytes=[1e12] * n, bytes_per_second=1e14, latency_seconds=0.0)  # fmt: skip


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def trained(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step: forward, backward, update."""

    def step(w: Any, *data: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(w, *data)
        return jax.tree.map(lambda x, s: x - 0.1 * s, w, slopes), value

    return step


def mlp(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    for a, b in w:
        x = jnp.tanh(x @ a + b)
    return ((x - y) ** 2).mean()


def cnn(w: Any, x: jax.Array) -> jax.Array:
    """Convolutions, a maximum over windows, a standard deviation over the batch."""
    numbers = ("NHWC", "HWIO", "NHWC")
    h = jax.nn.relu(jax.lax.conv_general_dilated(x, w[0], (1, 1), "SAME", dimension_numbers=numbers))
    h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    h = jax.nn.relu(jax.lax.conv_general_dilated(h, w[1], (2, 1), "SAME", dimension_numbers=numbers))
    return (h.mean((1, 2)) @ w[2]).std()


def transformer(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """A causal block between an embedding and its transpose; labels are whole numbers, the mask flags."""
    h = w["embed"][x]
    b, t, d = h.shape
    z = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
    q, k, v = (a.reshape(b, t, 2, d // 2).transpose(0, 2, 1, 3) for a in jnp.split(z @ w["qkv"], 3, -1))
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), q @ k.swapaxes(-1, -2), -1e9)
    h = h + (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ w["out"]
    h = h + jax.nn.gelu(h @ w["up"]) @ w["down"]
    logits = jax.nn.log_softmax(h @ w["embed"].T)
    return -jnp.take_along_axis(logits, y[..., None], -1).mean()


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
    """A softmax along rows, and numbers, flags and positions of all of it."""
    p = jax.nn.softmax(q @ k.T)
    wide = p @ v
    return wide, p.max(0), p.argmax(1), wide.min(), (wide > 0).any(), (p > 0.1).sum(0), jnp.linalg.norm(wide)


def loops(x: jax.Array, w: jax.Array, n: jax.Array) -> Any:
    """Products before and after loops and a branch, which stay whole."""
    h = x @ w

    def body(c: jax.Array, z: jax.Array) -> Any:
        return jnp.tanh(c * 0.5 + z), c.sum()

    last, sums = jax.lax.scan(body, jnp.zeros(w.shape[1]), h)
    more = jax.lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.tanh(c[0]) + 1, c[1] + 1), (h, 0))[0]
    return jax.lax.cond(last.sum() > 0, lambda a: a @ w.T, lambda a: -(a @ w.T), more), sums, {"count": n + 1}


def drawn(key: jax.Array, x: jax.Array, w: jax.Array) -> Any:
    """Dropout: keys as arguments and results, bits that are the same however they are cut."""
    a, b = jax.random.split(key)
    keep = jax.random.bernoulli(a, 0.7, x.shape)
    return jnp.where(keep, x, 0) @ w, b, keep.sum(1), jax.random.randint(b, x.shape[:1], 0, 9)


def counted(x: jax.Array, table: jax.Array, scale: float) -> Any:
    """Rows looked up and added up by whole numbers; a Python number; results that are arguments or constants."""
    rows = table[x] * scale
    return (
        jnp.zeros_like(table).at[x].add(rows @ table.T @ table),
        (x << 2) ^ 5,
        jnp.bincount(x, length=7),
        x,
        jnp.arange(3),
    )


BLOCK = {"embed": (31, 12), "qkv": (12, 36), "out": (12, 12), "up": (12, 40), "down": (40, 12)}
TOKENS = jax.random.randint(jax.random.key(1), (5, 9), 0, 31)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mlp": (trained(mlp), ([(normal(1, 17, 23) / 4, normal(5, 23)), (normal(2, 23, 17) / 4, normal(6, 17))],
                           normal(3, 31, 17), normal(4, 31, 17))),
    "cnn": (trained(cnn), ([normal(1, 3, 3, 3, 5), normal(2, 3, 3, 5, 7), normal(3, 7, 3)], normal(4, 7, 8, 8, 3))),
    "transformer": (trained(transformer), ({k: 0.1 * normal(7, *s) for k, s in BLOCK.items()}, TOKENS, TOKENS)),
    "attention": (attention, (normal(1, 13, 16), normal(2, 11, 16), normal(3, 11, 10))),
    "loops": (loops, (normal(1, 19, 40), normal(2, 40, 24) / 6, jnp.int32(3))),
    "drawn": (drawn, (jax.random.key(3), normal(2, 15, 64), normal(3, 64, 33))),
    "counted": (counted, (jnp.arange(29) * 5 % 7, normal(1, 7, 24), 0.5)),
}  # fmt: skip


LONG = {("transformer", 2), ("drawn", 2), *((name, 3) for name in PROGRAMS)}


@pytest.mark.parametrize(("name", "n"), [
    pytest.param(name, n, marks=pytest.mark.slow if (name, n) in LONG else ()) for name in PROGRAMS for n in (2, 3)
])  # fmt: skip
def test_programs_in_pieces_give_what_jit_gives(name: str, n: int) -> None:
    fn, args = PROGRAMS[name]
    plain = jax.jit(fn)(*args)
    placed = sbp.place_ops(fn, *args, devices=devices(n), solver="accpar_ratios")
    try:
        assert any("products cut" in note for note in placed.notes), placed.notes
        assert set(placed.device_of.values()) == set(placed.devices.names)
        assert_same(placed.run(*args), plain, rtol=1e-4, atol=1e-5)
    finally:
        placed.close()
