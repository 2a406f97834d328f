"""Strategies on pieces of different lengths: what lies in padding (NaN, the largest integer) reaches no result.

The cases are those of the other soundness tests, on meshes whose axes their dims do not divide by.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from rule_cases import CASES, NEWER, f32, is_key, positive, whole_values
from sbp_jax.pieces import is_even
from sbp_jax.rules import check as checking
from sbp_jax.rules import lookup
from sbp_jax.rules.check import check
from sbp_jax.rules.widen import signature_of, strategies

to_global: Any = sbp.to_global
NESTED = ("add", "dot_general", "gather", "scatter_add", "reduce_sum", "reduce_max", "iota", "conv")


def wrong(name: str, mesh: tuple[int, ...]) -> list[Any]:
    function, args = (CASES | NEWER)[name]
    found = []
    for op, operands in whole_values(function, args):
        if not any(map(is_key, (*operands, *op.outs))) and op.primitive is not None:
            found += check(op, [np.asarray(x) for x in operands], mesh, padded=True, most=16)[1]
    return found


@pytest.mark.parametrize("name", CASES | NEWER)
def test_padding_reaches_no_result(name: str) -> None:
    assert wrong(name, (3,)) == []


@pytest.mark.parametrize("name", [n for n in CASES | NEWER if n.startswith(NESTED)])
def test_padding_of_nested_pieces_reaches_no_result(name: str) -> None:
    assert wrong(name, (3, 2)) == []


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_max", "matmul"])
def test_the_check_finds_padding_that_leaks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "mask_reduced", lambda op, factors, local, xs: list(xs))
    functions = {
        "reduce_sum": (lambda x: x.sum(0), (f32(8, 4),)),
        "reduce_max": (lambda x: x.max(0), (f32(8, 4),)),
        "matmul": (jnp.matmul, (f32(4, 8), f32(8, 4))),
    }
    function, args = functions[name]
    found = [m for op, xs in whole_values(function, args) for m in check(op, list(xs), (3,), padded=True)[1]]
    assert found


@sbp.register_rule("b k -> b", reduced={"k": "sum"})
def exponentials(x: jax.Array) -> jax.Array:
    """Zeros in padding would count here: exp(0) is 1."""
    return jnp.exp(x).sum(1)


@pytest.mark.parametrize(
    ("function", "args"),
    [(exponentials, (f32(8, 10),)), (jnp.linalg.cholesky, (positive(10, 4),)), (jnp.linalg.eigh, (positive(10, 4),))],
    ids=["user", "cholesky", "eigh"],
)
def test_ops_that_padding_could_harm_are_split_evenly(function: Any, args: tuple[Any, ...]) -> None:
    tried = 0
    for op, _ in whole_values(function, args):
        rule = lookup(op.name)
        if rule is None or not rule.factors(op).even:
            continue
        factors, mesh = rule.factors(op), (4,)
        for way in strategies(factors, mesh, (False,) * len(factors.linear), True):
            tried += 1
            for x, code in zip((*op.ins, *op.outs), (*way.ins, *way.outs), strict=True):
                assert is_even(x.shape, signature_of(code), mesh)
    assert tried


def test_padded_updates_are_not_called_unique() -> None:
    """Padding repeats an index: what may rely on all being different could lose the other update."""

    def f(x: jax.Array, i: jax.Array, u: jax.Array) -> jax.Array:
        i, u = to_global(i * 2, "S(0)"), to_global(u * 2, "S(0)")
        return to_global(x.at[i].add(u, unique_indices=True, indices_are_sorted=True), "P")

    x, i, u = f32(40, 3), np.arange(10, dtype=np.int32), f32(10, 3)
    where = sbp.placement("cpu", ranks=list(range(4)))
    step = sbp.auto_parallel(f, placement=where, config=sbp.AutoParallelConfig(pad=True))
    np.testing.assert_allclose(step(x, i, u), jnp.asarray(x).at[2 * i].add(2 * u), rtol=1e-5)
    assert "all_gather" not in {b.collective for b in step.plan(x, i, u).boxings()}  # the updates are split
    assert "unique_indices = true" not in step.lower(x, i, u).as_text()
