"""Calls of the host with the 64-bit types of the program that calls.

XLA calls the host on threads of its own. ``with jax.enable_x64(True):`` holds only in the thread that entered it, and
JAX converts what passes between device and host by the setting of the thread that calls (0.10 to 0.12): an int64 comes
as an int32, and one that is given back is refused. An error on one device leaves the others waiting for it. So 64-bit
numbers pass as pairs of 32-bit words here, and the function runs under the setting that the program was traced under.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_WIDE = ("int64", "uint64", "float64", "complex128")


def is_wide(x: Any) -> bool:
    """Whether JAX knows the type of an array (or of its aval) only where ``enable_x64`` is on."""
    return str(x.dtype) in _WIDE


def from_device(x: Any) -> Any:
    """An array as it is sent: one of a 64-bit type as 32-bit words, with one more dimension at the end."""
    if not is_wide(x):
        return x
    if x.dtype == np.complex128:
        x = jnp.stack([jnp.real(x), jnp.imag(x)], axis=-1)
        return lax.bitcast_convert_type(x, np.uint32).reshape(*x.shape[:-1], 4)
    return lax.bitcast_convert_type(x, np.uint32)


def on_device(words: Any, aval: Any) -> Any:
    """``from_device`` undone, for what the host gave back."""
    if not is_wide(aval):
        return words
    if aval.dtype == np.complex128:
        pair = lax.bitcast_convert_type(words.reshape(*words.shape[:-1], 2, 2), np.float64)
        return lax.complex(pair[..., 0], pair[..., 1])
    return lax.bitcast_convert_type(words, aval.dtype)


def as_sent(aval: Any) -> jax.ShapeDtypeStruct:
    """The shape and type that the host gives back for a result."""
    if not is_wide(aval):
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return jax.ShapeDtypeStruct((*aval.shape, np.dtype(aval.dtype).itemsize // 4), np.uint32)


def under_setting(function: Callable[..., Any], args: Sequence[Any], results: Sequence[Any]) -> Callable[..., Any]:
    """``function`` of these arguments, for arguments as they are sent; its results (flat) as they are sent back.

    Raises ``RuntimeError``, as JAX does, where a result is of another type than was said.
    """
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    dtypes = [x.dtype for x in args]
    wide = [is_wide(x) for x in args]

    def of_words(words: Any, dtype: Any) -> Any:
        numbers = np.asarray(words, order="C").view(dtype)[..., 0]
        return jax.device_put(numbers)

    def words_of(k: int, y: Any) -> np.ndarray:
        y = np.asarray(y)
        y = y.astype(jax.dtypes.canonicalize_dtype(y.dtype), copy=False)
        if not is_wide(results[k]):
            return y
        if y.dtype != results[k].dtype:
            raise RuntimeError(
                f"Incorrect output dtype for return value #{k}: Expected: {results[k].dtype}, Actual: {y.dtype}"
            )
        return np.asarray(y, order="C")[..., None].view(np.uint32)

    def call(*sent: Any) -> list[np.ndarray]:
        with jax.enable_x64(x64):
            found = function(*[of_words(x, d) if w else x for x, d, w in zip(sent, dtypes, wide, strict=True)])
            return [words_of(k, y) for k, y in enumerate(jax.tree.leaves(found))]

    return call
