"""Eager ops: values as numpy's, signatures that cost the least, collectives counted in the compiled program."""

import gc
import importlib
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.lower import hlo
from sbp_jax.tensor.engine import boxing_step_for, step_for

LINE4 = sbp.placement("cpu", [0, 1, 2, 3])
SQUARE = sbp.placement("cpu", [[0, 1], [2, 3]])


def collectives(fn: Callable[..., Any], *tensors: sbp.GlobalTensor) -> dict[str, int]:
    """By kind: how many there are in the compiled op."""
    step = step_for(fn, [x.spec for x in tensors], tensors[0].placement)
    text = step.jitted.lower(*(x.storage for x in tensors)).compile().as_text()
    return {kind: int(n) for kind, (n, _) in hlo.count(text).items()}


def layer_norm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def variance(x):
    return jnp.var(x, axis=-1)


def top_k(x):
    return jax.lax.top_k(x, 2)


def cumsum(x):
    return jnp.cumsum(x, axis=-1)


def sort(x):
    return jnp.sort(x, axis=-1)


@pytest.mark.parametrize("fn", [softmax, variance, top_k, cumsum, sort], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(8, 6), (7, 6)], ids=str)
def test_split_on_another_dim_needs_no_collective(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    x = sbp.randn(*shape, placement=LINE4, sbp="S(0)", seed=0)
    assert collectives(fn, x) == {}
    for found, expected in zip(
        jax.tree.leaves(sbp.apply(fn, x), is_leaf=lambda y: isinstance(y, sbp.GlobalTensor)),
        jax.tree.leaves(fn(x.array)), strict=True,
    ):  # fmt: skip
        assert str(found.sbp) == "S(0)"
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_layer_norm_forward_and_backward() -> None:
    x = sbp.randn(8, 6, placement=LINE4, sbp="S(0)", seed=0)
    g, b = sbp.ones(6, placement=LINE4), sbp.zeros(6, placement=LINE4)
    assert collectives(layer_norm, x, g, b) == {}
    backward = jax.grad(lambda x, g, b: (layer_norm(x, g, b) ** 2).sum(), argnums=(0, 1, 2))
    assert sum(collectives(backward, x, g, b).values()) == 0
    found = sbp.apply(backward, x, g, b)
    assert [str(y.sbp) for y in found] == ["S(0)", "P", "P"]
    for y, e in zip(found, backward(x.array, g.array, b.array), strict=True):
        np.testing.assert_allclose(y.numpy(), e, rtol=1e-4, atol=1e-4)


def test_terms_stay_terms_without_collectives() -> None:
    p = sbp.randn(4, 8, placement=LINE4, sbp="P", seed=0)
    for fn in (lambda x: x + x, lambda x: x * 3.0, lambda x: x.T, lambda x: x.sum(0), lambda x: x.reshape(8, 4)):
        assert collectives(fn, p) == {}
        assert str(sbp.apply(fn, p).sbp) == "P"
        np.testing.assert_allclose(sbp.apply(fn, p).numpy(), fn(p.numpy()), rtol=1e-5)


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ("S(0)", "B", {"all-gather": 1}), ("P", "S(0)", {"reduce-scatter": 1}), ("S(0)", "S(1)", {"all-to-all": 1}),
        ("P", "B", {"all-reduce": 1}), ("P(max)", "B", {"all-reduce": 1}), ("P(min)", "S(1)", {"all-to-all": 1}),
        ("B", "S(0)", {}), ("B", "P", {}), ("S(0)", "P", {}), ("B", "P(max)", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(8, 4), (7, 6)], ids=str)
def test_boxing_is_one_collective(src: str, dst: str, expected: dict[str, int], shape: tuple[int, int]) -> None:
    x = sbp.randn(*shape, placement=LINE4, sbp=src, seed=1) - 3.0
    x = x.to_global(sbp=src)
    step = boxing_step_for(x.spec, sbp.Signature.of(dst))
    found = hlo.count(step.jitted.lower(x.storage).compile().as_text())
    assert {kind: int(n) for kind, (n, _) in found.items()} == expected
    assert sum(b for _, b in found.values()) == pytest.approx(step.plan.bytes)
    y = x.to_global(sbp=dst)
    assert str(y.sbp) == dst
    np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-5, atol=1e-5)


