"""What a global tensor is before it has a value: shape, dtype, placement, signature; and how devices store it.

The storage is one ``jax.Array`` in which every device holds its own component: a leading dim for each axis that is
partial (the terms, stacked), then the tensor's dims, each as long as all stored pieces together. Where nothing is
partial and everything divides, the storage is the logical array itself.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .. import boxing
from ..errors import SignatureError
from ..pieces import is_even, piece_box, stored_shape
from ..placement import Placement
from ..shardings import SbpLike, placement_for, signature_on
from ..signature import Partial, Signature, broadcast, signature_for


class Spec:
    """Shape, dtype, placement and signature; hashed once, compared by identity first."""

    __slots__ = ("__dict__", "_hash", "dtype", "placement", "sbp", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any, placement: Placement, sbp: Signature) -> None:
        self.shape, self.dtype, self.placement, self.sbp = shape, dtype, placement, sbp
        self._hash = hash((shape, dtype, placement, sbp))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return make_spec, (self.shape, self.dtype, self.placement, self.sbp)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Spec)
            and self._hash == other._hash
            and (self.shape, self.dtype, self.sbp, self.placement)
            == (other.shape, other.dtype, other.sbp, other.placement)
        )

    @functools.cached_property
    def stacked(self) -> tuple[int, ...]:
        """The mesh axes that are partial: the storage's leading dims."""
        return tuple(a for a, c in enumerate(self.sbp) if isinstance(c, Partial))

    @functools.cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what each device stores, without the leading dims of partial axes."""
        return stored_shape(self.shape, self.sbp, self.placement.shape)

    @functools.cached_property
    def storage_shape(self) -> tuple[int, ...]:
        """The shape of the storage over all devices."""
        sizes = self.placement.shape
        dims = [
            n * math.prod(sizes[a] for a in self.sbp.split_axes(d)) for d, n in enumerate(self.local_shape)
        ]  # fmt: skip
        return (*(sizes[a] for a in self.stacked), *dims)

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether the storage is the logical array itself."""
        return not self.stacked and is_even(self.shape, self.sbp, self.placement.shape)

    @functools.cached_property
    def is_even(self) -> bool:
        """Whether every split divides."""
        return is_even(self.shape, self.sbp, self.placement.shape)

    @functools.cached_property
    def partition_spec(self) -> PartitionSpec:
        """The storage's ``PartitionSpec``."""
        names = self.placement.axis_names
        entries: list[Any] = [names[a] for a in self.stacked]
        for d in range(len(self.shape)):
            axes = tuple(names[a] for a in self.sbp.split_axes(d))
            entries.append(axes[0] if len(axes) == 1 else axes or None)
        return PartitionSpec(*entries)

    @functools.cached_property
    def sharding(self) -> NamedSharding:
        """The storage's sharding."""
        return NamedSharding(self.placement.mesh, self.partition_spec)

    @functools.cached_property
    def aval(self) -> jax.ShapeDtypeStruct:
        """The logical value's shape and dtype."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    def box(self, position: Sequence[int]) -> tuple[slice, ...]:
        """The logical indices of the component at a position of the mesh."""
        return tuple(slice(a, b) for a, b in piece_box(self.shape, self.sbp, self.placement.shape, position))

    def piece_shape(self, position: Sequence[int]) -> tuple[int, ...]:
        """The exact shape of the component at a position of the mesh."""
        return tuple(s.stop - s.start for s in self.box(position))

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Every position of the mesh, in rank order."""
        return np.ndindex(self.placement.shape)

    def with_(self, placement: Placement | None = None, sbp: Signature | None = None) -> "Spec":
        """The same tensor elsewhere, or in another signature."""
        return make_spec(self.shape, self.dtype, placement or self.placement, sbp or self.sbp)

    def __repr__(self) -> str:
        return f"{np.dtype(self.dtype).name}{list(self.shape)} ({self.sbp}) on {self.placement}"


@functools.lru_cache(maxsize=16384)
def make_spec(shape: tuple[int, ...], dtype: Any, placement: Placement, sbp: Signature) -> Spec:
    """A checked ``Spec``.

    Raises ``SignatureError`` where the signature does not fit the rank or the placement's axes, a piece would be
    empty, or values of the dtype have no terms to be partial in.
    """
    signature = signature_for(sbp, len(shape), placement.shape)
    boxing.check_partial(signature, dtype)
    stored_shape(shape, signature, placement.shape)
    return Spec(shape, dtype, placement, signature)


def spec_for(shape: Sequence[int] | int, dtype: Any, placement: Any, sbp: SbpLike | None) -> Spec:
    """A ``Spec`` from what a user writes; ``sbp`` None is broadcast on every axis."""
    where = placement_for(placement, sbp)
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise SignatureError(f"shape {sizes} has negative lengths")
    signature = Signature((broadcast,) * where.ndim) if sbp is None else signature_on(sbp, len(sizes), where)
    return make_spec(sizes, np_dtype(dtype), where, signature)


def np_dtype(dtype: Any) -> Any:
    """A dtype as JAX has it: 64 bits become 32 unless x64 is enabled. Raises ``SignatureError`` for strings etc."""
    try:
        if jnp.issubdtype(dtype, jax.dtypes.extended):
            return dtype
        known = np.dtype(dtype)
    except TypeError as error:
        raise SignatureError(f"{dtype!r} is no dtype; possible: names like 'float32', or jnp.float32") from error
    if known.kind in "OUSMmV" and not jnp.issubdtype(known, np.number):
        raise SignatureError(f"a tensor's elements are numbers or bools, got dtype {known}")
    return jax.dtypes.canonicalize_dtype(known)
