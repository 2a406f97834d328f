"""Reductions, scans along a dimension, sorting, windows."""

from .base import Builder, Factors, Linear, OpLike, any_partial, register, size, sums

_REDUCED = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}


@register("reduce_sum", "reduce_max", "reduce_min")
def reduce(op: OpLike) -> Factors:
    """A kept dim stays split; a reduced one leaves a partial of the same reduction."""
    kind = _REDUCED[op.name]
    axes = set(op.params["axes"])
    b = Builder()
    dims = tuple(
        b.factor(n, reduced=kind if d in axes else None)  # pyright: ignore[reportArgumentType]
        for d, n in enumerate(op.ins[0].shape)
    )
    out = tuple(f for d, f in enumerate(dims) if d not in axes)
    linear = Linear(frozenset({0}), kind, kind)  # pyright: ignore[reportArgumentType]
    return b.build([dims], [out], [linear], flops=float(size(op.ins[0].shape)))


@register("reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin", "reduce")
def reduce_whole(op: OpLike) -> Factors:
    """Split on the dims that are kept only."""
    axes = set(op.params.get("axes", op.params.get("dimensions", ())))
    b = Builder()
    dims = b.dims(op.ins[0].shape, blocked=tuple(axes))
    out = tuple(f for d, f in enumerate(dims) if d not in axes)
    # lax.reduce takes operands, then as many rank-0 initial values
    ins = [dims if x.shape else () for x in op.ins]
    return b.build(ins, [out] * len(op.outs), flops=float(size(op.ins[0].shape)))


@register("cumsum")
def cumsum(op: OpLike) -> Factors:
    """Whole along its axis; additive."""
    return _along(op, op.params["axis"], [sums(0)])


@register("cumprod", "cumlogsumexp")
def cumulative(op: OpLike) -> Factors:
    """Whole along its axis."""
    return _along(op, op.params["axis"])


@register("cummax", "cummin")
def cumulative_extreme(op: OpLike) -> Factors:
    """Whole along its axis; the same extreme passes."""
    kind = "max" if op.name == "cummax" else "min"
    return _along(op, op.params["axis"], [Linear(frozenset({0}), kind, kind)])


@register("sort")
def sort(op: OpLike) -> Factors:
    """Whole along the sorted dim; all operands move together."""
    return _along(op, op.params["dimension"])


@register("top_k", "approx_top_k")
def top_k(op: OpLike) -> Factors:
    """Whole along the dim searched (the last, or params' ``axis``)."""
    axis = op.params.get("axis", op.params.get("reduction_dimension", -1)) % len(op.ins[0].shape)
    b = Builder()
    dims = b.dims(op.ins[0].shape, blocked=(axis,))
    kept = b.factor(op.outs[0].shape[axis], blocked=True)
    out = tuple(kept if d == axis else f for d, f in enumerate(dims))
    return b.build([dims], [out] * len(op.outs), flops=float(size(op.ins[0].shape)))


def _along(op: OpLike, axis: int, linear: list[Linear] | tuple[()] = ()) -> Factors:
    b = Builder()
    dims = b.dims(op.ins[0].shape, blocked=(axis % len(op.ins[0].shape),))
    return b.build([dims] * len(op.ins), [dims] * len(op.outs), linear, flops=float(size(op.ins[0].shape)))


_WINDOW = {"reduce_window_sum": [sums(0)], "reduce_window_max": any_partial(0)[1:2],
           "reduce_window_min": any_partial(0)[2:], "select_and_gather_add": [sums(0)]}  # fmt: skip


def _window_dims(op: OpLike, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dims that a window mixes: its length, stride, padding or dilation is not the trivial one."""
    p = op.params
    ones = (1,) * len(shape)
    lengths = p["window_dimensions"]
    strides = p.get("window_strides") or ones
    padding = p.get("padding") or ((0, 0),) * len(shape)
    base, dilation = p.get("base_dilation") or ones, p.get("window_dilation") or ones
    return tuple(
        d
        for d in range(len(shape))
        if (lengths[d], strides[d], tuple(padding[d]), base[d], dilation[d]) != (1, 1, (0, 0), 1, 1)
    )


@register("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window", "select_and_gather_add")
def reduce_window(op: OpLike) -> Factors:
    """Split on the dims that the window does not touch (batch, features)."""
    mixed = _window_dims(op, op.ins[0].shape)
    b = Builder()
    dims = b.dims(op.ins[0].shape, blocked=mixed)
    out = tuple(b.factor(op.outs[0].shape[d], blocked=True) if d in mixed else f for d, f in enumerate(dims))
    ins = [dims if x.shape else () for x in op.ins]
    flops = float(size(op.outs[0].shape)) * size(op.params["window_dimensions"])
    return b.build(ins, [out] * len(op.outs), _WINDOW.get(op.name, []), flops=flops)


@register("select_and_scatter")
def select_and_scatter(op: OpLike) -> Factors:
    """Operands (operand, source, initial value): any selection, any combination; only untouched dims are split."""
    operand, source = op.ins[:2]
    mixed = _window_dims(op, operand.shape)
    b = Builder()
    dims = b.dims(operand.shape, blocked=mixed)
    src = tuple(b.factor(source.shape[d], blocked=True) if d in mixed else f for d, f in enumerate(dims))
    return b.build([dims, src, ()], [dims], flops=float(size(operand.shape)))


@register("select_and_scatter_add")
def select_and_scatter_add(op: OpLike) -> Factors:
    """Max pooling's gradient: operands (source, operand); additive in the source."""
    source, operand = op.ins
    mixed = _window_dims(op, operand.shape)
    b = Builder()
    dims = b.dims(operand.shape, blocked=mixed)
    src = tuple(b.factor(source.shape[d], blocked=True) if d in mixed else f for d, f in enumerate(dims))
    return b.build([src, dims], [dims], [sums(0)], flops=float(size(operand.shape)))
