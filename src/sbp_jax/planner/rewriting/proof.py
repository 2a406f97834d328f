"""Whether a substitution computes the same: tested on random small programs, before it is admitted.

TASO tests its generated substitutions on random inputs (SOSP 2019, section 2.1) and then proves them from axioms
(section 3). Here a substitution is a function of shapes and parameters, and its instances are random programs. Both
sides are computed by numpy, twice: with floats in 64 bits whatever the program's types, so that a fault cannot hide in
rounding; and with every result rounded to the program's types, so that none is rounded that was not before. Integers
have their own types, in which they overflow, and are compared exactly.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import scipy.special

from ...errors import PlanError
from ...trace import Op, Program, Value, build
from .apply import NoMatch, apply, places
from .substitution import Substitution, lookup

# As many instances for a proof, and so many for one that is made while planning.
INSTANCES, QUICK_INSTANCES = 40, 12
_TOLERANCE = 1e-9
# Where values are rounded to the program's types: roundings of the result's type, on top of those of the program as it
# was.
_ROUNDINGS = 16


class Disproved(PlanError):
    """A substitution does not compute the same."""


def prove(substitution: Substitution, instances: int = INSTANCES, seed: int = 0) -> int:
    """Apply a substitution to random programs, and compare what both compute.

    Returns how often it was applied. Raises ``Disproved`` with the first program for which results differ by more than
    1e-9 of the largest one in float64, are further from it than before where each value is rounded to its type, differ
    in shape or in type, or where it fits in no program.
    """
    random = np.random.default_rng(seed)
    applied = 0
    for k in range(instances):
        f, shapes = substitution.instance(random)
        program = build(jax.make_jaxpr(f)(*shapes))
        arrays = [_random(random, x) for x in shapes]
        exact, rounded = evaluate(program, arrays), evaluate(program, arrays, is_rounded=True)
        for _, site in list(places(program, substitution)):
            try:
                changed, _ = apply(program, substitution, [tuple(op.index for op in site)])
            except NoMatch as error:
                raise Disproved(
                    f"substitution {substitution.name!r} cannot be applied where it fits: {error}"
                ) from None
            applied += 1
            found = zip(evaluate(changed, arrays), evaluate(changed, arrays, is_rounded=True), strict=True)
            before = zip(program.output_ops, exact, rounded, strict=True)
            for new, (x, x_rounded), (old, y, y_rounded) in zip(changed.output_ops, found, before, strict=True):
                dtype = old.ins[0].dtype
                same = (new.ins[0].shape, new.ins[0].dtype) == (old.ins[0].shape, dtype) and x.shape == y.shape
                if not same or not _is_close(x, y, y_rounded, x_rounded, dtype):
                    text = "; ".join(map(str, program.graph.ops))
                    raise Disproved(f"substitution {substitution.name!r} is wrong (instance {k}, seed {seed}): {text}")
    if not applied:
        raise Disproved(f"substitution {substitution.name!r} fitted in none of {instances} random programs")
    return applied


def _is_close(x: np.ndarray, y: np.ndarray, y_rounded: np.ndarray, x_rounded: np.ndarray, dtype: Any) -> bool:
    """Whether results are equal in 64 bits, and rounded ones no further from them than roundings of the type."""
    if not jax.numpy.issubdtype(dtype, np.inexact):
        return np.array_equal(x, y) and np.array_equal(x_rounded, y_rounded)
    size = max(float(np.abs(y).max(initial=0.0)), 1.0)
    allowed = _ROUNDINGS * float(jax.numpy.finfo(dtype).eps) * size + float(np.abs(y_rounded - y).max(initial=0.0))
    return bool((np.abs(x - y) <= _TOLERANCE * size).all() and (np.abs(x_rounded - y) <= allowed).all())


@functools.cache
def admitted(name: str) -> Substitution:
    """The substitution of a name, proven once in a process. Raises ``Disproved``."""
    substitution = lookup(name)
    prove(substitution, QUICK_INSTANCES)
    return substitution


def _random(random: np.random.Generator, shape: Any) -> np.ndarray:
    if shape.dtype.kind == "i":
        info = np.iinfo(shape.dtype)
        return random.integers(info.min, info.max, size=shape.shape, dtype=shape.dtype, endpoint=True)
    return random.normal(size=shape.shape).astype(shape.dtype).astype(np.float64)


def evaluate(program: Program, arrays: Sequence[np.ndarray], is_rounded: bool = False) -> list[np.ndarray]:
    """A program without control flow on numpy arrays: floats in 64 bits, with ``is_rounded`` every one rounded to the
    program's type; others in their types. Raises ``NoMatch`` for control flow, ``KeyError`` for an op that is not known
    here."""

    def as_typed(x: Any, dtype: Any) -> np.ndarray:
        if not jax.numpy.issubdtype(dtype, np.floating):
            return np.asarray(x).astype(dtype)
        return np.asarray(x).astype(dtype if is_rounded else np.float64).astype(np.float64)

    scope = {op.outs[0].id: as_typed(x, op.outs[0].dtype) for op, x in zip(program.input_ops, arrays, strict=True)}

    def read(x: Any) -> np.ndarray:
        return scope[x.id] if isinstance(x, Value) else as_typed(x.literal, x.dtype)

    for op in program.graph.ops:
        if not isinstance(op, Op):
            raise NoMatch(f"{op.kind} cannot be computed by numpy: a substitution is proven on programs without it")
        results = _OPS[op.name](*map(read, op.ins), **{"params": op.params} if op.name in _WITH_PARAMS else {})
        results = results if op.primitive.multiple_results else [results]
        scope.update((v.id, as_typed(y, v.dtype)) for v, y in zip(op.outs, results, strict=True))
    return [read(op.ins[0]) for op in program.output_ops]


def _dot(x: np.ndarray, y: np.ndarray, params: Mapping[str, Any]) -> np.ndarray:
    (l_sum, r_sum), (l_batch, r_batch) = params["dimension_numbers"]
    if x.dtype.kind == "i":  # integers are multiplied in the result's type
        x, y = (v.astype(params["preferred_element_type"] or x.dtype) for v in (x, y))
    left, right = list(range(x.ndim)), list(range(x.ndim, x.ndim + y.ndim))
    for i, j in (*zip(l_sum, r_sum, strict=True), *zip(l_batch, r_batch, strict=True)):
        right[j] = left[i]
    out = [left[i] for i in l_batch] + [d for i, d in enumerate(left) if i not in (*l_sum, *l_batch)]
    return np.einsum(x, left, y, right, out + [d for i, d in enumerate(right) if i not in (*r_sum, *r_batch)])


def _conv(x: np.ndarray, k: np.ndarray, params: Mapping[str, Any]) -> np.ndarray:
    """A convolution without groups, as a sum over the window's positions."""
    numbers = params["dimension_numbers"]
    x, k = x.transpose(numbers.lhs_spec), k.transpose(numbers.rhs_spec)
    padding, strides, dilation = params["padding"], params["window_strides"], params["rhs_dilation"]
    spread = np.zeros(
        (*x.shape[:2], *((n - 1) * d + 1 for n, d in zip(x.shape[2:], params["lhs_dilation"], strict=True)))
    )
    spread[(..., *(slice(None, None, d) for d in params["lhs_dilation"]))] = x
    x = np.pad(spread, [(0, 0), (0, 0), *padding])
    reach = [(n - 1) * d + 1 for n, d in zip(k.shape[2:], dilation, strict=True)]
    shape = [max(0, (n - r) // s + 1) for n, r, s in zip(x.shape[2:], reach, strides, strict=True)]
    y = np.zeros((x.shape[0], k.shape[0], *shape))
    for at in itertools.product(*map(range, k.shape[2:])):
        place = [slice(i * d, i * d + (n - 1) * s + 1 if n else 0, s)
                 for i, d, n, s in zip(at, dilation, shape, strides, strict=True)]  # fmt: skip
        y += np.einsum("nc...,oc->no...", x[(..., *place)], k[(slice(None), slice(None), *at)])
    return y.transpose(np.argsort(numbers.out_spec))


def _broadcast(x: np.ndarray, params: Mapping[str, Any]) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for d, n in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[d] = n
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _slice(x: np.ndarray, params: Mapping[str, Any]) -> np.ndarray:
    strides = params["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.choose(which.astype(int), cases)


_SHAPES: dict[str, Callable[..., Any]] = {
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "transpose": lambda x, params: x.transpose(params["permutation"]),
    "concatenate": lambda *x, params: np.concatenate(x, params["dimension"]),
    "split": lambda x, params: np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"]),
    "reshape": lambda x, params: x.reshape(params["new_sizes"]),
    "squeeze": lambda x, params: x.squeeze(tuple(params["dimensions"])),
    "expand_dims": lambda x, params: np.expand_dims(x, tuple(params["dimensions"])),
    "integer_pow": lambda x, params: x ** params["y"],
    "convert_element_type": lambda x, params: x,
}
_WITH_PARAMS = _SHAPES.keys()
_OPS: dict[str, Callable[..., Any]] = _SHAPES | {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum, "neg": np.negative, "exp": np.exp, "tanh": np.tanh, "logistic": scipy.special.expit,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "gt": np.greater, "lt": np.less, "select_n": _select,
    "square": np.square,
}  # fmt: skip
