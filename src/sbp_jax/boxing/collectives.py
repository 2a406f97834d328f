"""Routes executed: explicit collectives on a device's own piece, inside a ``shard_map`` manual on all axes."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..pieces import identity, stored_shape
from ..signature import Broadcast, Partial, Signature, Split, partial_sum
from .routes import Route
from .table import Step
from .uneven import Blocks, blocks

# Whether pieces that only change places are gathered instead. XLA for CPUs has all devices of a program meet at a
# permute, those too for which nothing is in it: one that only some devices come to, in a branch, never ends.
_without_permutes = ContextVar("without_permutes", default=False)


@contextmanager
def without_permutes(on: bool = True) -> Iterator[None]:
    """A block in which routes are traced without permutes, for use in branches that only some devices take."""
    token = _without_permutes.set(on)
    try:
        yield
    finally:
        _without_permutes.reset(token)


_REDUCE = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


def apply(route: Route, x: Any, axis_names: Sequence[str]) -> Any:
    """This device's piece of the tensor in ``route.dst``, given its piece in ``route.src``."""
    return execute(route.steps, x, axis_names, route.shape)


def execute(steps: Sequence[Step], x: Any, axis_names: Sequence[str], shape: Sequence[int]) -> Any:
    """Run steps one after the other on this device's piece of a tensor of logical ``shape``."""
    if 0 in shape and steps:  # nothing to move, and a collective takes no empty operand
        return x.reshape(stored_shape(shape, steps[-1].dst, [lax.axis_size(name) for name in axis_names]))
    if steps and jnp.issubdtype(x.dtype, jax.dtypes.extended):  # random keys travel as the words they are made of
        words = jax.random.key_data(x)
        moved = execute(steps, words, axis_names, (*shape, *words.shape[x.ndim :]))
        return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(x))
    if x.dtype == np.bool_ and any(c == partial_sum for step in steps for c in step.dst):
        # On the way, one term is the value and the others are zeros. A sum of bools would be an int32.
        return execute(steps, x.astype(np.uint8), axis_names, shape).astype(np.bool_)
    moves = [_Move(step, tuple(axis_names), tuple(shape)) for step in steps]
    for is_cut, each in itertools.groupby(moves, lambda m: m.cuts_evenly):
        if is_cut:
            x = _cut(list(each), x)
            continue
        for m in each:
            x = _STEPS[m.step.kind](m, x)
    return x


@dataclass(frozen=True, slots=True)
class _Move:
    """A step with what it acts on."""

    step: Step
    axis_names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.axis_names[a] for a in self.step.axes)

    @property
    def group(self) -> Any:
        return self.names[0] if len(self.names) == 1 else self.names

    @property
    def size(self) -> int:
        return math.prod(lax.axis_size(name) for name in self.names)

    @property
    def source(self) -> Any:
        return self.step.src[self.step.axes[0]]

    @property
    def target(self) -> Any:
        return self.step.dst[self.step.axes[0]]

    @property
    def cuts_evenly(self) -> bool:
        """Whether each device keeps one of pieces that have one length."""
        return self.step.kind == "slice" and (self.size == 1 or self.blocks(self.target.dim) is None)

    def index(self) -> Any:
        """This device's rank in the group, outermost axis first."""
        index: Any = 0
        for name in self.names:
            index = index * lax.axis_size(name) + lax.axis_index(name)
        return index

    def blocks(self, dim: int) -> Blocks | None:
        """How the axis cuts ``dim``; None where every piece has the same length."""
        return blocks(self.shape, self.step.src, dim, self.step.axes[0], self.axis_names)


def _cut(moves: Sequence[_Move], x: Any) -> Any:
    """A piece of a piece, all of one length, cut at once: XLA would write what one cut leaves for the next."""
    shape, start = list(x.shape), [jnp.int32(0)] * x.ndim
    for m in moves:
        if m.size > 1:  # else an axis of one device: nothing to cut, nothing to reduce
            dim = m.target.dim
            shape[dim] //= m.size
            start[dim] = start[dim] + m.index() * shape[dim]
    return x if shape == list(x.shape) else lax.dynamic_slice(x, start, shape)


