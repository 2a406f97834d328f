"""``sbp.numpy``: the names of ``jax.numpy`` on global tensors; ``sbp.apply``: any JAX function."""

import difflib
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..shardings import PlacementLike, SbpLike, placement_for
from ..signature import Signature
from .call import call
from .global_tensor import GlobalTensor


def apply(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``fn(*args, **kwargs)``, a JAX function of arrays, on global tensors: planned as a whole, compiled once.

    Global tensors and arrays in ``args`` and ``kwargs`` (nested in trees too) become arrays of their logical shapes
    inside ``fn``; so do floats in ``args``. Everything else is fixed when it is compiled. Results are global tensors
    in the signatures that move the fewest bytes. Compiled steps are kept as long as ``fn`` itself (of a method, its
    object): pass the same function, not a new lambda each time, and a pure one, as to ``jax.jit``.

    Raises ``PlacementError`` where tensors are on different placements, or there is none.
    """
    return call(GlobalTensor, fn, args, kwargs)


# What is known of a tensor without its value.
_OF_SHAPES = {"shape", "ndim", "size", "result_type", "promote_types", "issubdtype", "can_cast", "finfo", "iinfo",
              "iscomplexobj", "isrealobj", "isscalar", "broadcast_shapes"}  # fmt: skip


class Namespace:
    """The functions of a module of ``jax.numpy``, taking and giving global tensors.

    Constructors take ``placement=`` and ``sbp=``; every function does, for results whose signature is to be fixed.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.__doc__ = f"``{module.__name__}`` on global tensors."

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(self._module, name)
        except AttributeError:
            near = difflib.get_close_matches(name, dir(self._module), n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise AttributeError(f"{self._module.__name__} has no {name!r}{hint}") from None
        if isinstance(found, ModuleType):
            found = Namespace(found)
        elif name in _OF_SHAPES:
            found = _on_shapes(found)
        elif callable(found) and not isinstance(found, type) and not _is_scalar_type(found):
            found = _on_tensors(found)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __repr__(self) -> str:
        return f"<{self._module.__name__} on global tensors>"


def _is_scalar_type(x: Any) -> bool:
    """``jnp.float32`` and its kin are callables that make arrays, and used as dtypes."""
    try:
        return isinstance(np.dtype(x), np.dtype) and hasattr(x, "dtype")
    except TypeError:
        return False


def _on_shapes(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return fn(*(x.spec.aval if isinstance(x, GlobalTensor) else x for x in args), **kwargs)

    return wrapped


def _on_tensors(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapped(*args: Any, placement: PlacementLike | None = None, sbp: SbpLike | None = None, **kwargs: Any) -> Any:
        where = None if placement is None and not isinstance(sbp, NamedSharding) else placement_for(placement, sbp)
        asked = sbp if sbp is None or isinstance(sbp, PartitionSpec | NamedSharding) else Signature.of(sbp)
        return call(GlobalTensor, fn, args, kwargs, placement=where, sbp=asked)

    return wrapped


numpy = Namespace(jnp)


def matmul(x: Any, y: Any) -> GlobalTensor:
    """The matrix product of two global tensors (OneFlow has it at the top)."""
    return numpy.matmul(x, y)
