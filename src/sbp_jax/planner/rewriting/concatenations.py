"""Concatenations and the pieces cut out of them: what is put together to be cut again is left as it is.

Jia et al., "TASO", SOSP 2019, table 2 (concatenation and split are inverse; concatenation is associative).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from jax import lax

from ...trace import Atom, Op, Value
from .random_shapes import array, dtype_of, lengths
from .substitution import Change, Instance, Scope, Site, Substitution, register

# A value, and where along the dim in question a piece of it begins and ends.
_Piece = tuple[Value, int, int]


def _cut_dims(op: Op) -> list[int] | None:
    """The dims that a slice without strides cuts; None for other slices."""
    p, shape = op.params, op.ins[0].shape
    if any(s != 1 for s in p["strides"] or ()):
        return None
    return [d for d, n in enumerate(shape) if (p["start_indices"][d], p["limit_indices"][d]) != (0, n)]


def _piece(scope: Scope, x: Atom, dim: int) -> _Piece | None:
    """Of what a value is a piece along a dim."""
    op = scope.maker(x, "slice", "split")
    if op is None or not isinstance(source := op.ins[0], Value) or not isinstance(x, Value):
        return None
    if op.name == "split":
        ends = np.cumsum(op.params["sizes"])
        k = [v.id for v in op.outs].index(x.id)
        return (source, int(ends[k] - x.shape[dim]), int(ends[k])) if op.params["axis"] == dim else None
    if _cut_dims(op) != [dim]:
        return None
    return source, op.params["start_indices"][dim], op.params["limit_indices"][dim]


def _find_concatenations(scope: Scope) -> Iterator[Site]:
    return ((op,) for op in scope.named("concatenate"))


def _merged(scope: Scope, ops: Site) -> Change | None:
    """``((a, b), c) -> (a, b, c)``."""
    (op,) = ops
    if op.name != "concatenate":
        return None
    flat: list[Atom] = []
    for x in op.ins:
        inner = scope.maker(x, "concatenate")
        flat += [x] if inner is None or inner.params["dimension"] != op.params["dimension"] else inner.ins
    if len(flat) == len(op.ins) or not all(isinstance(x, Value) for x in flat):
        return None
    dim = op.params["dimension"]
    return Change(tuple(flat), op.outs, lambda *x: [lax.concatenate(x, dim)])  # pyright: ignore[reportArgumentType]


def _rebuilt(scope: Scope, ops: Site) -> Change | None:
    """``(x[:a], x[a:]) -> x``; of pieces that do not make up all of it, one piece."""
    (op,) = ops
    if op.name != "concatenate":
        return None
    dim = op.params["dimension"]
    runs: list[_Piece] = []
    for x in op.ins:
        if not isinstance(x, Value):
            return None
        source, start, stop = _piece(scope, x, dim) or (x, 0, x.shape[dim])
        if runs and runs[-1][0] is source and runs[-1][2] == start:
            runs[-1] = source, runs[-1][1], stop
        else:
            runs.append((source, start, stop))
    if len(runs) == len(op.ins):
        return None

    def make(*sources: Any) -> list[Any]:
        parts = [lax.slice_in_dim(x, a, b, axis=dim) for x, (_, a, b) in zip(sources, runs, strict=True)]
        return [parts[0] if len(parts) == 1 else lax.concatenate(parts, dim)]

    return Change(tuple(x for x, _, _ in runs), op.outs, make)


def _find_pieces(scope: Scope) -> Iterator[Site]:
    return ((op,) for op in scope.named("slice", "split"))


def _of_operand(scope: Scope, ops: Site) -> Change | None:
    """``(a, b)[:len(a)] -> a``; of a piece that lies within one operand, that operand's."""
    (op,) = ops
    whole = scope.maker(op.ins[0], "concatenate") if op.name in ("slice", "split") else None
    if whole is None:
        return None
    dim = whole.params["dimension"]
    parts = [_piece(scope, v, dim) for v in op.outs]
    ends = [0, *(int(n) for n in np.cumsum([x.shape[dim] for x in whole.ins]))]
    reads, cuts = [], []
    for part in parts:
        if part is None:
            return None
        _, start, stop = part
        k = next((k for k, (a, b) in enumerate(pairwise(ends)) if a <= start and stop <= b and start < stop), None)
        if k is None or not isinstance(whole.ins[k], Value):
            return None
        reads.append(whole.ins[k])
        cuts.append((start - ends[k], stop - ends[k]))

    def make(*x: Any) -> list[Any]:
        return [lax.slice_in_dim(y, a, b, axis=dim) for y, (a, b) in zip(x, cuts, strict=True)]

    return Change(tuple(reads), op.outs, make)