PAIRS = [", ".join(pair) for pair in itertools.product(("S(0)", "S(1)", "B", "P", "P(max)"), repeat=2)]


@pytest.mark.parametrize("src", PAIRS)
def test_every_pair_of_uneven_signatures(src: str) -> None:
    """7 x 5 on 2 x 2: every second piece is shorter, nested ones too."""
    x = sbp.randn(7, 5, placement=SQUARE, sbp=src, seed=2)
    for dst in PAIRS[::5]:
        y = x.to_global(sbp=dst)
        np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-5, atol=1e-5)
        assert [p.shape for p in y.to_local()] == [y.spec.piece_shape(k) for k in y.spec.positions()]


OPS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y * y + 1.0),
    "matmul": lambda x, y: x @ y.T,
    "contract": lambda x, y: x.T @ y,
    "where": lambda x, y: jnp.where(x > 0, x, y),
    "logsumexp": lambda x, y: jax.nn.logsumexp(x - y, axis=0),
    "variance": lambda x, y: (x * y).var(axis=0),
    "max": lambda x, y: (x + y).max(),
    "stack": lambda x, y: jnp.stack([x, y], 1).sum(0),
    "row": lambda x, y: x[2] + y[:, 1:3].mean(),
    "gather": lambda x, y: x[jnp.array([0, 4, 2, 6, 6])] * y[0],
    "scan": lambda x, y: jax.lax.scan(lambda c, v: (c + v, c * v), jnp.zeros(5), x)[1] + y,
}


@pytest.mark.parametrize("name", OPS)
def test_values_do_not_depend_on_signatures(name: str) -> None:
    """Uneven (7 x 5 over 4 and over 2 x 2), all negative in part, increasing by rank."""
    a = (
        -np.abs(np.random.default_rng(0).normal(size=(7, 5))).astype(np.float32)
        * np.arange(1, 8, dtype=np.float32)[:, None]
    )
    b = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    fn = OPS[name]
    expected = np.asarray(fn(jnp.asarray(a), jnp.asarray(b)))
    for where, sx, sy in (
        (LINE4, "S(0)", "S(0)"), (LINE4, "S(0)", "S(1)"), (LINE4, "P", "S(0)"), (LINE4, "S(1)", "B"),
        (SQUARE, "S(0), S(0)", "B, S(1)"), (SQUARE, "P, S(1)", "S(0), P"), (SQUARE, "P(max), B", "S(1), S(0)"),
    ):  # fmt: skip
        x, y = sbp.tensor(a, placement=where, sbp=sx), sbp.tensor(b, placement=where, sbp=sy)
        found = sbp.apply(fn, x, y)
        np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-5, err_msg=f"{sx} / {sy}")


def test_extremes_of_terms() -> None:
    parts = [np.array([[-5.0, 2.0], [3.0, -1.0]], np.float32) - k for k in range(4)]
    top = sbp.local_to_global(parts, placement=LINE4, sbp="P(max)")
    low = sbp.local_to_global(parts, placement=LINE4, sbp="P(min)")
    a, b = parts[0], parts[3]
    np.testing.assert_array_equal(top.numpy(), a)
    np.testing.assert_array_equal(low.numpy(), b)
    assert str((-top).sbp) == "P(min)" and str((-low).sbp) == "P(max)"
    for fn in (jax.nn.relu, jnp.exp, jnp.tanh):
        y = sbp.apply(fn, top)
        assert str(y.sbp) == "P(max)" and collectives(fn, top) == {}
        np.testing.assert_allclose(y.numpy(), fn(a), rtol=1e-6)
    for fn in (jnp.log1p, jnp.sqrt, jnp.log):
        y = sbp.apply(fn, top)
        assert "P" not in str(y.sbp)
        np.testing.assert_allclose(y.numpy(), fn(a), rtol=1e-6)
    double = top + top
    assert str(double.sbp) != "P(max)"
    np.testing.assert_array_equal(double.numpy(), 2 * a)
    np.testing.assert_array_equal((top * -1.0).numpy(), -a)
    np.testing.assert_array_equal((top + low).numpy(), a + b)


