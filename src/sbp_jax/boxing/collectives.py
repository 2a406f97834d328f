"""Routes executed: explicit collectives on a device's own piece, inside a ``shard_map`` manual on all axes."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..signature import Broadcast, Partial, Split
from .routes import Route
from .table import Step

_REDUCE = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


def apply(route: Route, x: Any, axis_names: Sequence[str]) -> Any:
    """This device's piece of the tensor in ``route.dst``, given its piece in ``route.src``."""
    return execute(route.steps, x, axis_names)


def execute(steps: Sequence[Step], x: Any, axis_names: Sequence[str]) -> Any:
    """Run steps one after the other on this device's piece."""
    for step in steps:
        x = _STEPS[step.kind](step, x, tuple(axis_names[a] for a in step.axes))
    return x


def _index(names: Sequence[str]) -> Any:
    """This device's rank in the group of several axes, outermost first."""
    index: Any = 0
    for name in names:
        index = index * lax.axis_size(name) + lax.axis_index(name)
    return index


def _size(names: Sequence[str]) -> int:
    return math.prod(lax.axis_size(name) for name in names)


def _dim(component: object) -> int:
    if not isinstance(component, Split):
        raise TypeError(f"{component} is not a split")
    return component.dim


def _slice(step: Step, x: Any, names: tuple[str, ...]) -> Any:
    if _size(names) == 1:  # an axis of one device: nothing to cut, nothing to reduce
        return x
    dim = _dim(step.dst[step.axes[0]])
    piece = x.shape[dim] // _size(names)
    return lax.dynamic_slice_in_dim(x, _index(names) * piece, piece, dim)


def _identity(op: str, dtype: Any) -> Any:
    """What changes nothing under a reduction."""
    if op == "sum":
        return np.zeros((), dtype)
    if dtype == np.bool_:
        return np.asarray(op == "min")
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.asarray(-np.inf if op == "max" else np.inf, dtype)
    info = jnp.iinfo(dtype)
    return np.asarray(info.min if op == "max" else info.max, dtype)


def _to_partial(step: Step, x: Any, names: tuple[str, ...]) -> Any:
    source, target = step.src[step.axes[0]], step.dst[step.axes[0]]
    if not isinstance(target, Partial):
        raise TypeError(f"{target} is not partial")
    identity = _identity(target.op, x.dtype)
    if isinstance(source, Broadcast):
        return jnp.where(_index(names) == 0, x, identity)
    dim = _dim(source)
    shape = list(x.shape)
    shape[dim] *= _size(names)
    return lax.dynamic_update_slice_in_dim(jnp.full(shape, identity), x, _index(names) * x.shape[dim], dim)


def _all_gather(step: Step, x: Any, names: tuple[str, ...]) -> Any:
    return lax.all_gather(x, _group(names), axis=_dim(step.src[step.axes[0]]), tiled=True)


def _all_to_all(step: Step, x: Any, names: tuple[str, ...]) -> Any:
    a, b = step.src[step.axes[0]], step.dst[step.axes[0]]
    return lax.all_to_all(x, _group(names), split_axis=_dim(b), concat_axis=_dim(a), tiled=True)


def _all_reduce(step: Step, x: Any, names: tuple[str, ...]) -> Any:
    source = step.src[step.axes[0]]
    if not isinstance(source, Partial):
        raise TypeError(f"{source} is not partial")
    return _REDUCE[source.op](x, _group(names))


def _reduce_scatter(step: Step, x: Any, names: tuple[str, ...]) -> Any:
    return lax.psum_scatter(x, _group(names), scatter_dimension=_dim(step.dst[step.axes[0]]), tiled=True)


def _group(names: tuple[str, ...]) -> Any:
    return names[0] if len(names) == 1 else names


_STEPS = {
    "slice": _slice,
    "to_partial": _to_partial,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
}
