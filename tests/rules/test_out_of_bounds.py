"""Positions out of bounds next to a slice that boxing cuts: XLA merges the two without the clamping in between."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sbp_jax as sbp

X = (np.arange(64, dtype=np.float32).reshape(16, 4) - 20) / 8
OTHER = np.array([12], np.int32)  # the other device's, for the first of two
FAR = np.array([99], np.int32)
_HARDWARE = sbp.cluster.CPU
EAGER_TO_SPLIT = sbp.Cluster("eager to split", _HARDWARE.device, (sbp.cluster.Level("fast", None, 1e12, 0.0),))


def cut(x: Any) -> Any:
    return sbp.to_global(x, "S(0)")


def updated(kind: str, mode: str | None = None) -> Callable[..., Any]:
    def f(x: jax.Array, i: jax.Array) -> jax.Array:
        return cut(getattr(cut(x).at[i], kind)(jnp.full((1, 4), 3.0), mode=mode))

    return f


def window(mode: Any) -> Callable[..., Any]:
    """Eight rows from a position on, as one lookup."""
    numbers = lax.GatherDimensionNumbers(offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(0,))
    return lambda x, i: cut(lax.gather(x, i, numbers, (8, 4), mode=mode))


def looped(x: jax.Array, i: jax.Array) -> jax.Array:
    """Loops of one iteration, which XLA takes apart."""
    return cut(lax.fori_loop(0, 1, lambda k, y: cut(y).at[i + k].add(1.0), x))


def scanned(x: jax.Array, i: jax.Array) -> jax.Array:
    return cut(lax.scan(lambda c, k: (c, lax.dynamic_slice(c, (k, 0), (8, 4))), x, i)[1][0])


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{f"scatter {kind}": (updated(kind), (X, OTHER)) for kind in ("add", "subtract", "set", "max", "min", "multiply")},
    "scatter add, dropped": (updated("add", "drop"), (X, FAR)),
    "scatter add, clipped": (updated("add", "clip"), (X, FAR)),
    "scatter add everywhere": (lambda x, i: cut(cut(x).at[0:16].add(i + 1.0)), (X, OTHER)),
    "scatter in a small loop": (
        lambda x, i: lax.scan(
            lambda c, r: lax.scan(lambda d, e: (d + e.sum(), e.at[0].set(d)), c, r), 0.0, x[:2, :, None]
        )[1],
        (X, OTHER),
    ),
    "apply": (lambda x, i: cut(cut(x).at[i].apply(jnp.sin)), (X, OTHER)),
    "gather, clipped": (window(lax.GatherScatterMode.CLIP), (X, FAR)),
    "gather, promised": (window(lax.GatherScatterMode.PROMISE_IN_BOUNDS), (X, FAR)),
    "gather, filled": (window(lax.GatherScatterMode.FILL_OR_DROP), (X, FAR)),
    "gather of a piece": (lambda x, i: jnp.take(cut(x), i, 0, mode="clip"), (X, FAR)),
    "gather of small positions": (window(lax.GatherScatterMode.CLIP), (X, np.array([99], np.int8))),
    "dynamic slice": (lambda x, i: cut(lax.dynamic_slice(x, (i[0], 0), (8, 4))), (X, FAR)),
    "dynamic slice of one element": (
        lambda x, i: lax.dynamic_slice(lax.dynamic_slice(x, (8, 0), (2, 4)), (i[0], 0), (1, 4)), (X, FAR),
    ),
    "lookup in a slice": (lambda x, i: lax.dynamic_slice(x, (i[0], 0), (2, 4))[i], (X, OTHER)),
    "update of a slice": (lambda x, i: lax.dynamic_slice(x, (4, 0), (2, 4)).at[i].add(1.0), (X, OTHER)),
    "dynamic update slice": (
        lambda x, i: cut(lax.dynamic_update_slice(cut(x), jnp.ones((2, 4)), (i[0], 0))), (X, FAR),
    ),
    "a lookup by vmap": (
        lambda x, i: jax.vmap(lambda k: lax.dynamic_slice(x, (k, 0), (8, 4)), out_axes=1)(i).sum(1), (X, FAR),
    ),
    "windows of a piece": (
        lambda x, i: cut(
            lax.reduce_window(lax.dynamic_slice(x, (i[0], 0), (8, 4)), 0.0, lax.add, (2, 1), (1, 1), "SAME")
        ),
        (X, FAR),
    ),
    "loop": (looped, (X, OTHER)),
    "scan": (scanned, (X, FAR)),
}  # fmt: skip


@pytest.mark.parametrize("pinned", [None, "S(0)"])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_each_op_alone(name: str, pinned: str | None) -> None:
    function, args = CASES[name]
    with jax.disable_jit():
        expected = np.asarray(function(*args))
    pinned = pinned if expected.shape[0] % 2 == 0 else None
    f = sbp.auto_parallel(
        function,
        placement=sbp.placement("cpu", [0, 1]),
        config=sbp.AutoParallelConfig(cluster=EAGER_TO_SPLIT),
        in_sbp=("B", "B"),
        out_sbp=pinned,
    )
    np.testing.assert_allclose(np.asarray(f(*args)), expected, 1e-6, 1e-6)
    f.plan(*args).verify()
