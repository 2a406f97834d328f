"""Gather, scatter and dynamic slices: embedding lookups, their gradients, caches, picking one class of many.

Split along an indexed dimension, every device looks up what lies in its own piece: a gather leaves a partial
sum with zeros for the rest, a scatter drops what belongs to others.

XLA turns a lookup or an update at one position into slices, and merges a slice of a slice into one without the clamping
in between (JAX 0.10.2, plain ``jit`` too: ``dynamic_slice(dynamic_slice(x, (8,), (2,)), (0,), (1,))`` is not what it is
without ``jit``). A position out of bounds then reads past the first slice, and boxing cuts slices everywhere. So
positions are clamped explicitly here, and an update at one position is written out.

XLA for CPUs writes an update in place while it still reads it from there: in plain ``jit`` of JAX 0.10 to 0.12 too,
``y.at[1:].set(y[:-1])`` of ``y = x.reshape(...)`` repeats one row. So an update is computed before it is written.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..signature import ReduceOp
from .base import Builder, Dims, Factors, Linear, Local, OpLike, any_partial, is_a, register, size, sums


def _mode(op: OpLike) -> str:
    mode = op.params.get("mode")
    if mode is None:
        return "fill"
    return {"CLIP": "clip", "FILL_OR_DROP": "fill", "PROMISE_IN_BOUNDS": "promise", "ONE_HOT": "fill"}[
        getattr(mode, "name", str(mode))
    ]


def _fill_value(op: OpLike) -> Any:
    """What ``lax.gather`` puts for an index out of bounds when ``fill_value`` is None."""
    given, dtype = op.params.get("fill_value"), op.outs[0].dtype
    if given is not None:
        return given
    if is_a(dtype, np.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    info = np.iinfo(dtype)
    return info.min if np.issubdtype(dtype, np.signedinteger) else info.max


def _gather_local(op: OpLike, local: Local, operand: Any, indices: Any) -> Any:
    """The lookup in this device's piece; with an indexed dim split, masked to what the piece holds."""
    p, numbers = op.params, op.params["dimension_numbers"]
    whole_shape = op.ins[0].shape
    sizes = tuple(
        local_n if s == n else s for s, n, local_n in zip(p["slice_sizes"], whole_shape, operand.shape, strict=True)
    )
    params = dict(p, slice_sizes=sizes)
    code = local.in_codes[0]
    shifted = [d for d in numbers.start_index_map if local.is_split(code, d) and p["slice_sizes"][d] == 1]
    if not shifted:
        if _mode(op) in ("clip", "promise"):
            indices = _within(indices, [operand.shape[d] - sizes[d] for d in numbers.start_index_map])
        return op.primitive.bind(operand, indices, **params)
    index, here, valid = _shift(op, local, indices, numbers.start_index_map, p["slice_sizes"], shifted)
    params.update(mode=lax.GatherScatterMode.CLIP, fill_value=None)
    out = op.primitive.bind(operand, index, **params)
    keep = _spread(here, out.shape, numbers.offset_dims)
    out = jnp.where(keep, out, jnp.zeros((), out.dtype))
    if _mode(op) == "fill":
        bad = _spread(~valid, out.shape, numbers.offset_dims)
        for d in shifted:  # one device of each group speaks for the index that is nobody's
            bad = bad & local.is_first(code, d)
        out = jnp.where(bad, jnp.asarray(_fill_value(op), out.dtype), out)
    return out


def _shift(
    op: OpLike, local: Local, indices: Any, index_dims: tuple[int, ...], windows: Sequence[int], shifted: Sequence[int]
) -> tuple[Any, Any, Any]:
    """Indices relative to this device's piece of operand 0; which lie in it; which lie in the whole at all.

    ``index_dims`` are the dims that the columns of ``indices`` index, ``shifted`` those of them that are split;
    ``windows`` is the length taken along each dim, which must lie within bounds too. Clipping is done here.
    """
    here = valid = jnp.ones(indices.shape[:-1], bool)
    if jnp.issubdtype(indices.dtype, jnp.unsignedinteger):
        indices = jnp.minimum(indices, jnp.asarray(min(2**31 - 1, jnp.iinfo(indices.dtype).max), indices.dtype))
    signed = indices.astype(jnp.int32) if indices.dtype.itemsize < 4 or indices.dtype == jnp.uint32 else indices
    parts = []
    for k, d in enumerate(index_dims):
        total, position = op.ins[0].shape[d], signed[..., k]
        last = total - windows[d]
        if _mode(op) == "clip":
            position = jnp.clip(position, 0, last)
        elif _mode(op) == "fill":
            valid &= (position >= 0) & (position <= last)
        if d in shifted:
            start, mine = local.span(local.in_codes[0], total, d)
            position = position - jnp.asarray(start, position.dtype)
            here &= (position >= 0) & (position < mine)
        parts.append(position)
    return jnp.stack(parts, axis=-1), here & valid, valid


