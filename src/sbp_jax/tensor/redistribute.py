"""``to_global``: a tensor in another signature, on another placement, or both."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import boxing
from .._compat import is_tracer
from ..errors import PlacementError, SbpError
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
    if not storage.is_fully_addressable:
        return _across_processes(spec, storage, target)
    here, there = spec.placement, target.placement
    held = {s.device: s.data for s in storage.addressable_shards}
    routes: dict[tuple[int, ...], list[boxing.between.Part]] = {}
    for part in boxing.parts(spec.shape, boxing.itemsize_of(spec.dtype), (here, spec.sbp), (there, target.sbp)):
        routes.setdefault(part.dst, []).append(part)

    def piece(position: tuple[int, ...]) -> Any:
        device = there.mesh.devices[position]
        box = target.box(position)
        exact = target.piece_shape(position)
        if position not in routes:
            idle = [c.op for axis, c in enumerate(target.sbp) if isinstance(c, Partial) and position[axis] > 0]
            filler = boxing.identity(idle[-1], target.dtype) if idle else np.zeros((), target.dtype)
            return jnp.full(exact, filler, device=device)
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


def _across_processes(spec: Spec, storage: Any, target: Spec) -> tuple[Spec, Any]:
    """Between devices of several processes JAX itself must send: even, plain layouts only."""
    if not (spec.is_plain and target.is_plain):
        raise SbpError(
            f"between placements of several processes, both sides must be split evenly or broadcast; got ({spec.sbp}) "
            f"and ({target.sbp}) for shape {spec.shape}: go through an even signature"
        )
    return target, jax.device_put(storage, target.sharding)
