"""The collectives on one device's tensor, inside a ``shard_map``: JAX's own, put together where JAX has none.

A kernel is data, so that a compiled program is found again by it. ``axes`` are the mesh axes whose devices make up a
group; the rank of a device in its group counts along them, the outermost first.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import SbpError
from .reduce_op import ReduceOp, reduced_dtype

SAME, BY_RANK, AT_ROOT = "same", "by rank", "at root"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A collective with its options.

    ``name``: the public function's. ``root``: the rank that sends or receives, of those that have one. ``listed``: the
    operand is a list of one tensor for each rank (stacked), or so is the result.
    """

    name: str
    axes: tuple[str, ...]
    op: ReduceOp | None = None
    root: int = 0
    listed: bool = False

    @property
    def gives(self) -> str:
        """Who has the result: all the same, each its own, or the root alone."""
        return _GIVES[self.name]

    def check(self, shape: tuple[int, ...], dtype: Any, size: int) -> None:
        """Raises ``SbpError`` for a tensor that the collective cannot take."""
        if self.op is not None:
            reduced_dtype(self.op, dtype)
        if not 0 <= self.root < size:
            raise SbpError(f"{self.name}: rank {self.root} of a group of {size}: ranks go from 0 to {size - 1}")
        if self.name not in _CUTS:
            return
        if not shape:
            raise SbpError(f"{self.name} cuts dim 0 into {size} parts, one for each rank, and the tensor has no dims")
        if self.listed and shape[0] != size:
            raise SbpError(
                f"{self.name} takes a list of {size} tensors, one for each rank of the group; got {shape[0]}"
            )
        if shape[0] % size:
            up = -shape[0] % size
            raise SbpError(
                f"{self.name} cuts dim 0 into {size} equal parts, one for each rank, and {shape[0]} (of shape "
                f"{shape}) does not divide: pad it by {up} to {shape[0] + up}, or pass a list of {size} tensors"
            )

    def shape(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        """The shape of a device's result (of each tensor of it, where it is a list)."""
        if self.name == "all_gather_into_tensor":
            return (size * shape[0], *shape[1:]) if shape else (size,)
        if self.name in ("reduce_scatter", "scatter"):
            return shape[1:] if self.listed else (shape[0] // size, *shape[1:])
        if self.name == "all_to_all" and self.listed:
            return shape[1:]
        return shape

    def dtype(self, dtype: Any) -> Any:
        """The dtype of a device's result."""
        return dtype if self.op is None else reduced_dtype(self.op, dtype)

    def is_list(self) -> bool:
        """Whether a device's result is a list of one tensor for each rank."""
        return self.name in ("all_gather", "gather") or (self.name == "all_to_all" and self.listed)

    def __call__(self, x: Any) -> Any:
        """This device's result: an array, or a tuple of one for each rank."""
        size = math.prod(lax.axis_size(name) for name in self.axes)
        self.check(x.shape, x.dtype, size)
        if 0 in x.shape:  # Nothing to move, and a collective takes no empty operand.
            empty = jnp.zeros(self.shape(x.shape, size), self.dtype(x.dtype))
            return (empty,) * size if self.is_list() else empty
        y = _KERNELS[self.name](self, x, size)
        return tuple(y[rank] for rank in range(size)) if self.is_list() else y

    @property
    def group(self) -> Any:
        return self.axes[0] if len(self.axes) == 1 else self.axes

    def rank(self) -> Any:
        """This device's rank in its group."""
        rank: Any = 0
        for name in self.axes:
            rank = rank * lax.axis_size(name) + lax.axis_index(name)
        return rank


def _all_reduce(k: Kernel, x: Any, size: int) -> Any:
    if k.op is ReduceOp.MAX:
        return lax.pmax(x, k.group)
    if k.op is ReduceOp.MIN:
        return lax.pmin(x, k.group)
    assert k.op is not None
    x = x.astype(reduced_dtype(k.op, x.dtype))
    if k.op is ReduceOp.PRODUCT:
        return _product(k, x, size)
    total = lax.psum(x, k.group)
    return total / jnp.asarray(size, x.dtype) if k.op is ReduceOp.MEAN else total


def _product(k: Kernel, x: Any, size: int) -> Any:
    """As a ring does a sum: everybody multiplies its share of the elements, then all shares go round."""
    flat = jnp.pad(x.reshape(-1), (0, -x.size % size), constant_values=1)
    terms = lax.all_to_all(flat.reshape(size, -1), k.group, 0, 0, tiled=True)
    share = jnp.prod(terms, axis=0, dtype=x.dtype)
    return lax.all_gather(share, k.group, tiled=True)[: x.size].reshape(x.shape)


def _reduce(k: Kernel, x: Any, size: int) -> Any:
    y = _all_reduce(k, x, size)
    return jnp.where(k.rank() == k.root, y, x.astype(y.dtype))


def _reduce_scatter(k: Kernel, x: Any, size: int) -> Any:
    assert k.op is not None
    x = x.astype(reduced_dtype(k.op, x.dtype))
    if k.op in (ReduceOp.SUM, ReduceOp.MEAN):
        y = lax.psum_scatter(x, k.group, tiled=not k.listed)
        return y / jnp.asarray(size, x.dtype) if k.op is ReduceOp.MEAN else y
    terms = x if k.listed else x.reshape(size, x.shape[0] // size, *x.shape[1:])
    terms = lax.all_to_all(terms, k.group, 0, 0, tiled=True)
    if k.op is ReduceOp.PRODUCT:
        return jnp.prod(terms, axis=0, dtype=x.dtype)
    return (jnp.max if k.op is ReduceOp.MAX else jnp.min)(terms, axis=0)


def _all_gather(k: Kernel, x: Any, size: int) -> Any:
    return lax.all_gather(x, k.group)


def _all_gather_into_tensor(k: Kernel, x: Any, size: int) -> Any:
    return lax.all_gather(x, k.group, tiled=x.ndim > 0)


def _all_to_all(k: Kernel, x: Any, size: int) -> Any:
    x = lax.optimization_barrier(x)  # within a larger program XLA for CPUs may refuse it: see boxing.collectives
    return lax.all_to_all(x, k.group, 0, 0, tiled=True)


def _broadcast(k: Kernel, x: Any, size: int) -> Any:
    """A sum in which the others have zeros: of the bits, so that -0.0 and NaNs arrive as they are."""
    bits = _bits(x)
    y = lax.psum(jnp.where(k.rank() == k.root, bits, jnp.zeros_like(bits)), k.group)
    return _from_bits(y, x.dtype)


def _bits(x: Any) -> Any:
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([_bits(x.real), _bits(x.imag)])
    if jnp.issubdtype(x.dtype, jnp.floating):
        return lax.bitcast_convert_type(x, _WORDS[jnp.finfo(x.dtype).bits])
    return x


def _from_bits(y: Any, dtype: Any) -> Any:
    if dtype == jnp.bool_:
        return y.astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = jnp.finfo(dtype).dtype
        return lax.complex(_from_bits(y[0], part), _from_bits(y[1], part))
    return lax.bitcast_convert_type(y, dtype) if jnp.issubdtype(dtype, jnp.floating) else y


_WORDS = {4: jnp.uint4, 8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}


def _scatter(k: Kernel, x: Any, size: int) -> Any:
    """Everybody sends its parts, and the root's are kept: JAX has no collective in which one alone sends."""
    parts = x if k.listed else x.reshape(size, x.shape[0] // size, *x.shape[1:])
    return lax.all_to_all(parts, k.group, 0, 0, tiled=True)[k.root]


_KERNELS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _all_gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
_GIVES = {
    "all_reduce": SAME,
    "all_gather": SAME,
    "all_gather_into_tensor": SAME,
    "all_to_all": BY_RANK,
    "broadcast": SAME,
    "gather": AT_ROOT,
    "reduce": BY_RANK,
    "reduce_scatter": BY_RANK,
    "scatter": BY_RANK,
}
# Those that cut dim 0 of their operand into one part for each rank.
_CUTS = ("all_to_all", "reduce_scatter", "scatter")


def on_tracer(k: Kernel, x: Any) -> Any:
    """A kernel inside a function that JAX traces, where the axes must be bound (``shard_map``)."""
    unbound = [name for name in k.axes if not _is_bound(name)]
    if unbound:
        raise SbpError(
            f"{k.name}: the value is traced, and the axis {', '.join(map(repr, unbound))} is not bound here: inside "
            "jit and auto_parallel there is one logical value, not one for each device. Call it inside jax.shard_map "
            "with group= an axis of its mesh, or outside of the traced function"
        )
    return k(x)


def bound_axes() -> tuple[str, ...]:
    """The mesh axes of the ``shard_map`` around, none outside of one."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in mesh.axis_names if _is_bound(name))


def _is_bound(name: str) -> bool:
    try:
        lax.axis_size(name)
    except (NameError, KeyError):
        return False
    return True