def _spread(mask: Any, shape: tuple[int, ...], window_dims: tuple[int, ...]) -> Any:
    """A mask over the index batch dims, given the result's window dims."""
    batch = [d for d in range(len(shape)) if d not in window_dims]
    return lax.broadcast_in_dim(mask, shape, batch)


@register("gather", local=_gather_local)
def gather(op: OpLike) -> Factors:
    """``(v) h, i -> i h``: batch of indices, windows taken whole, batching dims; an indexed ``v`` leaves a sum."""
    p, numbers = op.params, op.params["dimension_numbers"]
    operand, indices = op.ins
    out_shape = op.outs[0].shape
    b = Builder()
    index_dims = [*b.dims(indices.shape[:-1]), b.factor(indices.shape[-1], blocked=True)]
    dims: list[tuple[int, ...]] = []
    window: list[tuple[int, ...]] = []
    masked = is_a(operand.dtype, np.number)
    for d, n in enumerate(operand.shape):
        if d in numbers.operand_batching_dims:
            at = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(d)]
            dims.append(index_dims[at])
            continue
        whole = p["slice_sizes"][d] == n and (n != 1 or d not in numbers.start_index_map)
        single = d in numbers.start_index_map and p["slice_sizes"][d] == 1
        if whole:
            f = b.factor(n)
        elif single and masked:
            f = b.factor(n, reduced="sum")
        else:
            f = b.factor(n, blocked=True)
        dims.append(f)
        if d not in numbers.collapsed_slice_dims:
            window.append(f if whole else b.factor(p["slice_sizes"][d], blocked=True))
    batch, windows = iter(index_dims[:-1]), iter(window)
    out = tuple(next(windows) if d in numbers.offset_dims else next(batch) for d in range(len(out_shape)))
    filled = 0 if _mode(op) != "fill" else _fill_value(op)
    adds = filled == 0 or filled != filled
    linear = [*([sums(0)] if adds else []), *any_partial(0)[1:]]
    return b.build([tuple(dims), tuple(index_dims)], [out], linear, flops=float(size(out_shape)))


def _scatter_local(op: OpLike, local: Local, operand: Any, indices: Any, updates: Any) -> Any:
    numbers, code = op.params["dimension_numbers"], local.in_codes[0]
    index_dims = numbers.scatter_dims_to_operand_dims
    shifted = [d for d in index_dims if local.is_split(code, d) and d in numbers.inserted_window_dims]
    is_one = bool(index_dims) and size(indices.shape[:-1]) == 1
    if not shifted and not is_one:
        params = op.params
        if local.is_padded(1, op.ins[1].shape):  # updates that change nothing, at indices that may be others' too
            params = dict(params, unique_indices=False, indices_are_sorted=False)
        return op.primitive.bind(operand, indices, updates, **params)
    taken = iter(updates.shape[d] for d in numbers.update_window_dims)
    alone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [1 if d in alone else next(taken) for d in range(len(operand.shape))]
    whole = [op.ins[0].shape[d] if n == operand.shape[d] and d not in alone else n for d, n in enumerate(window)]
    index, here, _ = _shift(op, local, indices, index_dims, whole, shifted)
    if is_one:
        return _update_one(op, operand, index, here, updates, window)
    # what belongs to another device points past the end, where FILL_OR_DROP drops it
    past = jnp.asarray(max(operand.shape), index.dtype)
    index = jnp.where(here[..., None], index, past)
    params = dict(op.params, mode=lax.GatherScatterMode.FILL_OR_DROP, unique_indices=False, indices_are_sorted=False)
    return op.primitive.bind(operand, index, updates, **params)


def _update_one(op: OpLike, operand: Any, index: Any, here: Any, updates: Any, window: Sequence[int]) -> Any:
    """A scatter at one position, as XLA does it but for the clamping: that window read, updated, written back."""
    starts = [jnp.zeros((), index.dtype)] * operand.ndim
    for k, d in enumerate(op.params["dimension_numbers"].scatter_dims_to_operand_dims):
        starts[d] = _within(index.reshape(-1)[k], operand.shape[d] - window[d])
    old = lax.dynamic_slice(operand, starts, window)
    params = dict(op.params, mode=lax.GatherScatterMode.CLIP)
    new = op.primitive.bind(old, jnp.zeros_like(index), lax.optimization_barrier(updates), **params)
    return lax.dynamic_update_slice(operand, lax.select(here.reshape(()), new, old), starts)


