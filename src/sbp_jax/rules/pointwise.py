"""Element by element ops. Operands have the result's shape, or size 1 where they are repeated, or rank 0."""

import numpy as np

from .base import Builder, Dims, Factors, Linear, OpLike, any_partial, register, size, sums

# Non-decreasing on their whole domain: f(max(a, b)) = max(f(a), f(b)).
_INCREASING = ("exp", "exp2", "expm1", "tanh", "logistic", "sinh", "asinh", "atan", "erf", "cbrt", "floor", "ceil",
               "round", "sign")  # fmt: skip
_OTHER = (
    "abs", "acos", "acosh", "and", "asin", "atan2", "atanh", "bessel_i0e", "bessel_i1e", "bitcast_convert_type",
    "clz", "complex", "cos", "cosh", "digamma", "eq", "eq_to", "erf_inv", "erfc", "ge", "gt", "igamma",
    "igamma_grad_a", "igammac", "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "log1p", "lt", "lt_to",
    "ne", "nextafter", "not", "or", "polygamma", "population_count", "pow", "random_gamma_grad",
    "regularized_incomplete_beta", "rem", "rsqrt", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "sin", "sqrt", "square", "tan", "threefry2x32", "xor", "zeta", "reduce_precision", "clamp",
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
    return pointwise(op, [sums(0)] if np.issubdtype(op.outs[0].dtype, np.inexact) else [])


@register("max")
def maximum(op: OpLike) -> Factors:
    """max(P(max), P(max)) -> P(max)."""
    return pointwise(op, [Linear(frozenset({0, 1}), "max", "max")])


@register("min")
def minimum(op: OpLike) -> Factors:
    """min(P(min), P(min)) -> P(min)."""
    return pointwise(op, [Linear(frozenset({0, 1}), "min", "min")])


@register("neg")
def neg(op: OpLike) -> Factors:
    """-(a + b) = -a + -b; -max(a, b) = min(-a, -b)."""
    return pointwise(op, [sums(0), Linear(frozenset({0}), "max", "min"), Linear(frozenset({0}), "min", "max")])


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
    """Widening conversions are additive; narrowing a float rounds each term, so it is not."""
    return pointwise(op, any_partial(0) if _widens(op.ins[0].dtype, op.outs[0].dtype) else [])


def _widens(source: np.dtype, target: np.dtype) -> bool:
    try:
        return source != np.bool_ and np.promote_types(source, target) == target
    except TypeError:  # extended dtypes and low-precision floats: ask JAX's lattice
        import jax.numpy as jnp

        try:
            return bool(jnp.promote_types(source, target) == target)
        except (TypeError, ValueError):
            return False
