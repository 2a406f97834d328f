"""Primitives of other libraries that are functions of arrays underneath, as Equinox makes them."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import sbp_jax as sbp
from sbp_jax.trace import build

# As Lineax's solvers do: an array must look as one did when the function was written down.
SOURCE = """
import jax, jax.numpy as jnp

def solve(x, *, structure):
    if jax.eval_shape(lambda: x) != structure:
        raise ValueError("pytree does not match out_structure")
    return jnp.sort(x * 2, axis=1)
"""
X = np.random.default_rng(0).normal(size=(64, 4096)).astype(np.float32)


def primitive(name: str, path: str) -> Primitive:
    """A primitive whose function lies in a file of this path."""
    scope: dict[str, object] = {}
    exec(compile(SOURCE, path, "exec"), scope)
    made = Primitive(name)
    made.def_abstract_eval(lambda x, structure: x)
    mlir.register_lowering(made, mlir.lower_fun(scope["solve"], multiple_results=False))  # pyright: ignore
    return made


def call(p: Primitive, x: jax.Array) -> jax.Array:
    return p.bind(x, structure=jax.eval_shape(lambda: x)).sum(1)


@pytest.mark.parametrize("lowering", ["manual", "gspmd"])
def test_a_librarys_function_is_written_out_and_split(lowering: Any) -> None:
    p = primitive("solve", "/lib/site-packages/equinox/solve.py")
    where = sbp.placement("cpu", np.arange(4))
    f = sbp.auto_parallel(lambda x: call(p, x), placement=where, config=sbp.AutoParallelConfig(lowering=lowering))
    np.testing.assert_allclose(f(X), np.sum(X * 2, 1), rtol=1e-4, atol=1e-3)
    text = f.lower(X).compile().as_text()
    assert f.plan(X).unruled == [] and "{(f32[16,4096]{1,0})->f32[16]{0}}" in text


def test_a_users_own_primitive_stays_whole_and_is_named() -> None:
    p = primitive("solve of mine", "/home/me/model.py")
    plan = sbp.plan(lambda x: call(p, x), X, placement=sbp.placement("cpu", np.arange(4)))
    assert [name for name, _ in plan.unruled] == ["solve of mine"]


def test_a_rule_comes_first() -> None:
    p = primitive("solve with a rule", "/lib/site-packages/equinox/solve.py")
    sbp.register_rule(p, "a b -> a b")
    closed = jax.make_jaxpr(lambda x: call(p, x))(X)
    assert p.name in [op.name for op in build(closed).nodes]