def _of_piece(scope: Scope, ops: Site) -> Change | None:
    """A slice of a slice as one."""
    (op,) = ops
    inner = scope.maker(op.ins[0], "slice") if op.name == "slice" else None
    if inner is None or _cut_dims(op) is None or _cut_dims(inner) is None or not inner.reads:
        return None
    first = inner.params["start_indices"]
    start = [a + b for a, b in zip(first, op.params["start_indices"], strict=True)]
    stop = [a + b for a, b in zip(first, op.params["limit_indices"], strict=True)]
    return Change(tuple(inner.reads), op.outs, lambda x: [lax.slice(x, start, stop)])


def _parts(random: np.random.Generator, n: int) -> tuple[int, list[Any]]:
    """Arrays that differ along one dim, which comes first."""
    rank = int(random.integers(1, 4))
    dim, shape, dtype = int(random.integers(rank)), lengths(random, rank), dtype_of(random, np.int8)
    return dim, [array([*shape[:dim], k, *shape[dim + 1 :]], dtype) for k in lengths(random, n)]


def _merged_instance(random: np.random.Generator) -> Instance:
    """Two concatenations in one another."""
    dim, parts = _parts(random, 4)
    at = int(random.integers(3))

    def f(*x: Any) -> Any:
        inner = lax.concatenate(x[:2], dim)
        rest = list(x[2:])
        return lax.concatenate([*rest[:at], inner, *rest[at:]], dim)

    return f, parts


def _rebuilt_instance(random: np.random.Generator) -> Instance:
    """Neighbouring pieces of one array side by side, alone or beside another."""
    dim, (x, y) = _parts(random, 2)
    shape = list(x.shape)
    shape[dim] = n = int(random.integers(3, 8))
    a, b, c = sorted(int(k) for k in random.choice(n + 1, size=3, replace=False))
    beside, is_split = bool(random.integers(2)), bool(random.integers(2))

    def f(x: Any, y: Any) -> Any:
        if is_split:
            first, second = lax.split(x, (b, n - b), dim) if 0 < b < n else (x, x)
            found = [first, second] if 0 < b < n else [lax.slice_in_dim(x, k, k + 1, axis=dim) for k in (0, 1)]
        else:
            found = [lax.slice_in_dim(x, a, b, axis=dim), lax.slice_in_dim(x, b, c, axis=dim)]
        return lax.concatenate([y, *found] if beside else found, dim)

    return f, [array(shape, x.dtype), y]


def _operand_instance(random: np.random.Generator) -> Instance:
    """A piece of a concatenation that lies in one of its operands, or all of them cut out again."""
    dim, parts = _parts(random, 3)
    k, is_split = int(random.integers(3)), bool(random.integers(2))
    ends = np.cumsum([0, *(x.shape[dim] for x in parts)])
    n = int(parts[k].shape[dim])
    a = int(random.integers(n))
    b = int(random.integers(a + 1, n + 1))

    def f(*x: Any) -> Any:
        both = lax.concatenate(x, dim)
        if is_split:
            return lax.split(both, tuple(y.shape[dim] for y in x), dim)
        return lax.slice_in_dim(both, int(ends[k]) + a, int(ends[k]) + b, axis=dim)

    return f, parts


def _piece_instance(random: np.random.Generator) -> Instance:
    """A slice of a slice, along any dims."""
    rank = int(random.integers(1, 4))
    shape = [int(x) for x in random.integers(4, 8, size=rank)]
    cuts = [int(x) for x in random.integers(1, 3, size=rank)]
    again = int(random.integers(rank))

    def f(x: Any) -> Any:
        first = lax.slice(x, cuts, x.shape)
        return lax.slice_in_dim(first, 1, first.shape[again], axis=again)

    return f, [array(shape, dtype_of(random, np.int8))]


merged = register(Substitution("merged concatenations", _find_concatenations, _merged, _merged_instance))
rebuilt = register(Substitution("pieces put together", _find_concatenations, _rebuilt, _rebuilt_instance))
of_operand = register(Substitution("piece of a concatenation", _find_pieces, _of_operand, _operand_instance))
of_piece = register(Substitution("piece of a piece", _find_pieces, _of_piece, _piece_instance))
