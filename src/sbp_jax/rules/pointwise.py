"""Element by element ops. Operands have the result's shape, or size 1 where they are repeated, or rank 0."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .base import Builder, Dims, Factors, Linear, OpLike, any_partial, is_a, register, size, sums

# Non-decreasing on all real numbers and infinities, never making a nan of a number: f(max(a, b)) = max(f(a), f(b)).
# Not log or sqrt: a term below zero that loses the maximum would be nan and win it.
_INCREASING = ("exp", "exp2", "expm1", "tanh", "logistic", "sinh", "asinh", "atan", "erf", "cbrt", "floor", "ceil",
               "round", "sign")  # fmt: skip
_OTHER = (
    "abs", "acos", "acosh", "and", "asin", "atan2", "atanh", "bessel_i0e", "bessel_i1e", "clamp", "clz", "cos", "cosh",
    "digamma", "eq", "eq_to", "erf_inv", "erfc", "ge", "gt", "igamma", "igamma_grad_a", "igammac", "integer_pow",
    "is_finite", "le", "le_to", "lgamma", "log", "log1p", "log2", "lt", "lt_to", "mulhi", "ne", "nextafter", "not",
    "one_minus_square", "or", "polygamma", "population_count", "pow", "random_gamma_grad", "reciprocal",
    "reduce_precision", "regularized_incomplete_beta", "rem", "rsqrt", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sin", "sqrt", "square", "tan", "threefry2x32", "with_memory_space_constraint", "xor",
    "zeta",
)  # fmt: skip


def pointwise(op: OpLike, linear: list[Linear] | tuple[Linear, ...] = ()) -> Factors:
    """Every dimension is a factor of its own, shared by all operands that have it."""
    shape = op.outs[0].shape
    b = Builder()
    dims = b.dims(shape)

    def operand(s: tuple[int, ...]) -> Dims:
        return tuple(dims[d] if n == shape[d] else () for d, n in enumerate(s))

    usable = [item for item in linear if all(op.ins[i].literal is None for i in item.operands)]
    return b.build(
        [operand(x.shape) for x in op.ins], [dims] * len(op.outs), usable, flops=float(size(shape) * len(op.outs))
    )


@register(*_OTHER)
def opaque_values(op: OpLike) -> Factors:
    """Nothing partial passes."""
    return pointwise(op)


@register("bitcast_convert_type")
def bitcast(op: OpLike) -> Factors:
    """Pointwise between types of one width; the last dim of the narrower side is the bits of one element, whole."""
    (x,), (y,) = op.ins, op.outs
    if len(x.shape) == len(y.shape):
        return pointwise(op)
    b = Builder()
    long, short = (x, y) if len(x.shape) > len(y.shape) else (y, x)
    dims = b.dims(short.shape)
    wide = (*dims, b.factor(long.shape[-1], blocked=True))
    return b.build([wide if x is long else dims], [wide if y is long else dims], flops=float(size(x.shape)))


@register("add", "add_any")
def add(op: OpLike) -> Factors:
    """P + P -> P. Not B + P: every term would receive it."""
    return pointwise(op, [sums(0, 1)])


@register("sub")
def sub(op: OpLike) -> Factors:
    """P - P -> P."""
    return pointwise(op, [sums(0, 1)])


@register("mul")
def mul(op: OpLike) -> Factors:
    """P * B -> P and B * P -> P, never P * P."""
    return pointwise(op, [sums(0), sums(1)])


@register("div")
def div(op: OpLike) -> Factors:
    """P / B -> P. Integer division rounds each term, so only inexact types pass."""
    return pointwise(op, [sums(0)] if is_a(op.outs[0].dtype, np.inexact) else [])


@register("max")
def maximum(op: OpLike) -> Factors:
    """max(P(max), P(max)) -> P(max); idempotent, so a whole operand may meet every term (ReLU)."""
    return pointwise(op, [Linear(frozenset(k), "max", "max") for k in ({0, 1}, {0}, {1})])


@register("min")
def minimum(op: OpLike) -> Factors:
    """min(P(min), P(min)) -> P(min); idempotent, as the maximum."""
    return pointwise(op, [Linear(frozenset(k), "min", "min") for k in ({0, 1}, {0}, {1})])


@register("neg")
def neg(op: OpLike) -> Factors:
    """-(a + b) = -a + -b; -max(a, b) = min(-a, -b), but not for integers: minus the least one wraps to itself."""
    swaps = [Linear(frozenset({0}), "max", "min"), Linear(frozenset({0}), "min", "max")]
    return pointwise(op, [sums(0), *(swaps if is_a(op.ins[0].dtype, np.floating) else [])])


@register("complex")
def complex_(op: OpLike) -> Factors:
    """complex(P, P) -> P: linear over the reals."""
    return pointwise(op, [sums(0, 1)])


@register("polynomial")
def polynomial(op: OpLike) -> Factors:
    """Linear in its coefficients together, one operand for each power of the first operand, from 0 on."""
    return pointwise(op, [sums(*range(1, len(op.ins)))])


@register("real", "imag", "conj")
def linear_unary(op: OpLike) -> Factors:
    """Linear over the reals."""
    return pointwise(op, [sums(0)])


@register(*_INCREASING)
def increasing(op: OpLike) -> Factors:
    """Non-decreasing: maxima and minima pass."""
    return pointwise(op, any_partial(0)[1:])


@register("select_n")
def select(op: OpLike) -> Factors:
    """The predicate whole, the cases partial together."""
    return pointwise(op, any_partial(*range(1, len(op.ins))))


@register("convert_element_type")
def convert(op: OpLike) -> Factors:
    """What the two types allow: see ``_conversion``."""
    return pointwise(op, _conversion(op.ins[0].dtype, op.outs[0].dtype))


def _conversion(source: Any, target: Any) -> list[Linear]:
    """Sums pass to wider floats, and to integers modulo a power of two; extremes pass where order is kept.

    A narrower float rounds every term instead of the sum. An integer's sum may wrap where a float's does not.
    """
    found: list[Linear] = []
    integers = is_a(source, np.integer) and is_a(target, np.integer)
    if integers or (is_a(source, np.inexact) and is_a(target, np.inexact)):
        complex_to_real = is_a(source, np.complexfloating) and not is_a(target, np.complexfloating)
        found.append(Linear(frozenset({0}), narrows=not (integers or complex_to_real or _holds(source, target))))
    if _keeps_order(source, target):
        found += any_partial(0)[1:]
    return found


def _holds(source: Any, target: Any) -> bool:
    """Whether every number of one inexact type is one of the other."""
    a, b = jnp.finfo(source), jnp.finfo(target)
    return bool(a.nmant <= b.nmant and a.maxexp <= b.maxexp and a.minexp - a.nmant >= b.minexp - b.nmant)


def _keeps_order(source: Any, target: Any) -> bool:
    """Non-decreasing, and no number becomes nan or wraps. Rounding keeps order; 8-bit floats overflow to nan."""
    if is_a(target, np.complexfloating) or not (source == np.bool_ or is_a(source, np.number)):
        return False
    if is_a(target, np.floating):
        saturates = jnp.finfo(target).bits >= 16
        return not is_a(source, np.complexfloating) and (
            saturates or (is_a(source, np.floating) and bool(_holds(source, target)))
        )
    if source == np.bool_:
        return is_a(target, np.integer)
    if is_a(source, np.integer) and is_a(target, np.integer):
        a, b = jnp.iinfo(source), jnp.iinfo(target)
        return bool(b.min <= a.min and a.max <= b.max)
    return False