@pytest.mark.parametrize("signature", ["S(0)", "S(1)", "B", "P", "P(max)", "P(min)"])
def test_python_sees_the_logical_value(signature: str) -> None:
    x = sbp.tensor(np.array([[-4.0, -3.0, -7.0], [-2.0, -9.0, -1.0], [-8.0, -5.0, -6.0], [-3.5, -2.5, -1.5]]),
                   dtype="float32", placement=LINE4 if signature != "S(1)" else sbp.placement("cpu", [0, 1]),
                   sbp=signature)  # fmt: skip
    assert float(x.max()) == -1.0 and x.min().item() == -9.0 and float(x.sum()) == pytest.approx(-52.5)
    assert bool((x < 0).all()) and not bool((x > 0).any())
    assert int(x.argmax()) == 5 and x[1, 2].item() == -1.0
    assert len(x) == 4 and [float(row.sum()) for row in x] == pytest.approx([-14, -12, -19, -7.5])
    assert max(x.ravel()).item() == -1.0
    with pytest.raises(sbp.SbpError, match="ambiguous"):
        bool(x)


def test_plain_arrays_and_numbers_mix() -> None:
    x = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=0)
    a = np.arange(4, dtype=np.float32)
    for y, expected in (
        (x + a, x.numpy() + a), (a + x, a + x.numpy()), (jnp.asarray(a) * x, a * x.numpy()), (1 - x, 1 - x.numpy()),
        (2.0**x, 2.0 ** x.numpy()), (x**2, x.numpy() ** 2), (sbp.numpy.maximum(x, 0.5), np.maximum(x.numpy(), 0.5)),
    ):  # fmt: skip
        assert isinstance(y, sbp.GlobalTensor) and str(y.sbp) == "S(0)" and y.dtype == np.float32
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)


def test_two_products_in_a_row_move_only_a_vector() -> None:
    """Megatron's pair: S(1), then S(0), one P between."""
    x = sbp.randn(4, 8, placement=LINE4, seed=0)
    w1 = sbp.randn(8, 16, placement=LINE4, sbp="S(1)", seed=1)
    w2 = sbp.randn(16, 8, placement=LINE4, sbp="S(0)", seed=2)
    y = sbp.numpy.tanh(x @ w1) @ w2
    assert str(y.sbp) == "P"
    np.testing.assert_allclose(y.numpy(), np.tanh(x.numpy() @ w1.numpy()) @ w2.numpy(), rtol=1e-4, atol=1e-4)


def test_a_cached_op_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=0)
    first = (x * x).numpy()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(importlib.import_module("sbp_jax.tensor.call"), "step_for", refuse)
    np.testing.assert_array_equal((x * x).numpy(), first)


def test_methods_and_lambdas_are_compiled_once_and_let_go() -> None:
    class Scale:
        traced = 0

        def __call__(self, x):
            return x * 2

        def method(self, x):
            Scale.traced += 1
            return x * 3

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    x = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=0)
    scale = Scale()
    for _ in range(3):
        np.testing.assert_array_equal(sbp.apply(scale, x).numpy(), 2 * x.numpy())
    Scale.__hash__ = object.__hash__
    for _ in range(3):
        np.testing.assert_array_equal(sbp.apply(scale.method, x).numpy(), 3 * x.numpy())
    assert Scale.traced == 1
    passing = lambda t: t + 1  # noqa: E731
    sbp.apply(passing, x)
    ghost = weakref.ref(passing)
    del passing
    gc.collect()
    assert ghost() is None


def test_whole_stays_whole() -> None:
    x = sbp.randn(8, 4, placement=LINE4, seed=0)
    assert str((x + x).sbp) == "B" and str((x @ x.T).sbp) == "B" and str(x.sum(0).sbp) == "B"
