"""Pieces of different lengths, inside a ``shard_map``: between one run of elements and equal, padded blocks.

Along a dimension that a collective gathers or cuts, a device holds ``length`` elements (padded to ``stored``), or
their cut into ``parts`` balanced pieces, each padded to ``block``. What lies in the padding is never read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..pieces import longest, span
from ..signature import Signature


@dataclass(frozen=True, slots=True)
class Blocks:
    """How one axis cuts a dim. ``length`` is traced where outer axes cut it unevenly already."""

    dim: int
    length: Any
    stored: int
    parts: int
    block: int

    def piece(self, k: Any) -> tuple[Any, Any]:
        """Start and length of piece ``k`` (traced, any shape)."""
        return span(self.length, (self.parts,), (k,))

    def spread(self, x: Any) -> Any:
        """The run as ``parts`` padded blocks side by side."""
        k, within = jnp.divmod(jnp.arange(self.parts * self.block), self.block)
        return jnp.take(x, self.piece(k)[0] + within, axis=self.dim, mode="clip")

    def compact(self, x: Any) -> Any:
        """The padded blocks as one run."""
        base, more = self.length // self.parts, self.length % self.parts
        at = jnp.arange(self.stored)
        first = more * (base + 1)  # where the shorter pieces begin
        k = jnp.where(at < first, at // (base + 1), more + (at - first) // base)
        return jnp.take(x, k * self.block + at - self.piece(k)[0], axis=self.dim, mode="clip")

    def cut(self, x: Any, k: Any) -> Any:
        """Piece ``k`` of the run, padded."""
        return jnp.take(x, self.piece(k)[0] + jnp.arange(self.block), axis=self.dim, mode="clip")

    def place(self, x: Any, k: Any, filler: Any) -> Any:
        """Piece ``k`` at its place in a run of ``filler``."""
        start, length = self.piece(k)
        at = jnp.arange(self.stored) - start
        moved = jnp.take(x, at, axis=self.dim, mode="clip")
        shape = [1] * x.ndim
        shape[self.dim] = self.stored
        return jnp.where(((at >= 0) & (at < length)).reshape(shape), moved, filler)


def blocks(shape: Sequence[int], signature: Signature, dim: int, axis: int, axis_names: Sequence[str]) -> Blocks | None:
    """How ``axis`` cuts ``dim`` within what the axes outside it in ``signature`` leave; None where all is even."""
    outer = [a for a in signature.split_axes(dim) if a < axis]
    sizes = [lax.axis_size(axis_names[a]) for a in outer]
    parts, n = lax.axis_size(axis_names[axis]), shape[dim]
    total = parts
    for size in sizes:
        total *= size
    if n % total == 0:
        return None
    length = span(n, sizes, [lax.axis_index(axis_names[a]) for a in outer])[1]
    return Blocks(dim, length, longest(n, sizes), parts, longest(n, [*sizes, parts]))
