"""What an op of shapes never seen costs before it is compiled, and how it is traced."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp

LINE4 = sbp.placement("cpu", [0, 1, 2, 3])


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


PLAIN_SOFTMAX = jax.jit(softmax)


def calls_of(fn: Callable[[], Any]) -> int:
    """How many Python and C functions a call calls: as good as seconds, and the same on a busy machine."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # what it frees calls functions too
    sys.setprofile(note)
    try:
        fn()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


# At most so many calls more than plain JAX: a quarter to a third less than when each op was traced by jax.make_jaxpr.
@pytest.mark.parametrize(("most", "ours", "plain"), [
    (3600, lambda x, w: x + x, lambda x, w: x + x),
    (3900, lambda x, w: x @ w, lambda x, w: x @ w),
    (3400, lambda x, w: x.view(8, -1, 2), lambda x, w: x.reshape(8, -1, 2)),
    (5500, lambda x, w: sbp.apply(softmax, x), lambda x, w: PLAIN_SOFTMAX(x)),
], ids=["add", "matmul", "view", "softmax"])  # fmt: skip
def test_cold_op_calls_few_functions(most: int, ours: Any, plain: Any) -> None:
    more = []
    for n in (62, 66, 70, 74):
        x = sbp.randn(8, n, placement=LINE4, sbp=sbp.split(0), seed=0)
        w = sbp.randn(n, n, placement=LINE4, sbp=sbp.broadcast, seed=1)
        base = calls_of(lambda x=x, w=w: plain(x.array, w.array))
        more.append(calls_of(lambda x=x, w=w: ours(x, w)) - base)
    assert min(more) <= most


@pytest.mark.parametrize("op", [
    lambda x, y: x // y, lambda x, y: x % y, lambda x, y: x**y, lambda x, y: 2**x, lambda x, y: x**3,
    lambda x, y: x << 2, lambda x, y: x >> y, lambda x, y: ~x ^ y, lambda x, y: x / y, lambda x, y: abs(x) <= y,
], ids=["//", "%", "**", "2**", "**3", "<<", ">>", "^", "/", "<="])  # fmt: skip
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_operators_of_integers(op: Any, dtype: str) -> None:
    """JAX's own functions for them are many jitted ones, traced in one piece."""
    x, y = jnp.arange(8, dtype=dtype), jnp.array([1, 2, 3, 1, 2, 3, 1, 2], dtype)
    there = [sbp.tensor(a, placement=LINE4, sbp=sbp.split(0)) for a in (x, y)]
    result, expected = op(*there), op(x, y)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result.numpy(), expected)


def test_constants_of_the_function() -> None:
    x, c = jnp.arange(8.0), jnp.arange(8.0) ** 2
    t = sbp.tensor(x, placement=LINE4, sbp=sbp.split(0))
    found = sbp.apply(lambda a: {"c": c, "sum": [a + c, None, 2.0]}, t)
    np.testing.assert_array_equal(found["c"].numpy(), c)
    np.testing.assert_array_equal(found["sum"][0].numpy(), x + c)
    assert found["sum"][1] is None
    assert found["sum"][2].item() == 2.0


def test_results_that_are_no_arrays() -> None:
    t = sbp.tensor(jnp.arange(8.0), placement=LINE4, sbp=sbp.split(0))
    with pytest.raises(sbp.SignatureError, match=r"shout\(.*returned a value of type <class 'str'> at result\['b'\]"):

        def shout(a: Any) -> Any:
            return {"a": a, "b": "text"}

        sbp.apply(shout, t)
