"""Values that every process has for itself, on devices of several processes: equal in all of them, or an error.

A host array, a number, or an array on a process's own devices has no meaning for the others. JAX takes such values for
equal, or sends all of them around to see. Here a short hash of each is compared, by one small collective.
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._compat import is_tracer
from ..errors import ProcessError

_HASH_WORDS = 4
_FEW_ROWS = 16
_HOST, _GLOBAL = 0, 1


def compare(values: Sequence[tuple[str, Any]], mesh: Mesh, what: str) -> list[bool]:
    """Compare values, given with their names, in all processes that have devices of ``mesh``; each of them calls this.

    Gives of each whether it is an array of several processes, so that there is nothing to compare. ``what`` is for
    errors. Raises ``ProcessError`` on every process for one that is not the same in all of them.
    """
    members = [] if jax.process_count() == 1 else processes_of(mesh)
    if len(members) < 2 or jax.process_index() not in members or not values:
        return [is_global(x) for _, x in values]
    everyones = _everyones(np.stack([_row(x) for _, x in values]), mesh)
    told = [_difference(name, x, members, everyones[:, k]) for k, (name, x) in enumerate(values)]
    wrong = [x for x in told if x]
    if wrong:
        raise ProcessError(
            f"{what}: {'; '.join(wrong[:3])}{f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''}. What each "
            "process has for itself (numpy arrays, numbers, arrays on its own devices) must be equal in all of them. "
            "For a share of the data in each process: sbp.local_to_global(pieces, placement=..., sbp=sbp.split(0)), or "
            "jax.make_array_from_process_local_data"
        )
    return [bool(x) for x in (everyones[..., 0] == _GLOBAL).any(0)]


def put_equal(x: Any, sharding: NamedSharding, what: str) -> Any:
    """A value of each process's own on devices that may be several processes', if it is the same in all of them."""
    mesh: Any = sharding.mesh
    on_same = is_global(x) and x.sharding.device_set == sharding.device_set
    if sharding.is_fully_addressable or is_tracer(x) or on_same or compare([("the value", x)], mesh, what)[0]:
        return jax.device_put(x, sharding)
    return put(x, sharding)


def processes_of(mesh: Mesh) -> list[int]:
    """The processes that have devices of a mesh."""
    return sorted({d.process_index for d in mesh.devices.flat})


def is_global(x: Any) -> bool:
    """Whether other processes hold parts of a value."""
    return isinstance(x, jax.Array) and not is_tracer(x) and not x.is_fully_addressable


def _row(x: Any) -> np.ndarray:
    """What a process says of its value: whether other processes have parts of it; if not, its hash."""
    row = np.zeros(1 + _HASH_WORDS, np.uint32)
    if is_global(x):
        row[0] = _GLOBAL
        return row
    data = _host(x)
    text = hashlib.blake2b(f"{data.dtype}{data.shape}".encode(), digest_size=4 * _HASH_WORDS)
    text.update(np.ascontiguousarray(data).view(np.uint8).data if data.size else b"")
    row[1:] = np.frombuffer(text.digest(), np.uint32)
    return row


def _host(x: Any) -> np.ndarray:
    """A value of this process alone, as JAX would take it; of random keys their words."""
    if isinstance(x, jax.Array):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)
    array = np.asarray(x)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _difference(name: str, x: Any, members: Sequence[int], rows: np.ndarray) -> str:
    """What is wrong with a value, by what all processes say of it; nothing where nothing is."""
    if (rows[:, 0] == _GLOBAL).any():
        hosts = [p for p, row in zip(members, rows, strict=True) if row[0] == _HOST]
        if hosts and not isinstance(x, jax.Array):
            return f"{name} is a value of their own in processes {_listed(hosts)}, and an array of several in others"
        return ""
    sides: dict[bytes, list[int]] = {}
    for process, row in zip(members, rows, strict=True):
        sides.setdefault(row.tobytes(), []).append(process)
    if len(sides) == 1:
        return ""
    told = " and ".join(f"another in {_listed(s)}" for s in list(sides.values())[1:3])
    return f"{name} has one value in processes {_listed(next(iter(sides.values())))}, {told}"


def put(x: Any, sharding: NamedSharding) -> Any:
    """A value that is the same in every process, on devices of several; a process without any gets an empty part."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        words = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec))
        return _wrapping(str(jax.random.key_impl(x)), sharding)(put(np.asarray(jax.random.key_data(x)), words))
    if jax.typeof(x).weak_type:  # an array made of pieces has no weak type
        return jax.device_put(np.asarray(x).item(), sharding)
    data = _host(x)
    return jax.make_array_from_callback(data.shape, sharding, lambda index: data[index], dtype=data.dtype)


@functools.lru_cache(maxsize=256)
def _wrapping(impl: str, sharding: NamedSharding) -> Any:
    return jax.jit(lambda words: jax.random.wrap_key_data(words, impl=impl), out_shardings=sharding)


def _everyones(rows: np.ndarray, mesh: Mesh) -> np.ndarray:
    """The rows of all processes of a mesh, by process."""
    first: dict[int, Any] = {}
    for device in mesh.devices.flat:
        first.setdefault(device.process_index, device)
    devices = [first[p] for p in sorted(first)]
    split, whole = _gathering(tuple(devices))
    # So many rows that calls with other numbers of values seldom need another program.
    padded = np.zeros((max(_FEW_ROWS, 1 << (len(rows) - 1).bit_length()), *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    mine = jax.device_put(padded[None], first[jax.process_index()])
    stacked = jax.make_array_from_single_device_arrays((len(devices), *padded.shape), split, [mine])
    return np.asarray(whole(stacked).addressable_shards[0].data)[:, : len(rows)]


@functools.lru_cache(maxsize=256)
def _gathering(devices: tuple[Any, ...]) -> tuple[NamedSharding, Any]:
    mesh = Mesh(np.array(devices), ("processes",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec("processes")), jax.jit(
        lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec())
    )


def _listed(processes: Sequence[int]) -> str:
    return ", ".join(map(str, processes))
