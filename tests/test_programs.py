"""Programs of all kinds, planned, lowered and verified: equal to plain JAX, whatever they are made of."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sbp_jax as sbp

R = np.random.default_rng(0)
X = R.normal(size=(16, 8)).astype(np.float32)
W = R.normal(size=(8, 32)).astype(np.float32)
KEY = jax.random.key(3)
SPD = (X.T @ X + 8 * np.eye(8)).astype(np.float32)


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g, -0.5, 0.5) * jnp.cos(x),))


@jax.custom_jvp
def softened(x):
    return jnp.log1p(jnp.exp(x))


@softened.defjvp
def _(primals, tangents):
    return softened(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]


def attention(q):
    return jax.nn.dot_product_attention(q, q * 2, q + 1, is_causal=True)


def dynamic_loop(x, n):
    return lax.fori_loop(0, n, lambda i, y: jnp.tanh(y) + x * i, x)


def static_loop(x):
    return lax.fori_loop(0, 5, lambda i, y: jnp.tanh(y @ y.T @ y) + x, x)


def carried(x, w):
    def body(c, row):
        c = {"sum": c["sum"] + row @ w, "n": c["n"] + 1}
        return c, c["sum"].max()

    return lax.scan(body, {"sum": jnp.zeros(32), "n": 0}, x)


def branches(x, w):
    return lax.cond(x.sum() > 0, lambda: (x @ w).sum(0), lambda: (x @ (w * 2)).max(0))


def switched(x, k):
    return lax.switch(k, [lambda y: y * 2, jnp.sin, lambda y: y @ y.T @ y], x)


def moe(x, w):
    """Eight experts, each token to its best two, by one-hot products."""
    gates = jax.nn.softmax(x @ w[:, :8])
    top, which = lax.top_k(gates, 2)
    mask = jax.nn.one_hot(which, 8) * top[..., None]
    experts = jnp.stack([w] * 8)
    return jnp.einsum("tke,td,edf->tf", mask, x, experts)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mlp gradient": (jax.grad(lambda w, x: jnp.mean(jax.nn.gelu(x @ w) ** 2)), (W, X)),
    "attention": (attention, (R.normal(size=(4, 16, 8, 8)).astype(np.float32),)),
    "attention gradient": (
        jax.grad(lambda q: attention(q).sum()), (R.normal(size=(4, 16, 8, 8)).astype(np.float32),),
    ),
    "layer norm": (lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5), (X,)),
    "hessian": (jax.hessian(lambda v: jnp.sum(jnp.tanh(v) ** 3)), (X[0],)),
    "vmap of a lookup": (jax.vmap(lambda row, i: row[i]), (X, np.arange(16) % 8)),
    "matmul in bfloat16": (lambda x, w: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32), (X, W)),
    "integers": (lambda i: (i * 3 // 2 % 5) ^ 1, (np.arange(64).reshape(8, 8),)),
    "complex": (lambda x: jnp.abs(jnp.fft.fft(x, axis=-1)), (X,)),
    "sort and rank": (lambda x: (jnp.sort(x, 1), jnp.argsort(x, 0), jnp.median(x, 0)), (X,)),
    "cumulative": (lambda x: (jnp.cumsum(x, 0), lax.cummax(x, 1), lax.associative_scan(jnp.multiply, x)), (X,)),
    "cholesky": (jnp.linalg.cholesky, (SPD,)),
    "solve": (jnp.linalg.solve, (SPD, X.T)),
    "qr": (jnp.linalg.qr, (X,)),
    "random": (
        lambda k: [
            jax.random.normal(k, (16, 8)), jax.random.uniform(k, (8,)), jax.random.bernoulli(k, 0.3, (16, 8)),
            jax.random.randint(k, (16,), 0, 10), jax.random.categorical(k, jnp.zeros((16, 8))),
            jax.random.permutation(k, 16), jax.random.normal(k, (16, 8), jnp.bfloat16),
            jax.random.truncated_normal(k, -1, 1, (16,)), jax.random.gumbel(k, (4, 4, 4)),
        ],
        (KEY,),
    ),
    "keys": (lambda k: jax.vmap(lambda s: jax.random.normal(s, (4,)))(jax.random.split(k, 8)), (KEY,)),
    "old keys": (lambda k: jax.random.normal(k, (16, 8)), (jax.random.PRNGKey(1),)),
    "loop with a dynamic end": (dynamic_loop, (X, 4)),
    "loop with a static end": (static_loop, (X,)),
    "scan with a tree": (carried, (X, W)),
    "scan backwards": (lambda x: lax.scan(lambda c, r: (c * 0.9 + r, c), jnp.zeros(8), x, reverse=True), (X,)),
    "scan gradient": (
        jax.grad(lambda w, x: lax.scan(lambda c, r: (jnp.tanh(c + r @ w), None), jnp.zeros(32), x)[0].sum()), (W, X),
    ),
    "map": (lambda x: lax.map(lambda r: jnp.outer(r, r).sum(), x), (X,)),
    "while": (
        lambda x: lax.while_loop(lambda c: c[0].sum() < 50.0, lambda c: (c[0] + jnp.abs(x), c[1] + 1), (x, 0)), (X,),
    ),
    # Some elements stop before others: they keep what they arrived at.
    "vmap of a while loop": (
        jax.vmap(lambda r: lax.while_loop(lambda c: jnp.abs(c).sum() < 30.0, lambda c: c * 1.5 + 0.1, r)), (X,),
    ),
    "vmaps of a while loop": (
        jax.vmap(jax.vmap(
            lambda v, n: lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.sin(c[0]) + v, c[1] + 1), (v, 0))[0]
        ), (0, None)),
        (X, np.arange(8)),
    ),
    "loops that never run": (
        lambda x: (
            lax.scan(lambda c, r: (lax.fori_loop(0, 3, lambda _, y: y @ y.T @ y + r, c), c.sum(0)), x, x[:0]),
            lax.fori_loop(0, 0, lambda _, c: lax.scan(lambda d, r: (d + jnp.sin(r) @ x.T @ x, None), c, x)[0], x),
        ),
        (X,),
    ),
    "cond": (branches, (X, W)),
    "cond gradient": (jax.grad(lambda x, w: branches(x, w).sum(), (0, 1)), (X, W)),
    "switch": (switched, (X, 2)),
    "checkpoint": (jax.grad(lambda w, x: jax.checkpoint(lambda w: jnp.sin(jnp.sin(x @ w)))(w).sum()), (W, X)),
    "checkpoint with a policy": (
        jax.grad(
            lambda w, x: jax.checkpoint(
                lambda w: jnp.sin(jnp.sin(x @ w)), policy=jax.checkpoint_policies.dots_saveable
            )(w).sum()
        ),
        (W, X),
    ),
    "custom vjp": (jax.grad(lambda x: clipped(x).sum()), (X,)),
    "custom jvp": (jax.grad(lambda x: softened(x).sum()), (X,)),
    "nested jit": (lambda x, w: jax.jit(lambda a: jax.jit(jnp.tanh)(a @ w))(x), (X, W)),
    "partial and lambda": (partial(jnp.einsum, "ij,jk->ki"), (X, W)),
    "mixture of experts": (moe, (X, W)),
    "scatter": (lambda x, i: jnp.zeros((8, 8)).at[i].add(x).at[0].set(1.0), (X, np.arange(16) % 8)),
    # The first's gradient has a reshape with its dimensions reordered.
    "gradients of a grouped convolution": (
        jax.grad(lambda x, k: lax.conv_general_dilated(x, k, [1], "SAME", feature_group_count=2).var(), (0, 1)),
        (R.normal(size=(8, 4, 8)).astype(np.float32), R.normal(size=(8, 2, 3)).astype(np.float32)),
    ),
    "reshape of reordered dimensions": (
        lambda x: (lax.reshape(x, (8, 16), (1, 0)), lax.reshape(x, (16, 8), (1, 0))), (X,),
    ),
    # XLA merges a slice of a slice without the clamping in between; boxing the first must not bring that about.
    "slice out of bounds, then split": (
        lambda x, i: (sbp.to_global(lax.dynamic_slice(x, (i, 0), (8, 8)), "S(0), S(1)"), x.sum()), (X, 99),
    ),
    "pinned partial, whatever it was": (
        lambda x: (sbp.to_global(jnp.sin(x), "P, S(0)"), sbp.to_global(x, "S(1), P(max)") + 1), (X,),
    ),
    # Cells that look alike and are wired alike, but for what the user said of one.
    "one value, pinned in two ways": (
        lambda x: [sbp.to_global(jnp.sin(x), s) + 1 for s in ("S(0), B", "B, S(1)", "P, B", "B, B")], (X,),
    ),
    "pinned and empty": (
        lambda x: sbp.to_global(sbp.to_global(x[3:3], "P, P(max)") * 2, "S(0), S(1)"), (X,),
    ),
    # The sums within the unrolled body are as many as those of the loop around; each must find its own in the plan.
    "unrolled scan of means": (
        lambda x, w: (lax.scan(
            lambda c, r: (c + jnp.sin((c @ w).mean() + r.mean()) + c.mean(), c.mean()), x.mean(0), x, unroll=2
        ), x.mean()),
        (X, W),
    ),
    "segment sum": (lambda x, i: jax.ops.segment_sum(x, i, 8), (X, np.arange(16) % 8)),
    "pad, roll, stack, split": (
        lambda x: (jnp.pad(x, 1), jnp.roll(x, 3, 0), jnp.stack([x, x], 1), jnp.split(x, 4)), (X,),
    ),
    "reshape all ways": (
        lambda x: (x.reshape(2, 8, 8), x.reshape(128), x.reshape(4, 4, 2, 4), x.T.reshape(16, 8)), (X,),
    ),
    "empty": (lambda x: x[:0], (X,)),
    "scalars only": (lambda a, b: a * b + 1, (2.0, 3)),
    "result is an argument": (lambda x, y: (x, y, x), (X, 1.0)),
    "result is a constant": (lambda x: (jnp.ones((8, 8)), 3.0, jnp.arange(4), x.sum()), (X,)),
    "no arguments": (lambda: jnp.arange(16.0).reshape(4, 4).sum(0), ()),
    "none in the tree": (lambda t: {"a": None, "b": t["x"] + 1}, ({"x": X, "n": None},)),
    "conv transpose": (
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"),
        (R.normal(size=(8, 4, 4, 8)).astype(np.float32), R.normal(size=(3, 3, 8, 16)).astype(np.float32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_to_plain_jax(name: str) -> None:
    function, args = PROGRAMS[name]
    p = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    # No op is too small to split here, and moving data costs little: as many signatures as possible are tried.
    hardware = sbp.cluster.CPU
    eager = sbp.Cluster("eager to split", hardware.device, (sbp.cluster.Level("fast", None, 1e12, 0.0),))
    f = sbp.auto_parallel(function, placement=p, config=sbp.AutoParallelConfig(cluster=eager))
    for ours, plain in zip(jax.tree.leaves(f(*args)), jax.tree.leaves(jax.jit(function)(*args)), strict=True):
        assert ours.shape == plain.shape and ours.dtype == plain.dtype
        tolerance = 3e-2 if name == "matmul in bfloat16" else 2e-4
        np.testing.assert_allclose(
            np.asarray(ours, dtype=complex if jnp.iscomplexobj(ours) else float),
            np.asarray(plain),
            tolerance,
            tolerance,
        )
    assert f.plan(*args).verify().ok
