"""A call's arguments moved to where a plan wants them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from . import capture
from ._compat import is_tracer
from .tensor import GlobalTensor


def _is_tensor(x: Any) -> bool:
    return isinstance(x, GlobalTensor)


def has_tensors(tree: Any) -> bool:
    """Whether a tree has global tensors in it."""
    return any(map(_is_tensor, jax.tree.leaves(tree, is_leaf=_is_tensor)))


def as_arrays(tree: Any) -> Any:
    """A tree with global tensors as their logical arrays: what is partial is reduced, on its own devices."""
    return jax.tree.map(lambda x: x.array if _is_tensor(x) else x, tree, is_leaf=_is_tensor)


def is_there(x: Any, sharding: NamedSharding) -> bool:
    """Whether an array lies as ``sharding`` says."""
    return isinstance(x, jax.Array) and not is_tracer(x) and x.sharding.is_equivalent_to(sharding, x.ndim)


def is_bound(x: Any, sharding: NamedSharding) -> bool:
    """Whether a call would refuse an argument, or move it anew, as it is."""
    return not sharding.is_fully_addressable or (
        isinstance(x, jax.Array) and (is_tracer(x) or getattr(x, "committed", True))
    )


def moved(x: Any, sharding: NamedSharding) -> Any:
    """``x`` in ``sharding``. ``device_put`` cannot take random keys to devices of other processes (JAX 0.10.2)."""
    if not sharding.is_fully_addressable and jnp.issubdtype(capture.aval(x).dtype, jax.dtypes.prng_key):
        return jax.jit(lambda key: key, out_shardings=sharding)(x)
    return jax.device_put(x, sharding)
