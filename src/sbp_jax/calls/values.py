"""The values of a call: their types and shapes, global tensors as arrays, moves to where a plan wants them."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from .._compat import is_batched, is_tracer, without_nan_checks
from ..differences import shortened
from ..errors import PlanError
from ..tensor import GlobalTensor
from ..tensor.incoming import on_devices
from .roles import Call


def aval(x: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and weak type of an argument, as ``jax.jit`` sees it; of anything with a shape and a dtype."""
    try:
        found = jax.typeof(x)
    except TypeError:
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            raise
        return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))
    return jax.ShapeDtypeStruct(found.shape, found.dtype, weak_type=found.weak_type)


def look(x: Any) -> tuple[Any, ...]:
    """What of an argument a program is traced for: shape, dtype, weak type. Hashable."""
    try:
        found = jax.typeof(x)
    except TypeError:
        found = aval(x)
    return found.shape, found.dtype, found.weak_type


def described(call: Call) -> dict[str, Any]:
    """What a call's program depends on, by path, to say what differs between calls."""
    leaves = jax.tree_util.tree_flatten_with_path((call.dynamic, call.kwargs))[0]
    found: dict[str, Any] = {}
    for path, x in leaves:
        shape, dtype, weak = look(x)
        text = f"{dtype}{list(shape)}{' (weakly typed)' if weak else ''}"
        found[jax.tree_util.keystr(path[1:], simple=True, separator="/")] = Shown(text)
    found |= {f"static argument {i}": call.args[i] for i in call.static}
    return found | {f"static argument {k}": x for k, x in call.fixed.items()}


class Shown(str):
    """A text that stands for itself in messages, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def check_arrays(name: str, dynamic: Any, kwargs: Any, names: Sequence[str], cause: Exception) -> None:
    """Raise ``PlanError`` for what among the arguments is no array, by path."""
    for path, x in jax.tree_util.tree_flatten_with_path((dynamic, kwargs))[0]:
        try:
            look(x)
        except (TypeError, ValueError):
            text = jax.tree_util.keystr(path[1:], simple=True, separator="/")
            root = str(names[path[1].idx]) if path[0].idx == 0 else ""
            named = f" (of {root})" if root and not root.isdigit() else ""
            raise PlanError(
                f"argument {text}{named} of {name} is a {type(x).__name__}, {shortened(repr(x))}: a planned function "
                "takes arrays, numbers and trees of them. Take it out of the tree, or name a Python value that the "
                "function only looks at in static_argnames="
            ) from cause


def typed(x: Any) -> Any:
    """A static argument as a key: by type and value, as ``jax.jit`` compares them, in tuples too: 2 is not 2.0."""
    return (type(x), *map(typed, x)) if isinstance(x, tuple) else (type(x), x)


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


def is_on_mesh(x: Any) -> bool:
    """Whether an array lies as a step's results do, which to JAX makes another type of it (0.10.2)."""
    return isinstance(x, jax.Array) and not is_tracer(x) and isinstance(x.sharding, NamedSharding)


def is_bound(x: Any, sharding: NamedSharding) -> bool:
    """Whether a call would refuse an argument, or move it anew, as it is.

    In a run of several processes JAX refuses numpy arrays that are to be split, on a process's own devices too.
    """
    several = jax.process_count() > 1 or not sharding.is_fully_addressable
    return several or (isinstance(x, jax.Array) and (is_tracer(x) or getattr(x, "committed", True)))


def moved(values: Sequence[tuple[str, Any, NamedSharding]], name: str) -> list[Any]:
    """Arguments of function ``name``, with their paths, in their shardings.

    On devices of several processes, what each process has for itself must be equal: ``ProcessError`` otherwise.
    """
    placed = [(f"argument {path}", x, s) for path, x, s in values if not is_tracer(x)]
    with without_nan_checks():
        found = iter(on_devices(placed, name))
        return [_traced(x, s) if is_tracer(x) else next(found) for _, x, s in values]


def _traced(x: Any, sharding: NamedSharding) -> Any:
    """``x`` in ``sharding``, inside a trace.

    The transpose of ``device_put`` sends a cotangent back to where its value was: it cannot go there from devices of
    several processes (JAX 0.10.2). Nor can random keys go where ``device_put`` sends them. And under ``vmap`` it splits
    the mapped dim in place of the first one of the value: there the value goes to all devices whole, first.
    """
    if sharding.is_fully_addressable:
        if not is_batched(x):
            return jax.device_put(x, sharding)
        x = jax.device_put(x, NamedSharding(sharding.mesh, PartitionSpec()))
    return jax.jit(lambda value: value, out_shardings=sharding)(x)
