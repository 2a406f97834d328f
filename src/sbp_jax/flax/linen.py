"""linen modules: ``Model.init`` that gives variables born sharded."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import is_tracing
from ..errors import PlanError
from .born import Init, decide, mesh_of, shardings_of
from .pins import Asked
from .where import where_of


def wrap_init(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A class's ``init``, its variables born sharded where the class says."""

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or self.scope is not None:
            return plain(self, *args, **kwargs)
        name = type(self).__name__
        _check_sample(self, name, args, kwargs)
        where = where_of(type(self))
        p = where.mesh_placement()
        mesh = mesh_of(p, name)
        leaves, tree = jax.tree.flatten((args, kwargs))
        # A shape stands for zeros: parameters rarely depend on the sample, and zeros of a shape need no memory then.
        is_array = [isinstance(x, jax.Array | np.ndarray) for x in leaves]

        def whole(*arrays: Any) -> Any:
            supply = iter(arrays)
            given = [
                next(supply) if there else jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x
                for x, there in zip(leaves, is_array, strict=True)
            ]
            args, kwargs = jax.tree.unflatten(tree, given)
            return plain(self, *args, **kwargs)

        traced = Init.of(whole, tuple(x for x, there in zip(leaves, is_array, strict=True) if there), f"{name}.init")
        asked = [Asked(where.pins, "", f"sbp of {name}")] if where.pins else []
        signatures = decide(traced.shapes, asked, where, p, is_rooted=False)
        made = traced.on(mesh, shardings_of(traced.shapes, signatures, p))
        return jax.tree.unflatten(jax.tree.structure(traced.shapes), made)

    return init


def _check_sample(module: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An error for a missing sample input, before linen's own, which speaks of ``__call__``."""
    options = {k: v for k, v in kwargs.items() if k not in ("method", "mutable", "capture_intermediates", "rngs")}
    given = args if "rngs" in kwargs else args[1:]
    method = kwargs.get("method")
    method = getattr(module, method) if isinstance(method, str) else method
    try:
        function = type(module).__call__ if method is None else getattr(method, "__func__", method)
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    if not args and "rngs" not in kwargs:
        raise PlanError(f"{name}.init takes a random key and a sample input: {name}(...).init(jax.random.key(0), x)")
    try:
        signature.bind(module, *given, **options)
    except TypeError as error:
        raise PlanError(
            f"{name}.init needs a sample input for {name}.{getattr(function, '__name__', '__call__')}{signature}: "
            f"{error}. Write {name}(...).init(jax.random.key(0), x), where x is a batch, or its shape as a "
            "jax.ShapeDtypeStruct"
        ) from None
