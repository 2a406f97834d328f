"""The graph's own nodes: arguments, results, loop boundaries, pins."""

from .base import Builder, Factors, OpLike, any_partial, register


@register("sbp.enter", "sbp.barrier", "sbp.pin", "sbp.carry", "sbp.join")
def identity(op: OpLike) -> Factors:
    """All operands and results are one value seen from two sides of a boundary: one signature for all."""
    value = next(x for x in (*op.outs, *op.ins))
    b = Builder()
    dims = b.dims(value.shape)
    return b.build([dims] * len(op.ins), [dims] * len(op.outs), any_partial(*range(len(op.ins))))


@register("sbp.input", "sbp.output", even=True)
def argument(op: OpLike) -> Factors:
    """Arguments and results of the whole program: split or whole, never partial.

    In equal pieces: a ``jax.Array`` has no others (docs/decisions/0009-padding.md).
    """
    b = Builder()
    value = next(x for x in (*op.outs, *op.ins))
    dims = b.dims(value.shape)
    return b.build([dims] * len(op.ins), [dims] * len(op.outs))


@register("sbp.given", "sbp.result")
def given(op: OpLike) -> Factors:
    """A global tensor that a program takes or gives: partial too, in the reductions its ``kinds`` name."""
    b = Builder()
    value = next(x for x in (*op.outs, *op.ins))
    dims = b.dims(value.shape)
    return b.build([dims] * len(op.ins), [dims] * len(op.outs), any_partial(*range(len(op.ins))))


@register("sbp.unstack")
def unstack(op: OpLike) -> Factors:
    """``t ... -> ...``: what a scan takes slice by slice; the scanned dim is whole."""
    b = Builder()
    dims = b.dims(op.ins[0].shape, blocked=(0,))
    return b.build([dims], [dims[1:]], any_partial(0))


@register("sbp.stack")
def stack(op: OpLike) -> Factors:
    """``... -> t ...``: what a scan collects."""
    b = Builder()
    out = b.dims(op.outs[0].shape, blocked=(0,))
    return b.build([out[1:]], [out], any_partial(0))
