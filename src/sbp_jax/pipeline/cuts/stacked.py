"""Arrays that are stacked layer by layer, between a user who has one array and stages that have a piece each."""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .layer_loops import Grouped

# The axis of a stacked array's mesh that counts the stages.
_AXIS = "stages"


class Stacked:
    """Splits a step's arguments into pieces and puts its results together. What it gave it knows the pieces of."""

    def __init__(self, grouped: Grouped) -> None:
        self.grouped = grouped
        self._lock = threading.Lock()
        self._given: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}

    def split(self, values: Sequence[Any]) -> list[Any]:
        """The arguments of the program in groups, of those of the user's."""
        pieces: dict[int, list[Any]] = {}
        found = []
        for p in self.grouped.arguments:
            x = values[p.of]
            if p.dim >= 0:
                if p.of not in pieces:
                    pieces[p.of] = self._known(x) or self._cut(x, p.dim)
                x = pieces[p.of][p.group]
            found.append(x)
        program = self.grouped.program
        written = len(program.input_ops) - len(found)  # arrays that came with writing it
        return [*found, *program.constants[len(program.constants) - written :]]

    def joined(self, results: Sequence[Any]) -> list[Any]:
        """The user's results, of those of the program in groups."""
        found: list[Any] = []
        together: list[Any] = []
        for p, x in zip(self.grouped.results, results, strict=True):
            together.append(x)
            if p.dim < 0 or p.group == self.grouped.count - 1:
                found.append(x if p.dim < 0 else self._join(together, p.dim))
                together = []
        return found

    def _known(self, x: Any) -> list[Any] | None:
        with self._lock:
            entry = self._given.get(id(x))
        return entry[1] if entry is not None and entry[0]() is x else None

    def _cut(self, x: Any, dim: int) -> list[Any]:
        length = x.shape[dim] // self.grouped.count
        where = (slice(None),) * dim
        return [x[(*where, slice(g * length, (g + 1) * length))] for g in range(self.grouped.count)]

    def _join(self, pieces: Sequence[Any], dim: int) -> Any:
        x = _side_by_side(pieces, dim)
        if x is None:
            x = jnp.concatenate([jax.device_put(p, _spread(pieces)) for p in pieces], dim)
        key = id(x)

        def forget(_: Any) -> None:
            self._given.pop(key, None)

        with self._lock:
            self._given[key] = (weakref.ref(x, forget), list(pieces))
        return x


def _side_by_side(pieces: Sequence[Any], dim: int) -> Any:
    """One array over the devices of all pieces, made of what they hold, without a copy; None where there is none.

    A device holds one range of layers of it: the pieces are on devices of their own, all in the same way.
    """
    shardings = [p.sharding for p in pieces if isinstance(p.sharding, NamedSharding)]
    meshes, specs = [s.mesh for s in shardings], {tuple(s.spec) for s in shardings}
    if len(meshes) < len(pieces) or len(specs) > 1 or len({m.shape_tuple for m in meshes}) > 1:
        return None
    first, devices = meshes[0], np.stack([np.asarray(m.devices) for m in meshes])
    if len(set(devices.flat)) < devices.size:
        return None
    spec = [*specs.pop()]
    spec += [None] * (dim + 1 - len(spec))
    own = spec[dim]
    spec[dim] = (_AXIS, *((own,) if isinstance(own, str) else own or ()))
    shape = tuple(n * len(pieces) if d == dim else n for d, n in enumerate(pieces[0].shape))
    sharding = NamedSharding(Mesh(devices, (_AXIS, *first.axis_names)), PartitionSpec(*spec))
    shards = [s.data for p in pieces for s in p.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def _spread(pieces: Sequence[Any]) -> NamedSharding:
    """Whole on all devices of the pieces."""
    devices = sorted({d for p in pieces for d in p.devices()}, key=lambda d: d.id)
    return NamedSharding(Mesh(np.asarray(devices), (_AXIS,)), PartitionSpec())
