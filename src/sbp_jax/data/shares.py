"""Which rows of a global batch this process's devices hold, and the global arrays made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import SignatureError
from ..placement import Placement
from ..shardings import is_sbp, signature_on, to_sharding
from ..signature import Partial, Signature, Split, broadcast


@dataclass(frozen=True, slots=True)
class Shares:
    """The signatures asked for, on their placement: one for all leaves of a batch, or a tree of them."""

    placement: Placement
    sbp: Any

    def rows(self, size: int) -> np.ndarray:
        """The rows of a batch of ``size`` that this process's devices hold, ascending."""
        spans: set[tuple[int, int]] = set()
        for asked in self._asked():
            sharding = to_sharding(self._even(self._of_rows(asked), (size,)), self.placement, 1)
            for index in sharding.addressable_devices_indices_map((size,)).values():
                start, stop, _ = (index or (slice(None),))[0].indices(size)
                spans.add((start, stop))
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in spans)]))

    def check(self, batch: int) -> None:
        """That a batch of this size can be split as asked. Raises ``SignatureError``."""
        for asked in self._asked():
            signature = self._of_rows(asked)
            if any(isinstance(c, Partial) for c in signature):
                raise SignatureError(f"sbp={asked!s}: data is split or broadcast; P is for values that devices add up")
            pieces = self._pieces(signature)
            if batch % pieces:
                near = [n for n in (batch // pieces * pieces, (batch // pieces + 1) * pieces) if n]
                raise SignatureError(
                    f"batch={batch} does not divide by {pieces}, the pieces that ({signature}) cuts it into on "
                    f"{self.placement}; nearest that do: {', '.join(map(str, near))}. Or use B on one of the axes"
                )

    def placed(self, local: Any, rows: np.ndarray, size: int) -> Any:
        """The global arrays of a batch of ``size``, given its ``rows`` stacked.

        A batch that does not divide (an epoch's last) is whole along as many of the axes, inner ones first, as it
        must be.
        """
        leaves, tree = jax.tree_util.tree_flatten_with_path(local)
        return jax.tree.unflatten(
            tree,
            [
                self._array(x, rows, size, asked, jax.tree_util.keystr(path))
                for (path, x), asked in zip(leaves, self._spread(local), strict=True)
            ],
        )

    def _array(self, x: np.ndarray, rows: np.ndarray, size: int, asked: Any, name: str) -> jax.Array:
        shape = (size, *x.shape[1:])
        try:
            signature = signature_on(asked, len(shape), self.placement)
        except SignatureError as error:
            raise SignatureError(f"leaf batch{name} of shape {shape}: {error}") from None
        for dim in range(1, len(shape)):
            pieces = self._pieces(signature, dim)
            if shape[dim] % pieces:
                raise SignatureError(
                    f"leaf batch{name} of shape {shape}: ({signature}) cuts dimension {dim} into {pieces} pieces, "
                    f"which do not divide {shape[dim]}. Use B there, or pad the examples in transform="
                )
        sharding = to_sharding(self._even(signature, shape), self.placement, len(shape))

        def piece(index: tuple[slice, ...] | None) -> np.ndarray:
            first, *rest = index or (slice(None),) * len(shape)
            start, stop, _ = first.indices(size)
            # A device's rows follow each other in the batch, so they do so among this process's rows.
            at = int(np.searchsorted(rows, start))
            return x[(slice(at, at + stop - start), *rest)]

        return jax.make_array_from_callback(shape, sharding, piece, dtype=x.dtype)

    def _asked(self) -> list[Any]:
        return jax.tree.leaves(self.sbp, is_leaf=self._is_one)

    def _spread(self, local: Any) -> list[Any]:
        """The signature asked for each leaf: ``sbp`` is a prefix of the batch's tree."""
        try:
            spread = jax.tree.map(
                lambda asked, part: jax.tree.map(lambda _: _One(asked), part), self.sbp, local, is_leaf=self._is_one
            )
        except ValueError as error:
            raise SignatureError(f"sbp does not have the structure of a batch: {error}") from None
        return [one.asked for one in jax.tree.leaves(spread, is_leaf=lambda x: isinstance(x, _One))]

    def _is_one(self, x: Any) -> bool:
        """One signature; also written as a list of its components' texts, which alone would be too short for a mesh."""
        return is_sbp(x) or (
            isinstance(x, tuple | list)
            and len(x) == self.placement.ndim
            and all(isinstance(c, str) and "," not in c for c in x)
        )

    def _of_rows(self, asked: Any) -> Signature:
        """What a signature says of dimension 0 whatever the rank of the leaf.

        A dimension counted from the end may be any: all rows are read until the leaf is known.
        """
        if asked is None:
            raise SignatureError("sbp of a batch is None; possible: 'S(0)', 'B', a component for each mesh axis")
        if isinstance(asked, NamedSharding | PartitionSpec):
            spec = asked.spec if isinstance(asked, NamedSharding) else asked
            signature = signature_on(asked, max(len(spec), 1), self.placement)
        else:
            signature = Signature.of(asked)
            if len(signature) != self.placement.ndim:
                signature_on(signature, 1, self.placement)
        return Signature(tuple(c if not isinstance(c, Split) or c.dim == 0 else broadcast for c in signature))

    def _pieces(self, signature: Signature, dim: int = 0) -> int:
        return int(np.prod([self.placement.shape[a] for a in signature.split_axes(dim)], dtype=np.int64))

    def _even(self, signature: Signature, shape: Sequence[int]) -> Signature:
        """``signature`` with dimension 0 whole along as many axes, inner ones first, as do not divide it."""
        components = list(signature)
        for axis in reversed(signature.split_axes(0)):
            if shape[0] % self._pieces(Signature(tuple(components))) == 0:
                break
            components[axis] = broadcast
        return Signature(tuple(components))


@dataclass(frozen=True, slots=True)
class _One:
    asked: Any
