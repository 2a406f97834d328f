"""Collectives called outside of traced functions: every device's tensor gathered into one array, one jitted
``shard_map`` over it, the results handed back as they came in.

Nothing is copied on the way in or out: each device's tensor is the device's shard of the array.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .._compat import within_mesh
from ..ahead import cannot_run_ahead, to_its_end
from ..errors import ProcessError, SbpError
from ..placement import Placement
from ..processes import store
from .group import Group, Layout, layout
from .kernels import AT_ROOT, SAME, Kernel
from .same_call import agree, lock


@dataclass(frozen=True, slots=True)
class Operands:
    """The tensors of this process's devices, in rank order; None where a device has none (a scatter's receivers).

    ``is_plain``: they came as one tensor for all of them.
    """

    tensors: tuple[Any, ...]
    is_plain: bool
    listed: bool = False


def run(kernel: Kernel, group: Group, x: Any, timeout_seconds: float, check: bool) -> Any:
    """A collective of plain arrays: ``x`` as one tensor for all devices of this process, or one for each."""
    here = layout(group)
    if not here.devices:  # Not a member, so not asked.
        return None
    with lock():
        try:
            given, error = operands(kernel, here, x), None
        except SbpError as wrong:
            if len(here.processes) == 1:
                raise
            given, error = Operands((None,) * len(here.devices), True), wrong
        given = _filled(kernel, group, here, given, timeout_seconds, error)
        kernel = replace(kernel, listed=given.listed)
        error = error or _fault(kernel, group, here, given)
        if len(here.processes) > 1 and (check or error):
            agree(_told(kernel, group, given), here.processes, timeout_seconds, error)
        if error:
            raise error
        collective = _compiled(kernel, group.placement, given.tensors[0].ndim == 0)
        whole = _one_array(group.placement, given.tensors, here)
        waits = cannot_run_ahead(group.placement.mesh.devices.flat)
        results = to_its_end(collective, whole) if waits else collective(whole)
    return _handed_back(kernel, group, here, given, results)


def operands(kernel: Kernel, here: Layout, x: Any) -> Operands:
    """The tensors of ``x`` on this process's devices.

    A tuple has one tensor for each device. A list has one for each rank of the group where the collective sends each
    rank its own, otherwise it is as a tuple. Anything else is the tensor of every device.
    """
    lists = kernel.name in ("all_to_all", "reduce_scatter", "scatter")
    each = isinstance(x, tuple) or (isinstance(x, list) and not lists)
    if each and len(x) != len(here.devices):
        raise SbpError(
            f"{kernel.name}: a {type(x).__name__} of {len(x)} tensors, and this process has {len(here.devices)} of the "
            f"group's devices: give one for each, in rank order, or one array for all of them"
        )
    given = tuple(x) if each else (x,) * len(here.devices)
    if any(isinstance(one, list | tuple) for one in given) and not lists:
        raise SbpError(f"{kernel.name}: a device's tensor is one array, not a list: stack or concatenate them")
    listed = any(isinstance(one, list | tuple) for one in given)
    if listed and not all(one is None or isinstance(one, list | tuple) for one in given):
        raise SbpError(
            f"{kernel.name}: some devices have a list of tensors and some have one: give all of them the same"
        )
    tensors = tuple(_on(device, kernel, one) for device, one in zip(here.devices, given, strict=True))
    return Operands(tensors, not each, listed)


def _on(device: Any, kernel: Kernel, x: Any) -> Any:
    if x is None:
        return None
    if isinstance(x, list | tuple):
        parts = [_on(device, kernel, one) for one in x]
        kinds = {(str(part.dtype), part.shape) for part in parts if part is not None}
        if len(kinds) != 1 or any(part is None for part in parts):
            raise SbpError(
                f"{kernel.name}: the tensors of a list must have one shape and dtype; got "
                f"{', '.join('None' if part is None else _type(part) for part in parts) or 'an empty list'}"
            )
        return jnp.stack(parts)
    if isinstance(x, jax.Array):
        if not x.is_fully_addressable:
            raise SbpError(
                f"{kernel.name}: the array lies on devices of several processes. Pass this process's pieces as a tuple "
                "([s.data for s in x.addressable_shards]), or a global tensor, sbp.local_to_global(pieces, ...)"
            )
        return x if x.committed and x.devices() == {device} else jax.device_put(x, device)
    try:
        array = np.asarray(x)
        return jax.device_put(array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False), device)
    except (TypeError, ValueError) as error:
        raise SbpError(f"{kernel.name}: {type(x).__name__} is no array: {error}") from error


def _filled(
    kernel: Kernel, group: Group, here: Layout, given: Operands, timeout_seconds: float, error: SbpError | None
) -> Operands:
    """Scatter alone: devices that have no tensor get an empty one of the root's shape."""
    if kernel.name != "scatter":
        return given
    mine = [x for x, rank in zip(given.tensors, here.ranks, strict=True) if rank == kernel.root and x is not None]
    told = [f"{int(given.listed)} {mine[0].dtype.name} {' '.join(map(str, mine[0].shape))}"] if mine else []
    if len(here.processes) > 1:
        try:
            found = store().gather("what a scatter sends", "".join(told), timeout_seconds, among=here.processes)
        except ProcessError as missing:
            raise ProcessError(f"scatter from rank {kernel.root} over {group}: {missing}") from None
        told = [text for text in found if text]
    if not told:
        if error is None:
            raise SbpError(f"scatter: rank {kernel.root} of {group} is the source, and passed no tensor")
        return given
    listed, dtype, *shape = told[0].split()
    empty = np.zeros(tuple(map(int, shape)), jnp.dtype(dtype))
    tensors = tuple(
        jax.device_put(empty, device) if x is None else x for x, device in zip(given.tensors, here.devices, strict=True)
    )
    return replace(given, tensors=tensors, listed=listed == "1")


