"""Plain values and arrays, wherever they are, on the devices of a mesh that may be several processes'."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from .._compat import as_weak, is_tracing
from ..errors import PlacementError
from ..placement import placement
from ..shardings import from_sharding
from ..signature import Signature, broadcast
from .host_values import compare, is_global, processes_of, put
from .redistribute import move
from .spec import Spec, make_spec


def on_devices(values: Sequence[tuple[str, Any, NamedSharding]], what: str) -> list[Any]:
    """Each value in its sharding, all on one mesh; ``what`` and the values' names are for errors.

    Raises:
        ProcessError: on every process of the mesh, for a value that is not the same in all of them.
        PlacementError: for an array on devices of processes that have none of the mesh's.
    """
    if not values:
        return []
    mesh: Any = values[0][2].mesh
    members = [jax.process_index()] if values[0][2].is_fully_addressable else processes_of(mesh)
    for name, x, _ in values:
        if is_global(x):
            _check_asked(name, x, members)
    if members == [jax.process_index()]:
        return [jax.device_put(x, s) for _, x, s in values]
    if jax.process_index() not in members:
        return [_empty(x, s) for _, x, s in values]
    with jax.ensure_compile_time_eval():  # where a program around this is being traced, it is no part of that
        is_moved = compare([(name, x) for name, x, _ in values], mesh, what)
    # A trace may hold no array of several processes: it takes the value as it is.
    placed = jax.device_put if is_tracing() else put
    return [
        _moved(name, x, s, members) if moves else placed(x, s)
        for (name, x, s), moves in zip(values, is_moved, strict=True)
    ]


def _check_asked(name: str, x: jax.Array, members: Sequence[int]) -> None:
    """Raise ``PlacementError`` where an array's parts are with processes that nobody asks for them."""
    theirs = sorted({d.process_index for d in x.sharding.device_set})
    if not set(theirs) <= set(members):
        raise PlacementError(
            f"{name} is on devices of processes {_listed(theirs)}, and is wanted on those of {_listed(members)} alone: "
            "the others are not asked for their parts. Move it first, in all processes: "
            "x.to_global(placement=..., sbp=...) of a global tensor, sbp.tensor(array, placement=..., sbp=...) of an "
            "array"
        )


def _moved(name: str, x: jax.Array, sharding: NamedSharding, members: Sequence[int]) -> Any:
    """An array of several processes, on other devices or in another order."""
    if x.sharding.device_set == sharding.device_set:
        return jax.device_put(x, sharding)
    _check_asked(name, x, members)
    target = placement.from_mesh(sharding.mesh)
    spec = make_spec(x.shape, x.dtype, target, from_sharding(sharding, x.ndim))
    return move(*spec_of(x), spec)[1]


def spec_of(x: jax.Array) -> tuple[Spec, jax.Array]:
    """An array on devices of its own as a tensor's spec and storage. Raises ``SignatureError`` for other shardings."""
    if isinstance(x.sharding, NamedSharding):
        where = placement.from_mesh(x.sharding.mesh)
        return make_spec(x.shape, x.dtype, where, from_sharding(x.sharding, x.ndim)), x
    if x.sharding.num_devices == 1:
        mesh = Mesh(np.array(list(x.sharding.device_set)), ("device",))
        return make_spec(x.shape, x.dtype, placement.from_mesh(mesh), Signature((broadcast,))), x
    raise PlacementError(
        f"an array with a {type(x.sharding).__name__} cannot be sent to devices of other processes: put it in a "
        "NamedSharding first"
    )


def _empty(x: Any, sharding: NamedSharding) -> Any:
    """What a process has of a value on devices of others: nothing."""
    kind = jax.typeof(x)
    nothing = jax.make_array_from_single_device_arrays(kind.shape, sharding, [], dtype=kind.dtype)
    return as_weak(nothing) if kind.weak_type else nothing


def _listed(processes: Sequence[int]) -> str:
    return ", ".join(map(str, processes))
