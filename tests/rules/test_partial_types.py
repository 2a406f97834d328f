"""Partial values follow linearity, type by type."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from sbp_jax.planner.graph.clusters import factor_maps
from sbp_jax.rules import lookup
from sbp_jax.trace import Op, build


def only_op(function: Any, *dtypes: str) -> Op:
    shapes = [jax.ShapeDtypeStruct((4,), jnp.dtype(d)) for d in dtypes]
    (op,) = [op for op in build(jax.make_jaxpr(function)(*shapes)).graph.ops if isinstance(op, Op)]
    return op


def passes(op: Op) -> set[str]:
    """``sum``, ``max>min`` ...; ``sum?`` where digits would be lost."""
    rule = lookup(op.name)
    assert rule is not None
    return {
        f"{i.takes}{'' if i.takes == i.gives else '>' + i.gives}{'?' if i.narrows else ''}"
        for i in rule.factors(op).linear
    }


@pytest.mark.parametrize(
    ("source", "target", "what"),
    [
        ("bfloat16", "float32", {"sum", "max", "min"}),
        ("float32", "bfloat16", {"sum?", "max", "min"}),
        ("bfloat16", "float16", {"sum?", "max", "min"}),
        ("float32", "float8_e4m3fn", {"sum?"}),
        ("float32", "complex64", {"sum"}),
        ("float32", "int32", set()),
        ("int32", "float32", {"max", "min"}),
        ("int8", "int32", {"max", "min"}),
        ("int32", "int8", {"sum"}),
        ("int32", "uint32", {"sum"}),
        ("uint8", "int32", {"max", "min"}),
        ("bool", "int32", {"max", "min"}),
        ("bool", "float32", {"max", "min"}),
    ],
)
def test_conversions(source: str, target: str, what: set[str]) -> None:
    assert passes(only_op(lambda x: lax.convert_element_type(x, jnp.dtype(target)), source)) == what


@pytest.mark.parametrize(
    ("function", "dtypes", "what"),
    [
        (lax.neg, ["float32"], {"sum", "max>min", "min>max"}),
        (lax.neg, ["int32"], {"sum"}),
        (lax.neg, ["uint32"], {"sum"}),
        (lax.neg, ["complex64"], {"sum"}),
        (lax.exp, ["float32"], {"max", "min"}),
        (lax.exp, ["complex64"], set()),
        (lax.log, ["float32"], set()),
        (lax.sqrt, ["float32"], set()),
        (lax.div, ["bfloat16", "bfloat16"], {"sum"}),
        (lax.div, ["int32", "int32"], set()),
        (lambda c, x, y: lax.select(c, x, y), ["bool"] * 3, {"max", "min"}),
        (lambda c, x, y: lax.select(c, x, y), ["bool", "complex64", "complex64"], {"sum"}),
        (lambda x, y: lax.dot(x, y, preferred_element_type=jnp.int32), ["int8", "int8"], set()),
        (lambda x: jnp.maximum(x, 0), ["float32"], {"max"}),
        (lambda x: x + 1, ["float32"], set()),
        (lax.mul, ["float32", "float32"], {"sum"}),
    ],
)
def test_other_ops(function: Any, dtypes: list[str], what: set[str]) -> None:
    assert passes(only_op(function, *dtypes)) == what


@pytest.mark.parametrize("leave", [False, True])
def test_narrowing_waits_for_the_users_leave(leave: bool) -> None:
    program = build(jax.make_jaxpr(lambda x: x.astype(jnp.bfloat16))(jnp.ones(4)))
    factors = factor_maps(program, leave)
    (linear,) = [f.linear for op, f in zip(program.nodes, factors, strict=True) if op.name == "convert_element_type"]
    assert ("sum" in {item.takes for item in linear}) == leave
