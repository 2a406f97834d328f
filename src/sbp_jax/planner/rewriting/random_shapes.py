"""Random shapes and types of the small programs that substitutions are tested on."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

_FLOATS = (np.float32, np.float16, jax.numpy.bfloat16)


def array(shape: Sequence[int], dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    """An argument of a random program."""
    return jax.ShapeDtypeStruct(tuple(map(int, shape)), dtype)


def lengths(random: np.random.Generator, n: int) -> list[int]:
    """Random lengths of dims, 1 included."""
    return [int(x) for x in random.integers(1, 6, size=n)]


def dtype_of(random: np.random.Generator, *more: Any) -> Any:
    """One of the float types, or of those given."""
    types = (*_FLOATS, *more)
    return types[random.integers(len(types))]


def wider(random: np.random.Generator, dtype: Any) -> Any:
    """What products of a type are summed in: a type of 32 bits, or None for the type itself."""
    wide = np.int32 if np.dtype(dtype).kind == "i" else np.float32
    return wide if random.integers(2) else None
