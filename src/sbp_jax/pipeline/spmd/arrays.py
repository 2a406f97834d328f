"""Arrays of stages as pieces of arrays over all devices, and back; nothing that lies where it should is copied.

A position of a layout is one array over all devices: the pieces of its devices one after the other along its first dim.
Single values have no dim to be cut: theirs is an array that JAX takes for the same everywhere, and nobody looks at.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...errors import PlanError
from .arguments import Held, Placed
from .layout import Layout, Type


def spec_of(kind: Type, mesh: Mesh) -> PartitionSpec:
    """How the array of a position is cut."""
    return PartitionSpec(mesh.axis_names) if kind.shape and 0 not in kind.shape else PartitionSpec()


def shape_of(kind: Type, mesh: Mesh) -> tuple[int, ...]:
    """The shape of the array of a position."""
    return (mesh.size * kind.shape[0], *kind.shape[1:]) if spec_of(kind, mesh) else kind.shape


class Fillers:
    """Zeros for positions at which a rank has nothing: kept, and those that were donated taken from the results."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Type, Any], Any] = {}
        self._free: dict[tuple[Type, Any], list[Any]] = {}

    def get(self, kind: Type, device: Any) -> Any:
        """Zeros on a device."""
        if kind.is_spent:
            free = self._free.get((kind, device))
            return free.pop() if free else _zeros(kind, device)
        if (kind, device) not in self._kept:
            self._kept[kind, device] = _zeros(kind, device)
        return self._kept[kind, device]

    def give(self, kind: Type, device: Any, zeros: Any, most: int) -> None:
        """Zeros that a run gave where a rank has no result: no more than ``most`` are kept."""
        free = self._free.setdefault((kind, device), [])
        if len(free) < most:
            free.append(zeros)


def _zeros(kind: Type, device: Any) -> Any:
    with jax.default_device(device):
        return jax.device_put(kind.zeros(), device)


def assembled(
    layout: Layout, mesh: Mesh, ranks: np.ndarray, pieces: Mapping[int, Mapping[Held, Mapping[Any, Any]]],
    fillers: Fillers,
) -> list[jax.Array]:  # fmt: skip
    """The array of every position. ``ranks`` is by place in the mesh; ``pieces`` by rank, what it is and device."""
    by_position = {r: {p: key for key, p in layout.at[r].items()} for r in layout.at}
    own = [(d, int(r)) for d, r in zip(mesh.devices.flat, ranks.flat, strict=True)
           if d.process_index == jax.process_index()]  # fmt: skip
    found = []
    for p, kind in enumerate(layout.types):
        shards = [pieces[r][by_position[r][p]][d] if p in by_position[r] else fillers.get(kind, d) for d, r in own]
        sharding = NamedSharding(mesh, spec_of(kind, mesh))
        found.append(jax.make_array_from_single_device_arrays(shape_of(kind, mesh), sharding, shards, dtype=kind.dtype))
    return found


def pieces_of(x: Any, placed: Placed, there: NamedSharding, everywhere: Mesh, name: str) -> dict[Any, Any]:
    """By device of this process its piece of a value.

    Raises ``PlanError`` for an array of several processes that lies elsewhere, from where no process can take it.
    """
    if isinstance(x, jax.Array) and x.sharding.is_equivalent_to(there, x.ndim):
        return {s.device: s.data for s in x.addressable_shards}
    if not isinstance(x, jax.Array):
        x = np.asarray(x, placed.dtype)
    elif not x.is_fully_addressable:
        if x.sharding.device_set == there.device_set:
            mine = there.addressable_devices
            return {s.device: s.data for s in jax.device_put(x, there).addressable_shards} if mine else {}
        if x.sharding.device_set != set(everywhere.devices.flat):
            raise PlanError(
                f"{name} lies on devices {sorted(d.id for d in x.sharding.device_set)}, some of other processes, and "
                f"is wanted on {sorted(d.id for d in there.device_set)}: hand the step what it returned before, host "
                "arrays that are the same in all processes, or arrays on all devices of the pipeline"
            )
        x = jax.device_put(x, NamedSharding(everywhere, there.spec))
        return {s.device: s.data for s in x.addressable_shards if s.device in there.device_set}
    if there.is_fully_addressable:
        return {s.device: s.data for s in jax.device_put(x, there).addressable_shards}
    return {d: jax.device_put(x[index], d) for d, index in there.addressable_devices_indices_map(x.shape).items()}


def stacked(x: Any, held: Held, count: int) -> Any:
    """A batch as the stack of its micro-batches' parts."""
    if held.kind != "batch" or held.dim < 0:
        return x
    d = held.dim
    numbers: Any = jnp if isinstance(x, jax.Array) else np
    shape = np.shape(x)
    cut = numbers.reshape(x, (*shape[:d], count, shape[d] // count, *shape[d + 1 :]))
    return numbers.moveaxis(cut, d, 0)


def taken_apart(
    layout: Layout, arrays: Sequence[jax.Array], mesh: Mesh, ranks: np.ndarray,
    sharding: Callable[[int, Any], tuple[tuple[int, ...], NamedSharding]], fillers: Fillers, spent: Mapping[Type, int],
) -> dict[Any, jax.Array]:  # fmt: skip
    """The results of all ranks by key. ``spent`` is how many positions of a type take zeros that are donated."""
    rank_of = {d: int(r) for d, r in zip(mesh.devices.flat, ranks.flat, strict=True)}
    by_position = {r: {p: key for key, p in layout.at[r].items()} for r in layout.at}
    found: dict[Any, list[Any]] = {key: [] for r in layout.at for key, p in layout.at[r].items()
                                   if not layout.types[p].is_spent}  # fmt: skip
    kinds: dict[Any, tuple[Any, Type]] = {}
    own = [p for p, kind in enumerate(layout.types) if not kind.is_spent]
    for p, x in zip(own, arrays, strict=True):
        kind = layout.types[p]
        kinds.update((by_position[r][p], (r, kind)) for r in by_position if p in by_position[r])
        for shard in x.addressable_shards:
            keys = by_position[rank_of[shard.device]]
            if p in keys:
                found[keys[p]].append(shard.data)
            else:
                of = Type(kind.shape, kind.dtype, True)
                fillers.give(of, shard.device, shard.data, spent.get(of, 0))
    results = {}
    for key, shards in found.items():
        rank, kind = kinds[key]
        shape, there = sharding(rank, key)
        results[key] = jax.make_array_from_single_device_arrays(shape, there, shards, dtype=kind.dtype)
    return results