def _fault(kernel: Kernel, group: Group, here: Layout, given: Operands) -> SbpError | None:
    """What is wrong with this process's tensors."""
    missing = [rank for x, rank in zip(given.tensors, here.ranks, strict=True) if x is None]
    if missing:
        return SbpError(f"{kernel.name}: no tensor for ranks {', '.join(map(str, missing))} of {group}")
    kinds = {_type(x) for x in given.tensors}
    if len(kinds) > 1:
        each = ", ".join(f"rank {rank}: {_type(x)}" for x, rank in zip(given.tensors, here.ranks, strict=True))
        return SbpError(f"{kernel.name}: the tensors of a collective have one shape and dtype; got {each}")
    try:
        kernel.check(given.tensors[0].shape, given.tensors[0].dtype, group.size)
    except SbpError as error:
        return error
    return None


def _told(kernel: Kernel, group: Group, given: Operands) -> str:
    """The call in words: equal where the calls are the same."""
    options = [kernel.op.value] if kernel.op is not None else []
    options += [f"rank {kernel.root}"] if kernel.name in ("broadcast", "gather", "reduce", "scatter") else []
    of = "" if given.tensors[0] is None else f" of {_type(given.tensors[0])}{' in a list' if given.listed else ''}"
    return f"{kernel.name}({', '.join(options)}){of} over {group}"


def _type(x: Any) -> str:
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def _one_array(where: Placement, tensors: Sequence[Any], here: Layout) -> jax.Array:
    """The array of which every device's tensor is a shard, one after the other along dim 0."""
    pieces = [x.reshape(1) if x.ndim == 0 else x for x in tensors]
    shape = (pieces[0].shape[0] * where.size, *pieces[0].shape[1:])
    return jax.make_array_from_single_device_arrays(shape, _sharding(where), pieces)


@functools.lru_cache(maxsize=256)
def _sharding(where: Placement) -> NamedSharding:
    return NamedSharding(where.mesh, PartitionSpec(where.axis_names))


@functools.lru_cache(maxsize=4096)
def _compiled(kernel: Kernel, where: Placement, is_scalar: bool) -> Any:
    """A collective as a jitted function of ``_one_array``; JAX keeps its programs by shape."""
    spec = PartitionSpec(where.axis_names)

    def body(x: Any) -> Any:
        y = kernel(x.reshape(()) if is_scalar else x)
        return jax.tree.map(lambda one: one.reshape(1) if one.ndim == 0 else one, y)

    mapped = jax.shard_map(body, mesh=where.mesh, in_specs=spec, out_specs=spec, check_vma=False)

    def collective(x: Any) -> Any:
        with within_mesh(where.mesh):
            return mapped(x)

    collective.__name__ = collective.__qualname__ = kernel.name
    return jax.jit(collective)


def _handed_back(kernel: Kernel, group: Group, here: Layout, given: Operands, results: Any) -> Any:
    """The results by device: a tuple in rank order, or one where it is the same for all."""
    shape = kernel.shape(given.tensors[0].shape, group.size)
    devices = here.devices
    one = (given.is_plain and kernel.gives is SAME and here.is_uniform) or (given.is_plain and len(devices) == 1)
    wanted = devices[:1] if one else devices

    def pieces(result: jax.Array) -> dict[Any, jax.Array]:
        held = {shard.device: shard.data for shard in result.addressable_shards}
        return {d: held[d] if held[d].shape == shape else held[d].reshape(shape) for d in wanted}

    if kernel.is_list():
        each = [pieces(result) for result in results]
        found: list[Any] = [[piece[d] for piece in each] for d in wanted]
    else:
        by_device = pieces(results)
        found = [by_device[d] for d in wanted]
    if kernel.gives is AT_ROOT:
        found = [x if rank == kernel.root else None for x, rank in zip(found, here.ranks, strict=False)]
    return found[0] if one else tuple(found)
