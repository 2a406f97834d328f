"""Examples into batches: trees of arrays, stacked along a new dimension 0."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import DataError


@dataclass(slots=True)
class Collator:
    """Stacks examples, and holds all of them to the structure, shapes and types of the first one that it met."""

    structure: Any = None
    looks: list[tuple[str, tuple[int, ...], np.dtype]] = field(default_factory=list)

    def stack(self, examples: Sequence[Any], numbers: Sequence[int]) -> Any:
        """The tree of stacked arrays. ``numbers`` name the examples in errors (``DataError``)."""
        rows = [self._leaves(example, number) for example, number in zip(examples, numbers, strict=True)]
        columns = [np.stack(leaves) for leaves in zip(*rows, strict=True)]
        return jax.tree.unflatten(self.structure, self._as_jax(columns))

    def adopt(self, batch: Any) -> Any:
        """A tree that is stacked already."""
        found, structure = jax.tree_util.tree_flatten_with_path(batch)
        columns = [np.asarray(x) for _, x in found]
        if self.structure is None:
            self.structure = structure
            self.looks = [
                (jax.tree_util.keystr(p), x.shape[1:], x.dtype) for (p, _), x in zip(found, columns, strict=True)
            ]
        return jax.tree.unflatten(structure, self._as_jax(columns))

    def nothing(self) -> Any:
        """No examples at all, in the shape of a batch."""
        return jax.tree.unflatten(
            self.structure, self._as_jax([np.empty((0, *shape), dtype) for _, shape, dtype in self.looks])
        )

    def _leaves(self, example: Any, number: int) -> list[np.ndarray]:
        if example is None:
            raise DataError(
                f"example {number} is None. A Grain MapDataset gives None for what .filter() left out: make it an "
                "iterable (.to_iter_dataset()), or filter before"
            )
        found, structure = jax.tree_util.tree_flatten_with_path(example)
        leaves = [_array(x, jax.tree_util.keystr(path), number) for path, x in found]
        if self.structure is None:
            self.structure = structure
            self.looks = [
                (jax.tree_util.keystr(path), x.shape, x.dtype) for (path, _), x in zip(found, leaves, strict=True)
            ]
        if structure != self.structure:
            raise DataError(
                f"example {number} has the structure {structure}, the first one {self.structure}: all must be alike"
            )
        for x, (name, shape, dtype) in zip(leaves, self.looks, strict=True):
            if x.shape != shape or x.dtype != dtype:
                raise DataError(
                    f"leaf example{name} of example {number} is {x.dtype}{list(x.shape)}, of the first one "
                    f"{dtype}{list(shape)}: all must be alike. Pad, cut or convert in transform="
                )
        return leaves

    def _as_jax(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [_narrowed(x, name) for x, (name, *_) in zip(columns, self.looks, strict=True)]


def _array(x: Any, name: str, number: int) -> np.ndarray:
    try:
        array = np.asarray(x)
    except (TypeError, ValueError) as error:
        raise DataError(f"leaf example{name} of example {number} is no array: {error}") from error
    _check_type(array.dtype, f"leaf example{name} of example {number}", f"of type {type(x).__name__}")
    return array


def _check_type(dtype: np.dtype, words: str, kind: str) -> None:
    # To numpy a duration is a signed integer.
    if dtype.kind == "m" or not any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_)):
        raise DataError(
            f"{words} is {kind} ({dtype}): devices hold numbers only. Make numbers of it in transform= (tokens of "
            "text, seconds of a date), or leave it out there"
        )


def _narrowed(x: np.ndarray, name: str) -> np.ndarray:
    """In the type that JAX has for it: 32 bits where 64 are not enabled."""
    _check_type(x.dtype, f"leaf batch{name}", "an array")
    narrow = np.dtype(jax.dtypes.canonicalize_dtype(x.dtype))
    if narrow == x.dtype:
        return x
    if np.issubdtype(narrow, np.integer) and x.size:
        limits = np.iinfo(narrow)
        low, high = x.min(), x.max()
        if low < limits.min or high > limits.max:
            raise DataError(
                f"leaf batch{name} is {x.dtype} with values from {low} to {high}, which {narrow} cannot hold. Enable "
                "64 bits (jax.config.update('jax_enable_x64', True)), or make smaller numbers of them in transform="
            )
    return x.astype(narrow)
