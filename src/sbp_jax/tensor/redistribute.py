"""``to_global``: a tensor in another signature, on another placement, or both."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import boxing
from .._compat import is_tracer
from ..ahead import cannot_run_ahead, to_its_end
from ..errors import PlacementError
from ..placement import Placement
from ..signature import Partial, Signature, Split, broadcast
from .engine import boxing_step_for, invoke
from .spec import Spec
from .storage import from_pieces


def box(spec: Spec, storage: Any, sbp: Signature) -> tuple[Spec, Any]:
    """In another signature on the same placement."""
    if spec.sbp == sbp:
        return spec, storage
    step = boxing_step_for(spec, sbp)
    return step.specs[0], invoke(step, [storage], "to_global")[0]


def move(spec: Spec, storage: Any, target: Spec) -> tuple[Spec, Any]:
    """On another placement. Partial values are reduced where they are first."""
    if is_tracer(storage):
        raise PlacementError(
            f"inside a traced function (jit, grad, vmap) a tensor stays on its devices: it cannot go from "
            f"{spec.placement} to {target.placement}. Move it before or after the function"
        )
    if target.placement.is_abstract:
        raise PlacementError(f"{target.placement} is abstract: it has no devices to hold a tensor")
    spec, storage = box(spec, storage, _reduced(spec))
    here, there = spec.placement, target.placement
    if not (is_held_here(here) and is_held_here(there)):
        return target, _across_processes(spec, storage, target)
    held = {s.device: s.data for s in storage.addressable_shards}
    routes: dict[tuple[int, ...], list[boxing.between.Part]] = {}
    for part in boxing.parts(spec.shape, boxing.itemsize_of(spec.dtype), (here, spec.sbp), (there, target.sbp)):
        routes.setdefault(part.dst, []).append(part)

    def piece(position: tuple[int, ...]) -> Any:
        device = there.mesh.devices[position]
        box = target.box(position)
        exact = target.piece_shape(position)
        if position not in routes:
            return _filler(target, position, exact)
        arrived = []
        for part in routes[position]:
            own = spec.box(part.src)
            cut = tuple(slice(a - o.start, b - o.start) for (a, b), o in zip(part.box, own, strict=True))
            data = held[here.mesh.devices[part.src]]
            arrived.append((part, jax.device_put(data[cut], device)))
        if len(arrived) == 1:
            return arrived[0][1]
        whole = jnp.zeros(exact, target.dtype, device=device)
        for part, x in arrived:
            at = tuple(slice(a - o.start, b - o.start) for (a, b), o in zip(part.box, box, strict=True))
            whole = whole.at[at].set(x)
        return whole

    return target, from_pieces(target, piece)


def _reduced(spec: Spec) -> Signature:
    """The nearest signature without partial values: split where that divides, which reduces for half the bytes."""
    sizes = spec.placement.shape
    found = spec.sbp
    for axis, c in enumerate(spec.sbp):
        if isinstance(c, Partial):
            options = [Split(d) for d in range(len(spec.shape))]
            fitting = (found.replace(axis, s) for s in options)
            even = [s for s in fitting if boxing.table.fits(spec.shape, s, sizes)]
            found = even[0] if even else found.replace(axis, broadcast)
    return found


def _across_processes(spec: Spec, storage: jax.Array, target: Spec) -> jax.Array:
    """Between devices of several processes. Those that hold a part of either side take part, others need not wait."""
    here, there = spec.placement, target.placement
    if here.type != there.type:
        raise PlacementError(
            f"between devices of several processes a tensor stays on one type: it cannot go from {here} to {there}. "
            "Take it to a placement of this process's own devices first, or through the host (x.numpy())"
        )
    if spec.is_plain and target.is_plain and set(here.flat_ranks) == set(there.flat_ranks):
        return jax.device_put(storage, target.sharding)
    ranks = sorted({*here.flat_ranks, *there.flat_ranks})
    found = np.array(jax.devices(here.type), dtype=object)[ranks]
    if all(d.process_index != jax.process_index() for d in found):
        return from_pieces(target, lambda _: None)  # nothing of either side is here
    number = {rank: k for k, rank in enumerate(ranks)}
    sent = boxing.parts(spec.shape, boxing.itemsize_of(spec.dtype), (here, spec.sbp), (there, target.sbp))
    blocks = [
        boxing.Block(
            number[int(here.ranks[x.src])], number[int(there.ranks[x.dst])],
            _within(x.box, spec.box(x.src)), _within(x.box, target.box(x.dst)), tuple(b - a for a, b in x.box),
        )
        for x in sent
    ]  # fmt: skip
    exchange = boxing.exchange_of(spec.local_shape, target.local_shape, blocks)
    arrived = _exchanged(exchange, tuple(found), storage, spec.dtype) if blocks else {}
    filled = {x.dst for x in sent}

    def piece(position: tuple[int, ...]) -> Any:
        exact = target.piece_shape(position)
        if position not in filled:
            return _filler(target, position, exact)
        return arrived[there.mesh.devices[position]][0][tuple(slice(0, n) for n in exact)]

    return from_pieces(target, piece)


def _exchanged(
    exchange: boxing.Exchange, devices: tuple[Any, ...], storage: jax.Array, dtype: Any
) -> dict[Any, jax.Array]:
    """What arrives at each of this process's devices."""
    held = {s.device: s.data for s in storage.addressable_shards}
    shape = (1, *exchange.src_shape)
    run = boxing.exchanging(exchange, devices)
    mesh = Mesh(np.array(devices), ("devices",))
    buffers = [
        held[d].reshape(shape) if d in held else jax.device_put(np.zeros(shape, dtype), d)
        for d in devices
        if d.process_index == jax.process_index()
    ]
    stacked = jax.make_array_from_single_device_arrays(
        (len(devices), *exchange.src_shape), NamedSharding(mesh, PartitionSpec("devices")), buffers, dtype=dtype
    )
    arrived = to_its_end(run, stacked) if cannot_run_ahead(devices) else run(stacked)
    return {s.device: s.data for s in arrived.addressable_shards}


def _within(box: boxing.Box, outer: Sequence[slice]) -> tuple[int, ...]:
    """Where a box begins, counted from the start of the box around it."""
    return tuple(start - o.start for (start, _), o in zip(box, outer, strict=True))


def _filler(target: Spec, position: tuple[int, ...], shape: tuple[int, ...]) -> jax.Array:
    """The component of a device that gets nothing: the identity of what is partial there, or nothing at all."""
    idle = [c.op for axis, c in enumerate(target.sbp) if isinstance(c, Partial) and position[axis] > 0]
    value = boxing.identity(idle[-1], target.dtype) if idle else np.zeros((), target.dtype)
    return jnp.full(shape, value, device=target.placement.mesh.devices[position])


def is_held_here(placement: Placement) -> bool:
    """Whether every device of a placement is one of this process's."""
    return jax.process_count() == 1 or all(d.process_index == jax.process_index() for d in placement.mesh.devices.flat)
