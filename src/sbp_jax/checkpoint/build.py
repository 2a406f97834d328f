"""Leaves on their devices, from the boxes that were read: each process makes its own devices' parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from .. import boxing
from .._compat import as_weak
from ..signature import Partial
from ..tensor import GlobalTensor
from ..tensor.spec import Spec
from ..tensor.storage import from_pieces
from .layout import Box, box_of, box_of_shape
from .leaves import Leaf, dtype_of, key_dtype
from .manifest import Manifest
from .read import Buffers, Reading, read_boxes
from .targets import Target


def build(folder: Path, manifest: Manifest, targets: list[Target]) -> tuple[list[Any], Reading]:
    """The values of the targets, and what was read for them. Raises ``CheckpointDamaged``."""
    numbers = {leaf.path: k for k, leaf in enumerate(manifest.leaves)}
    found: list[Any] = [None] * len(targets)
    wanted, users = [], {}
    for k, target in enumerate(targets):
        if target.is_value:
            found[k] = _placed(target, lambda _, x=target.value: x)
        else:
            number = numbers[target.leaf.path]
            wanted.append((number, _boxes(target)))
            users[number] = k

    def use(number: int, buffers: Buffers) -> None:
        k = users[number]
        found[k] = _placed(targets[k], lambda box: buffers[box])

    return found, read_boxes(folder, manifest, wanted, use)


def _boxes(target: Target) -> list[Box]:
    """The boxes that this process's devices need."""
    leaf = target.leaf
    if target.spec is not None:
        spec, me = target.spec, jax.process_index()
        devices: Any = spec.placement.mesh.devices
        mine = (p for p in spec.positions() if devices[p].process_index == me and _idle(spec, p) is None)
        return list(dict.fromkeys(_with_words(leaf, _box(spec, p)) for p in mine))
    if target.is_numpy or target.sharding is None:
        return [box_of_shape(leaf.shape)]
    indices = target.sharding.addressable_devices_indices_map(leaf.logical_shape).values()
    return list(dict.fromkeys(_with_words(leaf, box_of(i or (), leaf.logical_shape)) for i in indices))


def _placed(target: Target, data: Callable[[Box], Any]) -> Any:
    leaf = target.leaf
    if target.spec is not None:
        return GlobalTensor(target.spec, from_pieces(target.spec, lambda p: _piece(target, p, data)))
    if target.sharding is not None:
        x = _sharded(target, data)
    elif target.is_numpy:
        whole = data(box_of_shape(leaf.shape))
        return whole[()] if leaf.scalar else whole
    elif target.is_value:
        return target.value
    else:
        x = _keys(leaf, jnp.asarray(data(box_of_shape(leaf.shape))))
    return as_weak(x) if leaf.weak else x


def _sharded(target: Target, data: Callable[[Box], Any]) -> jax.Array:
    leaf, sharding = target.leaf, target.sharding
    assert sharding is not None
    shape, parts = leaf.logical_shape, []
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        part = _keys(leaf, data(_with_words(leaf, box_of(index or (), shape))))
        parts.append(jax.device_put(part, SingleDeviceSharding(device, memory_kind=sharding.memory_kind)))
    dtype = key_dtype(leaf.prng) if leaf.prng else dtype_of(leaf.dtype)  # said: a process may have none of the devices
    return jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=dtype)


def _piece(target: Target, position: tuple[int, ...], data: Callable[[Box], Any]) -> Any:
    spec = target.spec
    assert spec is not None
    idle = _idle(spec, position)
    if idle is not None:  # the first device along a partial axis has the value
        return np.full(spec.piece_shape(position), boxing.identity(idle, spec.dtype))
    if target.is_value:
        return target.value
    return _keys(target.leaf, data(_with_words(target.leaf, _box(spec, position))))


def _idle(spec: Spec, position: tuple[int, ...]) -> str | None:
    """The reduction whose identity a position holds; None where it holds its part of the value."""
    ops = [c.op for axis, c in enumerate(spec.sbp) if isinstance(c, Partial) and position[axis] > 0]
    return ops[-1] if ops else None


def _box(spec: Spec, position: tuple[int, ...]) -> Box:
    return tuple((s.start, s.stop) for s in spec.box(position))


def _with_words(leaf: Leaf, box: Box) -> Box:
    return (*box, *((0, n) for n in leaf.shape[leaf.ndim :]))


def _keys(leaf: Leaf, data: Any) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=leaf.prng) if leaf.prng else data
