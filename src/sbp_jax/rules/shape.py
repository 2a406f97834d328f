"""Ops that move elements without changing them: reshape, transpose, broadcast, slice, pad, concatenate ...

All are linear, and every kind of partial passes through them.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from .base import Builder, Dims, Factors, Linear, Local, OpLike, any_partial, register, size, sums


def _reshape_local(op: OpLike, local: Local, x: Any) -> Any:
    return lax.reshape(x, local.out_shapes[0], op.params.get("dimensions"))


@register("reshape", local=_reshape_local)
def reshape(op: OpLike) -> Factors:
    """``(a b) c -> a (b c)``: dims are cut into the factors both sides share; a split takes the slowest one."""
    b = Builder()
    source, target = op.ins[0].shape, op.outs[0].shape
    if 0 in source:
        return b.build(
            [b.dims(source, blocked=range(len(source)))], [b.dims(target, blocked=range(len(target)))], any_partial(0)
        )
    order = op.params.get("dimensions") or range(len(source))  # the dims are read in this order
    left, right = _common_factors(b, tuple(source[d] for d in order), target)
    return b.build([tuple(left[order.index(d)] for d in range(len(source)))], [right], any_partial(0))


def _common_factors(b: Builder, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[Dims, Dims]:
    """The factors of both shapes. Where two dims share no whole number, the rest of the group is blocked."""
    left: list[list[int]] = [[] for _ in source]
    right: list[list[int]] = [[] for _ in target]
    i = j = 0
    remaining_i = source[0] if source else 1
    remaining_j = target[0] if target else 1
    while i < len(source) and j < len(target):
        if remaining_i == 1:
            i += 1
            remaining_i = source[i] if i < len(source) else 1
            continue
        if remaining_j == 1:
            j += 1
            remaining_j = target[j] if j < len(target) else 1
            continue
        small, large = sorted((remaining_i, remaining_j))
        if large % small == 0:
            factor = b.factor(small)
            left[i].extend(factor)
            right[j].extend(factor)
            remaining_i //= small
            remaining_j //= small
        else:
            # (a b) c -> d e with no common factor here: take dims from both sides until the products meet
            group_i, group_j, product_i, product_j = [i], [j], remaining_i, remaining_j
            while product_i != product_j:
                if product_i < product_j:
                    i += 1
                    product_i *= source[i]
                    group_i.append(i)
                else:
                    j += 1
                    product_j *= target[j]
                    group_j.append(j)
            for group, sizes, dims in ((group_i, source, left), (group_j, target, right)):
                for d in group:
                    dims[d].extend(b.factor(sizes[d], blocked=True))
            remaining_i = remaining_j = 1
    return tuple(map(tuple, left)), tuple(map(tuple, right))


@register("transpose")
def transpose(op: OpLike) -> Factors:
    """Dims change places."""
    b = Builder()
    dims = b.dims(op.ins[0].shape)
    return b.build([dims], [tuple(dims[i] for i in op.params["permutation"])], any_partial(0))


def _broadcast_local(op: OpLike, local: Local, x: Any, *_: Any) -> Any:
    return lax.broadcast_in_dim(x, local.out_shapes[0], op.params["broadcast_dimensions"])


@register("broadcast_in_dim", local=_broadcast_local)
def broadcast_in_dim(op: OpLike) -> Factors:
    """Kept dims follow; new ones may be split without anything having to move."""
    b = Builder()
    out = b.dims(op.outs[0].shape)
    shape = op.ins[0].shape
    dims = tuple(
        out[o] if n == op.outs[0].shape[o] else ()
        for n, o in zip(shape, op.params["broadcast_dimensions"], strict=True)
    )
    return b.build([dims] + [()] * (len(op.ins) - 1), [out], any_partial(0))


@register("squeeze")
def squeeze(op: OpLike) -> Factors:
    """Dims of size 1 go."""
    gone = {d % len(op.ins[0].shape) for d in op.params["dimensions"]}
    b = Builder()
    dims = b.dims(op.ins[0].shape)
    return b.build([dims], [tuple(f for d, f in enumerate(dims) if d not in gone)], any_partial(0))


@register("expand_dims")
def expand_dims(op: OpLike) -> Factors:
    """Dims of size 1 come."""
    new = {d % len(op.outs[0].shape) for d in op.params["dimensions"]}
    b = Builder()
    out = b.dims(op.outs[0].shape)
    return b.build([tuple(f for d, f in enumerate(out) if d not in new)], [out], any_partial(0))


def _slice_local(op: OpLike, local: Local, x: Any) -> Any:
    p = op.params
    whole = op.ins[0].shape
    limits = tuple(
        piece if piece != n else limit for piece, n, limit in zip(x.shape, whole, p["limit_indices"], strict=True)
    )
    return lax.slice(x, p["start_indices"], limits, p["strides"])


@register("slice", local=_slice_local)
def slice_(op: OpLike) -> Factors:
    """Split on the dims taken whole."""
    p, (x,) = op.params, op.ins
    strides = p["strides"] or (1,) * len(x.shape)
    cut = [d for d, n in enumerate(x.shape) if (p["start_indices"][d], p["limit_indices"][d], strides[d]) != (0, n, 1)]
    return _cut(op, cut)


def _cut(op: OpLike, cut: list[int]) -> Factors:
    """One operand, results of the same rank that differ in the dims ``cut``, which stay whole."""
    b = Builder()
    dims = b.dims(op.ins[0].shape, blocked=cut)
    outs = [
        tuple(b.factor(out.shape[d], blocked=True) if d in cut else f for d, f in enumerate(dims)) for out in op.outs
    ]
    return b.build([dims] + [()] * (len(op.ins) - 1), outs, any_partial(0))


@register("split")
def split(op: OpLike) -> Factors:
    """``lax.split``: whole along its axis."""
    return _cut(op, [op.params["axis"]])


@register("pad")
def pad(op: OpLike) -> Factors:
    """Split on the dims that are not padded. The padding value is whole; it wins or loses each
    term's maximum as it would the whole's, but it is added only where it is zero."""
    config = op.params["padding_config"]
    cut = [d for d, item in enumerate(config) if tuple(item) != (0, 0, 0)]
    factors = _cut(op, cut)
    value = op.ins[1].literal
    zero = value is not None and not np.any(np.asarray(value, dtype=complex))
    linear = (*([sums(0)] if zero or not cut else []), *any_partial(0)[1:])
    return replace(factors, linear=linear)


@register("concatenate")
def concatenate(op: OpLike) -> Factors:
    """Split on the other dims; partial when all operands are."""
    axis = op.params["dimension"]
    b = Builder()
    out = b.dims(op.outs[0].shape, blocked=(axis,))
    ins = [tuple(b.factor(x.shape[d], blocked=True) if d == axis else f for d, f in enumerate(out)) for x in op.ins]
    return b.build(ins, [out], any_partial(*range(len(op.ins))))


@register("stack")
def stack(op: OpLike) -> Factors:
    """Operands side by side along a new dim, which stays whole; partial when all operands are."""
    axis = op.params["axis"]
    b = Builder()
    dims = b.dims(op.ins[0].shape)
    new = b.factor(len(op.ins), blocked=True)
    return b.build([dims] * len(op.ins), [(*dims[:axis], new, *dims[axis:])], any_partial(*range(len(op.ins))))


@register("unstack")
def unstack(op: OpLike) -> Factors:
    """A dim taken apart: it stays whole, the results lack it."""
    axis = op.params["axis"]
    b = Builder()
    dims = b.dims(op.ins[0].shape, blocked=(axis,))
    return b.build([dims], [(*dims[:axis], *dims[axis + 1 :])] * len(op.outs), any_partial(0))


def _tile_local(op: OpLike, local: Local, x: Any) -> Any:
    reps = tuple(n // m for n, m in zip(local.out_shapes[0], x.shape, strict=True))
    return op.primitive.bind(x, **dict(op.params, reps=reps))


@register("tile", local=_tile_local)
def tile(op: OpLike) -> Factors:
    """``a -> (r a)``: repeats are made where they are needed."""
    b = Builder()
    dims = b.dims(op.ins[0].shape)
    return b.build(
        [dims], [tuple((*b.factor(r), *d) for r, d in zip(op.params["reps"], dims, strict=True))], any_partial(0)
    )


@register("rev")
def rev(op: OpLike) -> Factors:
    """Split on the dims that are not reversed."""
    b = Builder()
    dims = b.dims(op.ins[0].shape, blocked=op.params["dimensions"])
    return b.build([dims], [dims], any_partial(0))


def _iota_local(op: OpLike, local: Local, *_: Any) -> Any:
    """Counted in integers: bfloat16(start) + bfloat16(k) would round twice."""
    p = op.params
    shape, dim = local.out_shapes[0], p["dimension"]
    code = local.out_codes[0]
    if not local.is_split(code, dim):
        return lax.broadcasted_iota(p["dtype"], shape, dim)
    start = jnp.asarray(local.start(code, op.outs[0].shape[dim], dim), jnp.int32)
    return lax.convert_element_type(lax.broadcasted_iota(jnp.int32, shape, dim) + start, p["dtype"])


@register("iota", local=_iota_local)
def iota(op: OpLike) -> Factors:
    """Made where it is needed: each device counts from its own offset."""
    b = Builder()
    return b.build([()] * len(op.ins), [b.dims(op.outs[0].shape)])


def _constant_local(op: OpLike, local: Local) -> Any:
    value = op.params["value"]
    code, shape = local.out_codes[0], local.out_shapes[0]
    if all(c < 0 for c in code):
        return value
    starts = [local.start(code, n, d) for d, n in enumerate(op.outs[0].shape)]
    # Uneven pieces are stored longer than they are, by at most one element for each axis that cuts them.
    value = np.pad(value, [(0, len(code)) if n % m else (0, 0) for n, m in zip(value.shape, shape, strict=True)])
    return lax.dynamic_slice(value, starts, shape)


@register("constant", local=_constant_local)
def constant(op: OpLike) -> Factors:
    """An array known when the program is traced: every device cuts its piece out."""
    b = Builder()
    return b.build([], [b.dims(op.outs[0].shape)])


def _fft_local(op: OpLike, local: Local, x: Any) -> Any:
    """Its result in memory row by row.

    A collective takes the order that suits it, and XLA for CPUs hands this on to the transform, which knows only one
    (JAX 0.10 to 0.12): running the program fails. A constraint of its own ends that.
    """
    y = op.primitive.bind(x, **op.params)
    return with_layout_constraint(y, Layout(tuple(range(y.ndim))))


@register("fft", local=_fft_local)
def fft(op: OpLike) -> Factors:
    """Linear; whole along the transformed dims, the last of ``fft_lengths``."""
    n = len(op.params["fft_lengths"])
    rank = len(op.ins[0].shape)
    factors = _cut(op, list(range(rank - n, rank)))
    return Factors(
        factors.ins, factors.outs, factors.sizes, factors.blocked, (), (Linear(frozenset({0})),),
        flops=5.0 * size(op.ins[0].shape),
    )  # fmt: skip
