"""``jax_debug_nans``: a short ``FloatingPointError`` that names the op, wherever a planned function or a tensor stands.

Run op by op, as JAX does to find the op, ``shard_map`` calls itself for a nan without end: a ``RecursionError`` of
1,660 lines (JAX 0.10 to 0.12). So what is run again is the user's own function, or nothing.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import sbp_jax as sbp

P = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
W, X = jnp.linspace(-1, 1, 128).reshape(16, 8), jnp.linspace(0, 1, 128).reshape(8, 16)
PINS = ("S(0), B", "S(0), S(1)")


def bad(w: Any, x: Any) -> Any:
    return jnp.log(x @ w - 1e9)


def bad_backward(w: Any, x: Any) -> Any:
    """Its gradient is infinite times zero."""
    return jnp.sqrt((x @ w) * 0.0).sum()


def planned(fn: Callable[..., Any], **options: Any) -> Any:
    return sbp.auto_parallel(fn, placement=P, in_sbp=PINS, config=sbp.AutoParallelConfig(**options))


def tensor(value: float, signature: str = "S(0), B", length: int = 8) -> Any:
    with jax.debug_nans(False):
        return sbp.tensor(np.full((length, 16), value, np.float32), placement=P, sbp=signature)


def partial_nan() -> Any:
    with jax.debug_nans(False):
        return sbp.numpy.sum(tensor(np.nan, "S(0), S(1)"), axis=1)


def scanned(w: Any, x: Any) -> Any:
    return jax.lax.scan(lambda c, r: (c - jnp.log(jnp.minimum(1.0, 5.0 - c.sum())), c), jnp.ones(8), x)[0] + w.sum()


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return 2 * x


doubled.defvjp(lambda x: (2 * x, x), lambda r, c: (c * jnp.log(r - 5.0),))


def trained() -> None:
    model = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda m: jnp.log(m(x) - 100.0).sum())(model)
        optimizer.update(model, grads)
        return loss

    sbp.flax.jit(step, placement=P)(model, optimizer, X)


CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "planned": ("log", lambda: planned(bad)(W, X)),
    "gspmd": ("log", lambda: planned(bad, lowering="gspmd")(W, X)),
    "padded": ("log", lambda: sbp.auto_parallel(bad, placement=P, config=sbp.AutoParallelConfig(pad=True))(W, X[:7])),
    "scan": ("scan", lambda: planned(scanned)(W, X)),
    "while": ("while", lambda: planned(lambda w, x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.log(
        c[1] - 2.0)), (0, x))[1] @ w)(W, X)),
    "cond": ("cond", lambda: planned(lambda w, x: jax.lax.cond(x.sum() > 0, bad, lambda w, x: x @ w, w, x))(W, X)),
    "custom vjp": ("log", lambda: planned(lambda w, x: jax.grad(lambda w: doubled(x @ w).sum())(w))(W, X)),
    "grad inside": ("mul", lambda: planned(jax.grad(bad_backward))(W, X)),
    "remat inside": ("mul", lambda: planned(jax.grad(jax.checkpoint(bad_backward)))(W, X)),
    "remat auto": ("mul", lambda: planned(jax.grad(bad_backward), remat="auto")(W, X)),
    "jit around": ("log", lambda: jax.jit(planned(bad))(W, X)),
    "grad around": ("log", lambda: jax.grad(lambda w: planned(bad)(w, X).sum())(W)),
    "grad around, backward": ("mul", lambda: jax.grad(planned(bad_backward))(W, X)),
    "grad of jit around": ("log", lambda: jax.grad(lambda w: jax.jit(planned(bad))(w, X).sum())(W)),
    "vmap around": ("log", lambda: jax.vmap(planned(bad), in_axes=(None, 0))(W, jnp.stack([X, X]))),
    "a pin": ("log", lambda: planned(lambda w, x: sbp.to_global(bad(w, x), sbp="S(0), S(1)").sum())(W, X)),
    "an effect": ("log", lambda: planned(lambda w, x: (jax.debug.callback(lambda v: None, x.sum()), bad(w, x)))(W, X)),
    "a tensor": ("log", lambda: planned(bad)(W, tensor(1.0))),
    "tensor op": ("log", lambda: sbp.numpy.log(tensor(1.0) - 2.0)),
    "uneven tensor op": ("log", lambda: sbp.numpy.log(tensor(1.0, length=9) - 2.0)),
    "tensor apply": ("log", lambda: sbp.apply(lambda x: jnp.log(x - 2.0).sum(), tensor(1.0))),
    "tensor operator": ("dot_general", lambda: tensor(np.inf) @ tensor(0.0, "B, S(0)", 16)),
    "tensor grad": ("log", lambda: jax.grad(lambda x: sbp.numpy.log(x - 2.0).sum())(tensor(1.0))),
    "tensor boxing": ("to_global", lambda: tensor(np.nan).to_global(sbp="B, S(1)").numpy()),
    "tensor reduced": ("to_global", lambda: partial_nan().to_global(sbp="B, B").numpy()),
    "flax": ("log", lambda: sbp.flax.jit(lambda m, x: jnp.log(m(x) - 1e3), placement=P)(
        nnx.Linear(16, 8, rngs=nnx.Rngs(0)), X)),
    "flax training": ("log", trained),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_op_is_named(case: str) -> None:
    op, run = CASES[case]
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as caught:
        run()
    assert str(caught.value) == f"invalid value (nan) encountered in {op}"
    assert len(caught.traceback) < 60


def test_infinities_are_named() -> None:
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"^invalid value \(inf\) encountered in div"):
        planned(lambda w, x: 1 / ((x @ w) * 0))(W, X)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"^invalid value \(inf\) encountered in log"):
        sbp.numpy.log(tensor(0.0, length=9))


def test_without_nans_nothing_changes() -> None:
    def product(w: Any, x: Any) -> Any:
        return x @ w

    with jax.debug_nans(True):
        found = jax.vmap(planned(product), in_axes=(None, 0))(W, jnp.stack([X, X]))
        grads = jax.grad(lambda w: planned(product)(w, X).sum())(W)
        with jax.disable_jit():
            added = (tensor(1.0) + 1).numpy()
    np.testing.assert_allclose(found[1], X @ W, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads, jnp.broadcast_to(X.sum(0)[:, None], W.shape), rtol=1e-5)
    np.testing.assert_array_equal(added, 2.0)


def test_a_profile_measures_whatever_the_values_are() -> None:
    with jax.debug_nans(True):
        assert planned(bad).plan(W, X).profile(W, X, repetitions=1).step_seconds > 0