def _slice(m: _Move, x: Any) -> Any:
    uneven = m.blocks(m.target.dim)
    return _cut([m], x) if uneven is None else uneven.cut(x, m.index())


def _to_partial(m: _Move, x: Any) -> Any:
    filler = identity(m.target.op, x.dtype)
    if isinstance(m.source, Broadcast):
        return jnp.where(m.index() == 0, x, filler)
    dim = m.source.dim
    uneven = m.blocks(dim)
    if uneven is not None:
        return uneven.place(x, m.index(), filler)
    shape = list(x.shape)
    shape[dim] *= m.size
    return lax.dynamic_update_slice_in_dim(jnp.full(shape, filler), x, m.index() * x.shape[dim], dim)


def _all_gather(m: _Move, x: Any) -> Any:
    dim = m.source.dim
    uneven = m.blocks(dim)
    y = lax.all_gather(x, m.group, axis=dim, tiled=True)
    return y if uneven is None else uneven.compact(y)


def _all_to_all(m: _Move, x: Any) -> Any:
    cut = m.target.dim
    uneven = m.blocks(cut)
    x = x if uneven is None else uneven.spread(x)
    if isinstance(m.source, Partial):
        return _scatter_extreme(m, x, cut)
    dim = m.source.dim
    uneven = m.blocks(dim)
    # XLA for CPUs exchanges slices. Where it simplifies what they are cut from (a sum over copies of a transposed
    # array, in JAX 0.10 to 0.12), it gives some slices another layout, and then refuses its own program.
    x = lax.optimization_barrier(x)
    y = lax.all_to_all(x, m.group, split_axis=cut, concat_axis=dim, tiled=True)
    return y if uneven is None else uneven.compact(y)


def _scatter_extreme(m: _Move, x: Any, dim: int) -> Any:
    """Every device gets all terms of its piece and reduces them."""
    n = m.size
    terms = x.reshape(*x.shape[:dim], n, x.shape[dim] // n, *x.shape[dim + 1 :])
    terms = lax.all_to_all(terms, m.group, split_axis=dim, concat_axis=dim)
    return (jnp.max if m.source.op == "max" else jnp.min)(terms, axis=dim)


def _all_reduce(m: _Move, x: Any) -> Any:
    return _REDUCE[m.source.op](x, m.group)


def _reduce_scatter(m: _Move, x: Any) -> Any:
    dim = m.target.dim
    uneven = m.blocks(dim)
    x = x if uneven is None else uneven.spread(x)
    return lax.psum_scatter(x, m.group, scatter_dimension=dim, tiled=True)


def _permute(m: _Move, x: Any) -> Any:
    sizes = tuple(lax.axis_size(name) for name in m.names)
    pairs = permutation(m.step.src, m.step.dst, m.step.axes, sizes)
    if not _without_permutes.get():
        return lax.ppermute(x, m.group, pairs)
    source = dict((b, a) for a, b in pairs)
    order = np.array([source[k] for k in range(m.size)], np.int32)
    return lax.all_gather(x, m.group)[jnp.asarray(order)[lax.axis_index(m.group)]]


def permutation(src: Signature, dst: Signature, axes: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(from, to) ranks in the group, where the same pieces are held by other devices."""
    places = {a: k for k, a in enumerate(axes)}

    def piece(signature: Signature, position: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """By dim and level of nesting: the coordinate there."""
        found = []
        for dim in {c.dim for c in signature if isinstance(c, Split)}:
            inner = [a for a in signature.split_axes(dim) if a in places]
            found += [(dim, level, position[places[a]]) for level, a in enumerate(inner)]
        return tuple(sorted(found))

    positions = list(itertools.product(*map(range, sizes)))
    holder = {piece(src, q): k for k, q in enumerate(positions)}
    return [(holder[piece(dst, q)], k) for k, q in enumerate(positions)]


_STEPS = {
    "slice": _slice,
    "to_partial": _to_partial,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "permute": _permute,
}
