"""Is a rule true? Every strategy it gives, run piece by piece and put together again, against the whole.

Partial operands are made of uneven random terms, so that nothing matches by luck.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from .base import Local, OpLike, lookup, whole
from .widen import PARTIAL, B, Strategy, signature_of, strategies


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A strategy whose pieces do not make up the whole: which result, by how much."""

    op: str
    strategy: str
    difference: float


def describe(strategy: Strategy) -> str:
    """``(S(0)), (B) -> (S(0))``."""
    ins, outs = ([f"({signature_of(c)})" for c in side] for side in (strategy.ins, strategy.outs))
    return f"{', '.join(ins)} -> {', '.join(outs)}"


def pieces(x: np.ndarray, code: Sequence[int], mesh: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Every device's component of ``x``, stacked along leading mesh axes."""
    parts = np.empty(mesh, dtype=object)
    parts[...] = None

    def cut(piece: np.ndarray, axis: int, index: tuple[int, ...]) -> None:
        if axis == len(mesh):
            parts[index] = piece
            return
        n, c = mesh[axis], code[axis]
        if c >= 0:
            terms = np.split(piece, n, axis=c)
        elif c == B:
            terms = [piece] * n
        elif c == PARTIAL["sum"]:
            terms = _terms(piece, n, random)
        else:
            owner = random.integers(0, n, size=piece.shape)
            beaten = [_beaten(piece, c == PARTIAL["max"], random) for _ in range(n)]
            terms = [np.where(owner == k, piece, b) for k, b in enumerate(beaten)]
        for k, term in enumerate(terms):
            cut(term, axis + 1, (*index, k))

    cut(x, 0, ())
    return np.stack([parts[i] for i in np.ndindex(mesh)]).reshape(*mesh, *parts[(0,) * len(mesh)].shape)


def _terms(x: np.ndarray, n: int, random: np.random.Generator) -> list[np.ndarray]:
    if np.issubdtype(x.dtype, np.integer):
        terms = [random.integers(-5, 6, size=x.shape).astype(x.dtype) for _ in range(n - 1)]
    else:
        terms = [((k + 1) * random.normal(size=x.shape) - 1.0).astype(x.dtype) for k in range(n - 1)]
    with np.errstate(over="ignore"):  # integers wrap, and wrap back when they are added up
        return [*terms, x - sum(terms, np.zeros_like(x))]


def _beaten(x: np.ndarray, by_max: bool, random: np.random.Generator) -> np.ndarray:
    """Values that lose against ``x`` in a maximum (a minimum)."""
    if np.issubdtype(x.dtype, np.integer):
        away = random.integers(0, 10, size=x.shape).astype(x.dtype)
        room = np.iinfo(x.dtype)
        with np.errstate(over="ignore"):
            lower, higher = x - away, x + away
        return np.where(lower <= x, lower, room.min) if by_max else np.where(higher >= x, higher, room.max)
    away = np.abs(random.normal(size=x.shape)).astype(x.dtype)
    return x - away if by_max else x + away


def assemble(stacked: np.ndarray, code: Sequence[int]) -> np.ndarray:
    """The whole from every device's component."""
    for axis in reversed(range(len(code))):
        c, parts = code[axis], np.moveaxis(stacked, axis, 0)
        if c >= 0:
            stacked = np.concatenate(list(parts), axis=c + axis)
        elif c == B:
            stacked = parts[0]
        else:
            reduce = {PARTIAL["sum"]: np.add, PARTIAL["max"]: np.maximum, PARTIAL["min"]: np.minimum}[c]
            with np.errstate(over="ignore"):
                stacked = reduce.reduce(parts, axis=0, dtype=parts.dtype)
    return stacked


def check(
    op: OpLike, values: Sequence[np.ndarray], mesh_shape: tuple[int, ...], tolerance: float = 1e-4, seed: int = 0
) -> tuple[int, list[Mismatch]]:
    """Try every strategy of one op on whole operands ``values``: how many there were, and those that are wrong."""
    rule = lookup(op.name)
    factors = rule.factors(op) if rule is not None else whole(op)
    names = tuple(f"m{i}" for i in range(len(mesh_shape)))
    devices = np.array(jax.devices()[: math.prod(mesh_shape)]).reshape(mesh_shape)
    mesh, random = Mesh(devices, names), np.random.default_rng(seed)
    expected = _bind(op, [jnp.asarray(v) for v in values])
    ways = strategies(factors, mesh_shape, (True,) * len(factors.linear))
    wrong: list[Mismatch] = []
    for way in ways:
        stacked = [pieces(np.asarray(v), c, mesh_shape, random) for v, c in zip(values, way.ins, strict=True)]
        outs = _run(op, rule, way, stacked, mesh)
        for whole_result, result, code in zip(expected, outs, way.outs, strict=True):
            a, b = np.asarray(whole_result, np.float64), np.asarray(assemble(np.asarray(result), code), np.float64)
            same = a.shape == b.shape and np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
            if not same:
                off = float(np.nanmax(np.abs(a - b), initial=0.0)) if a.shape == b.shape else math.inf
                wrong.append(Mismatch(op.name, describe(way), off))
    return len(ways), wrong


def _bind(op: OpLike, values: Sequence[Any]) -> Sequence[Any]:
    y = op.primitive.bind(*values, **op.params)
    return y if op.primitive.multiple_results else [y]


def _run(op: OpLike, rule: Any, way: Strategy, stacked: Sequence[np.ndarray], mesh: Mesh) -> Sequence[Any]:
    names, sizes = tuple(map(str, mesh.axis_names)), tuple(mesh.devices.shape)
    n = len(sizes)

    def local_shape(shape: Sequence[int], code: Sequence[int]) -> tuple[int, ...]:
        left = list(shape)
        for size, c in zip(sizes, code, strict=True):
            if c >= 0:
                left[c] //= size
        return tuple(left)

    def body(*locals_: Any) -> list[Any]:
        xs = [x.reshape(x.shape[n:]) for x in locals_]
        if rule is not None and rule.local is not None:
            local = Local(
                names, sizes, way.ins, way.outs, tuple(x.shape for x in xs),
                tuple(local_shape(v.shape, c) for v, c in zip(op.outs, way.outs, strict=True)),
            )  # fmt: skip
            y = rule.local(op, local, *xs)
            results = list(y) if isinstance(y, list | tuple) else [y]
        else:
            results = list(_bind(op, xs))
        return [r.reshape((1,) * n + r.shape) for r in results]

    spec = PartitionSpec(*names)
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(spec,) * len(stacked), out_specs=spec, check_vma=False))(
        *stacked
    )
