"""Is a rule true? Every strategy it gives, run piece by piece and put together again, against the whole.

Partial operands are made of uneven random terms, so that nothing matches by luck.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..pieces import is_even, piece_shape, stored_shape
from ..signature import Signature
from .base import Factors, Local, OpLike, is_a, lookup, whole
from .padding import mask_reduced
from .widen import PARTIAL, B, Strategy, code_of, signature_of, strategies


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
            terms = np.array_split(piece, n, axis=c)  # balanced, as ``pieces.py`` has them
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
    longest = np.max([part.shape for part in parts.flat], axis=0)
    for index, part in np.ndenumerate(parts):
        parts[index] = _pad(part, longest)
    return np.stack([parts[i] for i in np.ndindex(mesh)]).reshape(*mesh, *parts[(0,) * len(mesh)].shape)


def _pad(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """The piece as it is stored, at the end what no result may depend on."""
    if x.shape == tuple(shape):
        return x
    filler = np.full(tuple(map(int, shape)), np.nan if is_a(x.dtype, np.inexact) else _largest(x.dtype), x.dtype)
    filler[tuple(slice(0, n) for n in x.shape)] = x
    return filler


def _largest(dtype: Any) -> Any:
    return True if dtype == np.bool_ else jnp.iinfo(dtype).max


def _terms(x: np.ndarray, n: int, random: np.random.Generator) -> list[np.ndarray]:
    if is_a(x.dtype, np.integer):
        terms = [random.integers(-5, 6, size=x.shape).astype(x.dtype) for _ in range(n - 1)]
    else:
        terms = [((k + 1) * random.normal(size=x.shape) - 1.0).astype(x.dtype) for k in range(n - 1)]
        if is_a(x.dtype, np.complexfloating):
            terms = [t + 1j * random.normal(size=x.shape).astype(x.dtype) for t in terms]
    with np.errstate(over="ignore", invalid="ignore"):  # integers wrap, and wrap back when they are added up
        return [*terms, (x - sum(terms, np.zeros_like(x))).astype(x.dtype)]


def _beaten(x: np.ndarray, by_max: bool, random: np.random.Generator) -> np.ndarray:
    """Values that lose against ``x`` in a maximum (a minimum): mostly by a little, sometimes the type's very last."""
    if x.dtype == np.bool_:
        return x & random.integers(0, 2, size=x.shape).astype(bool) if by_max else x | True
    if is_a(x.dtype, np.integer):
        room = jnp.iinfo(x.dtype)
        last = np.asarray(room.min if by_max else room.max, x.dtype)
        away = random.integers(0, 10, size=x.shape).astype(x.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            lower, higher = x - away, x + away
        close = np.where(lower <= x, lower, last) if by_max else np.where(higher >= x, higher, last)
    else:
        last = np.asarray(-np.inf if by_max else np.inf, x.dtype)
        away = np.abs(3 * random.normal(size=x.shape)).astype(x.dtype)
        close = x - away if by_max else x + away
    return np.where(random.random(x.shape) < 0.1, last, close).astype(x.dtype)


def assemble(stacked: np.ndarray, code: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """The whole, of ``shape``, from every device's component."""
    mesh, signature = stacked.shape[: len(code)], signature_of(tuple(code))
    if not is_even(shape, signature, mesh):
        return _assemble_padded(stacked, signature, shape)
    for axis in reversed(range(len(code))):
        c, parts = code[axis], np.moveaxis(stacked, axis, 0)
        if c >= 0:
            stacked = np.concatenate(list(parts), axis=c + axis)
        elif c == B:
            stacked = parts[0]
        else:
            reduce = {PARTIAL["sum"]: np.add, PARTIAL["max"]: np.maximum, PARTIAL["min"]: np.minimum}[c]
            with np.errstate(over="ignore", invalid="ignore"):
                stacked = reduce.reduce(parts, axis=0, dtype=parts.dtype)
    return stacked


def _assemble_padded(stacked: np.ndarray, signature: Signature, shape: Sequence[int]) -> np.ndarray:
    """The same without the padding: device by device."""
    code, mesh = code_of(signature), stacked.shape[: len(signature)]

    def gather(index: tuple[int, ...]) -> np.ndarray:
        axis = len(index)
        if axis == len(mesh):
            return stacked[index][tuple(slice(0, n) for n in piece_shape(shape, signature, mesh, index))]
        parts = [gather((*index, k)) for k in range(mesh[axis])]
        if code[axis] >= 0:
            return np.concatenate(parts, axis=code[axis])
        return assemble(np.stack(parts), code[axis : axis + 1], parts[0].shape)

    return gather(())


def check(
    op: OpLike,
    values: Sequence[np.ndarray],
    mesh_shape: tuple[int, ...],
    tolerance: float = 1e-4,
    seed: int = 0,
    most: int | None = None,
    padded: bool = False,
) -> tuple[int, list[Mismatch]]:
    """Try every strategy of one op on whole operands ``values``: how many there were, and those that are wrong.

    ``most`` limits how many are tried, drawn at random. Pieces are computed one device after the other, without a
    mesh: no compilation beyond each primitive's own. ``padded``: try pieces of different lengths as well, whose padding
    is full of what must not be read.
    """
    rule = lookup(op.name)
    factors = rule.factors(op) if rule is not None else whole(op)
    random = np.random.default_rng(seed)
    expected = [np.asarray(x) for x in _bind(op, [jnp.asarray(v) for v in values])]
    ways = strategies(factors, mesh_shape, tuple(not item.narrows for item in factors.linear), padded)
    if most is not None and len(ways) > most:
        ways = [ways[k] for k in random.choice(len(ways), most, replace=False)]
    tolerance = max(tolerance, *(_rounding(x.dtype) for x in (*op.ins, *op.outs)), 0.0)
    wrong: list[Mismatch] = []
    for way in ways:
        stacked = [pieces(np.asarray(v), c, mesh_shape, random) for v, c in zip(values, way.ins, strict=True)]
        outs = _run(op, rule, factors, way, stacked, mesh_shape)
        for truth, result, code in zip(expected, outs, way.outs, strict=True):
            off = distance(truth, assemble(result, code, truth.shape), tolerance)
            if off > 0:
                wrong.append(Mismatch(op.name, describe(way), off))
    return len(ways), wrong


def _rounding(dtype: Any) -> float:
    """What a few roundings of terms larger than their sum can do."""
    return 32 * float(jnp.finfo(dtype).eps) if is_a(dtype, np.inexact) else 0.0


def distance(truth: np.ndarray, found: np.ndarray, tolerance: float) -> float:
    """0 where two results agree: exactly for integers, within ``tolerance`` of the largest number for the others."""
    if truth.shape != found.shape or truth.dtype != found.dtype:
        return math.inf
    if not is_a(truth.dtype, np.inexact):
        return float(np.sum(truth != found))
    wide = np.complex128 if is_a(truth.dtype, np.complexfloating) else np.float64
    a, b = truth.astype(wide), found.astype(wide)
    scale = float(np.max(np.abs(a), initial=1.0, where=np.isfinite(a)))  # a sum of terms has the largest one's error
    if np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):
        off = np.abs(a - b)
    return float(np.max(off, initial=tolerance, where=np.isfinite(off)))


@dataclass(slots=True)
class _At(Local):
    """A place of the mesh that is known: pieces are computed one after the other."""

    position: tuple[int, ...] = ()

    def index(self, axis: int) -> Any:
        """The position itself."""
        return jnp.asarray(self.position[axis], jnp.int32)


def _bind(op: OpLike, values: Sequence[Any]) -> Sequence[Any]:
    y = op.primitive.bind(*values, **op.params)
    return y if op.primitive.multiple_results else [y]


def _run(
    op: OpLike, rule: Any, factors: Factors, way: Strategy, stacked: Sequence[np.ndarray], sizes: tuple[int, ...]
) -> Sequence[np.ndarray]:
    """Every result's components, stacked along leading mesh axes."""
    names = tuple(f"m{i}" for i in range(len(sizes)))

    found: list[Sequence[np.ndarray]] = []
    for place in np.ndindex(sizes):
        xs = [jnp.asarray(x[place]) for x in stacked]
        shapes = tuple(stored_shape(v.shape, signature_of(c), sizes) for v, c in zip(op.outs, way.outs, strict=True))
        local = _At(names, sizes, way.ins, way.outs, tuple(x.shape for x in xs), shapes, position=place)
        xs = mask_reduced(op, factors, local, xs)
        if rule is not None and rule.local is not None:
            y = rule.local(op, local, *xs)
            results = list(y) if isinstance(y, list | tuple) else [y]
        else:
            results = list(_bind(op, xs))
        found.append([np.asarray(r) for r in results])
    return [np.stack(r).reshape(*sizes, *r[0].shape) for r in zip(*found, strict=True)]