def _scatter(op: OpLike, kind: ReduceOp | None, linear: list[Linear]) -> Factors:
    numbers = op.params["dimension_numbers"]
    operand, indices, updates = op.ins
    b = Builder()
    batch = range(len(indices.shape) - 1)
    paired = numbers.scatter_indices_batching_dims
    index_dims = [
        b.factor(indices.shape[d]) if d in paired
        else b.factor(indices.shape[d], reduced=kind, blocked=kind is None)
        for d in batch
    ] + [b.factor(indices.shape[-1], blocked=True)]  # fmt: skip
    window_of = iter(numbers.update_window_dims)
    dims: list[tuple[int, ...]] = []
    update_dims: list[tuple[int, ...]] = [()] * len(updates.shape)
    for d, n in enumerate(operand.shape):
        if d in numbers.operand_batching_dims:
            dims.append(index_dims[paired[numbers.operand_batching_dims.index(d)]])
        elif d in numbers.inserted_window_dims:
            dims.append(b.factor(n))
        else:
            at = next(window_of)
            whole = updates.shape[at] == n
            f = b.factor(n, blocked=not whole)
            dims.append(f)
            update_dims[at] = f if whole else b.factor(updates.shape[at], blocked=True)
    scatter_dims = [d for d in range(len(updates.shape)) if d not in numbers.update_window_dims]
    for at, f in zip(scatter_dims, index_dims[:-1], strict=True):
        update_dims[at] = f
    out = tuple(dims)
    addends = (0,) if kind is not None else ()
    return b.build(
        [out, tuple(index_dims), tuple(update_dims)], [out], linear, addends, flops=float(size(updates.shape))
    )


@register("scatter_add", "scatter-add", "scatter-sub", local=_scatter_local)
def scatter_add(op: OpLike) -> Factors:
    """Split updates leave a sum; an indexed dim of the operand may be split, each device keeps its own rows."""
    return _scatter(op, "sum", [sums(0, 2)])


@register("scatter", local=_scatter_local)
def scatter(op: OpLike) -> Factors:
    """Writing needs all updates in their order; operand and updates are partial together; not under a function."""
    return _scatter(op, None, any_partial(0, 2) if op.params.get("update_jaxpr") is None else [])


@register("scatter_min", "scatter_max", "scatter-min", "scatter-max", local=_scatter_local)
def scatter_extreme(op: OpLike) -> Factors:
    """Split updates leave an extreme of the same kind, and the same kind passes."""
    kind: ReduceOp = "max" if op.name.endswith("max") else "min"
    return _scatter(op, kind, [Linear(frozenset({0, 2}), kind, kind)])


@register("scatter_mul", "scatter-mul", local=_scatter_local)
def scatter_mul(op: OpLike) -> Factors:
    """Split on windows, batching dims and indexed dims."""
    return _scatter(op, None, [])


def _dynamic_slice_local(op: OpLike, local: Local, operand: Any, *starts: Any) -> Any:
    last = (n - k for n, k in zip(operand.shape, local.out_shapes[0], strict=True))
    return lax.dynamic_slice(operand, [_within(x, n) for x, n in zip(starts, last, strict=True)], local.out_shapes[0])


def _within(start: Any, last: int | Sequence[int]) -> Any:
    """Positions clamped to 0..``last``, in their own dtype."""
    dtype = jnp.result_type(start)
    largest = int(jnp.iinfo(dtype).max)
    upper = min(last, largest) if isinstance(last, int) else [min(n, largest) for n in last]
    return jnp.clip(start, 0, np.asarray(upper, dtype)).astype(dtype)


@register("dynamic_slice", local=_dynamic_slice_local)
def dynamic_slice(op: OpLike) -> Factors:
    """Split on the dims taken whole."""
    sizes, x = op.params["slice_sizes"], op.ins[0]
    b = Builder()
    dims = tuple(b.factor(n, blocked=sizes[d] != n) for d, n in enumerate(x.shape))
    out = tuple(f if sizes[d] == x.shape[d] else b.factor(sizes[d], blocked=True) for d, f in enumerate(dims))
    return b.build([dims] + [()] * (len(op.ins) - 1), [out], any_partial(0))


def _dynamic_update_slice_local(op: OpLike, local: Local, operand: Any, update: Any, *starts: Any) -> Any:
    return lax.dynamic_update_slice(operand, lax.optimization_barrier(update), starts)


@register("dynamic_update_slice", local=_dynamic_update_slice_local)
def dynamic_update_slice(op: OpLike) -> Factors:
    """Split on the dims written whole; operand and update are partial together."""
    x, update = op.ins[:2]
    b = Builder()
    dims: Dims = tuple(b.factor(n, blocked=update.shape[d] != n) for d, n in enumerate(x.shape))
    piece = tuple(
        f if update.shape[d] == x.shape[d] else b.factor(update.shape[d], blocked=True) for d, f in enumerate(dims)
    )
    return b.build([dims, piece] + [()] * (len(op.ins) - 2), [dims], any_partial(0, 1))
