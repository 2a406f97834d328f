"""Every strategy of every rule, piece by piece, against the whole."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sbp_jax.rules.check import check
from sbp_jax.trace import Lit, Op, build

R = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return R.normal(size=shape).astype(np.float32)


def ids(high: int, *shape: int) -> np.ndarray:
    return R.integers(0, high, size=shape).astype(np.int32)


def conv(x: Any, w: Any, **kw: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **kw)


def pool(x: Any, start: float, reduce: Any, padding: str) -> Any:
    return lax.reduce_window(x, start, reduce, (1, 2, 2, 1), (1, 2, 2, 1), padding)


def beyond(*shape: int) -> np.ndarray:
    """Indices of which some are out of bounds."""
    return R.integers(-3, 12, size=shape).astype(np.int32)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "add": (jnp.add, (f32(8, 4), f32(8, 4))),
    "add size 1": (lambda x, y: lax.add_p.bind(x, jnp.broadcast_to(y, (8, 4))), (f32(8, 4), f32(1, 4))),
    "mul": (jnp.multiply, (f32(8, 4), f32(8, 4))),
    "div": (jnp.divide, (f32(8, 4), f32(8, 4))),
    "neg": (jnp.negative, (f32(8, 4),)),
    "max": (jnp.maximum, (f32(8, 4), f32(8, 4))),
    "exp": (jnp.exp, (f32(8, 4),)),
    "tanh": (jnp.tanh, (f32(8, 4),)),
    "select": (lambda c, x, y: lax.select(c > 0, x, y), (f32(8, 4), f32(8, 4), f32(8, 4))),
    "convert": (lambda x: x.astype(jnp.int32).astype(jnp.float32), (f32(8, 4),)),
    "dot": (lambda x, y: x @ y, (f32(8, 4), f32(4, 16))),
    "dot batch": (lambda x, y: jnp.einsum("bhik,bhjk->bhij", x, y), (f32(4, 4, 8, 4), f32(4, 4, 8, 4))),
    "dot two": (lambda x, y: jnp.einsum("abij,aijc->abc", x, y), (f32(4, 4, 4, 8), f32(4, 4, 8, 4))),
    "conv": (conv, (f32(4, 5, 5, 8), f32(3, 3, 8, 4))),
    "conv groups": (lambda x, w: conv(x, w, feature_group_count=4), (f32(4, 5, 5, 8), f32(3, 3, 2, 8))),
    "conv depthwise": (lambda x, w: conv(x, w, feature_group_count=8), (f32(4, 5, 5, 8), f32(3, 3, 1, 8))),
    "conv filter gradient": (
        lambda x, g: jax.vjp(lambda w: conv(x, w), jnp.zeros((3, 3, 8, 4)))[1](g)[0],
        (f32(4, 5, 5, 8), f32(4, 5, 5, 4)),
    ),
    "conv grouped filter gradient": (
        lambda x, g: jax.vjp(lambda w: conv(x, w, feature_group_count=4), jnp.zeros((3, 3, 2, 8)))[1](g)[0],
        (f32(4, 5, 5, 8), f32(4, 5, 5, 8)),
    ),
    "sum": (lambda x: x.sum(1), (f32(8, 4, 8),)),
    "max over": (lambda x: x.max(0), (f32(8, 4),)),
    "min over": (lambda x: x.min((0, 1)), (f32(8, 4),)),
    "prod": (lambda x: x.prod(0), (f32(8, 4),)),
    "argmax": (lambda x: jnp.argmax(x, 0), (f32(8, 4),)),
    "cumsum": (lambda x: jnp.cumsum(x, 1), (f32(8, 4),)),
    "cummax": (lambda x: lax.cummax(x, 1), (f32(8, 4),)),
    "sort": (lambda x: jnp.sort(x, 0), (f32(8, 4),)),
    "top_k": (lambda x: lax.top_k(x, 2), (f32(8, 4),)),
    "reshape merge": (lambda x: x.reshape(32, 8), (f32(8, 4, 8),)),
    "reshape split": (lambda x: x.reshape(2, 4, 4), (f32(8, 4),)),
    "reshape odd": (lambda x: x.reshape(4, 9), (f32(6, 6),)),
    "transpose": (lambda x: x.transpose(2, 0, 1), (f32(8, 4, 8),)),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None], (8, 4, 4)), (f32(8, 4),)),
    "slice": (lambda x: x[1:7, :, ::2], (f32(8, 4, 8),)),
    "pad": (lambda x: jnp.pad(x, ((1, 1), (0, 0))), (f32(8, 4),)),
    "pad with one": (lambda x: jnp.pad(x, ((1, 1), (0, 0)), constant_values=1.0), (f32(8, 4),)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 1), (f32(8, 4), f32(8, 8))),
    "split": (lambda x: tuple(jnp.split(x, 2, 1)), (f32(8, 4),)),
    "rev": (lambda x: x[::-1], (f32(8, 4),)),
    "stack": (lambda x, y: jnp.stack([x, y], 1), (f32(8, 4), f32(8, 4))),
    "unstack": (lambda x: tuple(jnp.unstack(x, axis=1)), (f32(8, 2, 4),)),
    "tile": (lambda x: lax.tile(x, (4, 2)), (f32(2, 4),)),
    "iota": (lambda: lax.broadcasted_iota(jnp.int32, (8, 4), 0), ()),
    "gather rows": (lambda t, i: t[i], (f32(8, 4), ids(8, 4, 4))),
    "gather fill": (lambda t, i: t.at[i].get(mode="fill"), (f32(8, 4), beyond(8, 4))),
    "gather clip": (lambda t, i: t.at[i].get(mode="clip"), (f32(8, 4), beyond(8))),
    "gather integers": (lambda t, i: t.at[i].get(mode="fill"), (ids(50, 8, 4), beyond(8))),
    "take along": (lambda x, i: jnp.take_along_axis(x, i[:, None], 1), (f32(8, 4), ids(4, 8))),
    "scatter add rows": (lambda i, u: jnp.zeros((8, 4)).at[i].add(u), (beyond(8), f32(8, 4))),
    "scatter add clip": (lambda i, u: jnp.zeros((8, 4)).at[i].add(u, mode="clip"), (beyond(8), f32(8, 4))),
    "scatter add to": (lambda t, i, u: t.at[i].add(u), (f32(8, 4), ids(8, 4), f32(4, 4))),
    "scatter set": (lambda t, i, u: t.at[i].set(u), (f32(8, 4), np.array([1, 5, 3, 7]), f32(4, 4))),
    "scatter max": (lambda t, i, u: t.at[i].max(u), (f32(8, 4), ids(8, 4), f32(4, 4))),
    "take along gradient": (
        lambda x, i, g: jax.vjp(lambda x: jnp.take_along_axis(x, i[:, None], 1), x)[1](g)[0],
        (f32(8, 4), ids(4, 8), f32(8, 1)),
    ),
    "dynamic slice": (lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 4)), (f32(8, 4), np.array([3, 0]))),
    "dynamic update": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i[0], i[1])), (f32(8, 4), f32(2, 4), np.array([3, 0])),
    ),
    "max pool": (lambda x: pool(x, -np.inf, lax.max, "VALID"), (f32(4, 4, 4, 8),)),
    "avg pool": (lambda x: pool(x, 0.0, lax.add, "SAME"), (f32(4, 4, 4, 8),)),
    "max pool gradient": (jax.grad(lambda x: (pool(x, -np.inf, lax.max, "VALID") ** 2).sum()), (f32(4, 4, 4, 8),)),
    "threefry": (lambda k: jax.random.bits(jax.random.wrap_key_data(k), (8, 4)), (np.array([1, 2], np.uint32),)),
}  # fmt: skip


def whole_values(function: Callable[..., Any], args: tuple[np.ndarray, ...]) -> list[tuple[Op, list[np.ndarray]]]:
    """Every op of a function with the values of its operands, computed whole."""
    program = build(jax.make_jaxpr(function)(*args))
    values: dict[int, Any] = {}
    for op, x in zip(program.input_ops, [*args, *program.constants], strict=True):
        values[op.outs[0].id] = jnp.asarray(x)
    steps = []
    for op in program.graph.ops:
        assert isinstance(op, Op)
        operands = [jnp.asarray(x.literal, x.dtype) if isinstance(x, Lit) else values[x.id] for x in op.ins]
        results = op.primitive.bind(*operands, **op.params)
        results = results if op.primitive.multiple_results else [results]
        values.update((v.id, r) for v, r in zip(op.outs, results, strict=True))
        steps.append((op, operands))
    return steps


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_strategy_is_sound(name: str, mesh: tuple[int, ...]) -> None:
    function, args = CASES[name]
    tried = 0
    for op, operands in whole_values(function, args):
        if any(jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in operands) or any(
            jnp.issubdtype(v.dtype, jax.dtypes.extended) for v in op.outs
        ):
            continue  # keys stay whole
        count, wrong = check(op, [np.asarray(x) for x in operands], mesh)
        tried += count
        assert wrong == []
    assert tried > 1
