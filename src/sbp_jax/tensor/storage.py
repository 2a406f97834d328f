"""Values in and out of a global tensor's storage: from arrays, from local components, and back to them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .. import boxing
from .._compat import is_tracer
from ..errors import PlacementError, SignatureError
from ..pieces import balanced
from ..placement import Placement
from ..shardings import SbpLike, signature_on
from ..signature import Partial, Signature, Split
from .host_values import compare, put_equal
from .spec import Spec, make_spec, np_dtype


def from_pieces(spec: Spec, piece: Callable[[tuple[int, ...]], Any]) -> jax.Array:
    """The storage, given each position's component (exact, not padded); asked for this process's devices only."""
    shape, devices = (1,) * len(spec.stacked) + spec.local_shape, spec.placement.mesh.devices
    buffers = []
    for position in spec.positions():
        device = devices[position]
        if device.process_index != jax.process_index():
            continue
        x = jax.device_put(piece(position), device)
        padding = [(0, n - m) for n, m in zip(spec.local_shape, x.shape, strict=True)]
        x = jnp.pad(x, padding) if any(after for _, after in padding) else x
        buffers.append(x.reshape(shape))
    return jax.make_array_from_single_device_arrays(spec.storage_shape, spec.sharding, buffers, dtype=spec.dtype)


def from_logical(spec: Spec, x: Any) -> jax.Array:
    """The storage of a whole value: where partial, the first device along the axis has it, the others the identity."""
    if spec.is_plain:
        return put_equal(x, spec.sharding, "a tensor's value")
    if not is_tracer(x):
        compare([("the value", x)], spec.placement.mesh, "a tensor's value")
    partial = {a: c.op for a, c in enumerate(spec.sbp) if isinstance(c, Partial)}

    def piece(position: tuple[int, ...]) -> Any:
        idle = [op for a, op in partial.items() if position[a] > 0]
        cut = x[spec.box(position)]
        # Nested reductions of different kinds: the innermost axis on which the device is idle says its identity.
        return cut if not idle else np.full(cut.shape, boxing.identity(idle[-1], spec.dtype))

    return from_pieces(spec, piece)


def components(spec: Spec, storage: jax.Array) -> dict[int, jax.Array]:
    """By rank, in the placement's order: the components of this process's devices, exact (no padding)."""
    held = {s.device: s.data for s in storage.addressable_shards}
    devices, ranks = spec.placement.mesh.devices, spec.placement.ranks
    found = {}
    for position in spec.positions():
        data = held.get(devices[position])
        if data is not None:
            exact = spec.piece_shape(position)
            # XLA is free to store nothing at all in any shape.
            x = data.reshape(data.shape[len(spec.stacked) :] if data.size else exact)
            found[int(ranks[position])] = x if x.shape == exact else x[tuple(slice(0, n) for n in exact)]
    return found


def local_to_global(
    locals_: Sequence[Any] | Mapping[int, Any], placement: Placement, sbp: SbpLike
) -> tuple[Spec, jax.Array]:
    """Spec and storage of the tensor whose components these are."""
    here = _by_rank(locals_, placement)
    arrays = {r: x if isinstance(x, jax.Array) else np.asarray(x) for r, x in here.items()}
    shapes = _everyones({r: (x.shape, np_dtype(x.dtype)) for r, x in arrays.items()}, placement)
    first = next(iter(shapes.values()))
    signature = signature_on(sbp, len(first[0]), placement)
    spec = make_spec(_logical_shape(shapes, placement, signature), first[1], placement, signature)
    _check_shapes(spec, shapes)
    copied = [a for a, c in enumerate(signature) if not isinstance(c, Split | Partial)]

    def piece(position: tuple[int, ...]) -> Any:
        # Copies are the first device's along the axis, so that they are equal (as OneFlow does).
        origin = tuple(0 if a in copied else k for a, k in enumerate(position))
        rank = int(placement.ranks[origin])
        return arrays[rank if rank in arrays else int(placement.ranks[position])].astype(spec.dtype)

    return spec, from_pieces(spec, piece)


def _by_rank(locals_: Sequence[Any] | Mapping[int, Any], placement: Placement) -> dict[int, Any]:
    devices: Any = placement.mesh.devices
    here = jax.process_index()
    mine = [int(r) for p, r in np.ndenumerate(placement.ranks) if devices[p].process_index == here]
    if isinstance(locals_, Mapping):
        strange = sorted(set(locals_) - set(placement.flat_ranks))
        if strange:
            raise PlacementError(
                f"ranks {strange} are not in {placement}, whose ranks are {list(placement.flat_ranks)}"
            )
        missing = sorted(set(mine) - set(locals_))
        if missing:
            raise PlacementError(f"components of ranks {missing} are missing; {placement} needs one of every rank")
        return {r: locals_[r] for r in mine}
    if not isinstance(locals_, list | tuple):
        raise SignatureError(
            f"local_to_global takes a list with one component for each rank of this process ({mine}), or a dict by "
            f"rank, got {type(locals_).__name__}"
        )
    if len(locals_) != len(mine):
        raise PlacementError(
            f"{len(locals_)} component(s) given, but this process holds {len(mine)} rank(s) of {placement}: {mine}; "
            "give one for each, in that order"
        )
    return dict(zip(mine, locals_, strict=True))


_MAX_NDIM, _NAME = 16, 16


def _everyones(mine: dict[int, Any], placement: Placement) -> dict[int, Any]:
    """Shapes and dtypes by rank, of all processes."""
    if jax.process_count() == 1:
        return mine
    from jax.experimental import multihost_utils

    # A row for each rank of the placement: the number of dims, the dims, the dtype's name.
    table = np.full((placement.size, 1 + _MAX_NDIM + _NAME), -1, np.int64)
    order = {r: k for k, r in enumerate(placement.flat_ranks)}
    for r, (shape, dtype) in mine.items():
        name = dtype.name.encode().ljust(_NAME)
        table[order[r]] = [len(shape), *shape, *(0,) * (_MAX_NDIM - len(shape)), *name]
    merged = np.max(np.asarray(multihost_utils.process_allgather(table)).reshape(-1, *table.shape), axis=0)
    rows = {r: list(map(int, merged[k])) for r, k in order.items() if merged[k][0] >= 0}
    return {
        r: (tuple(row[1 : 1 + row[0]]), np_dtype(bytes(row[1 + _MAX_NDIM :]).decode().strip()))
        for r, row in rows.items()
    }


def _logical_shape(shapes: Mapping[int, Any], placement: Placement, signature: Signature) -> tuple[int, ...]:
    """The sum of the pieces along each dim that is split, walking from the first device."""
    ndim = len(next(iter(shapes.values()))[0])
    ranks = {tuple(p): int(r) for p, r in np.ndenumerate(placement.ranks)}
    wrong = {r: s for r, (s, _) in shapes.items() if len(s) != ndim}
    if wrong:
        raise SignatureError(f"components must have the same rank (number of dims); got shapes {_listed(shapes)}")
    lengths = []
    for d in range(ndim):
        axes = signature.split_axes(d)
        total = 0
        for index in np.ndindex(*(placement.shape[a] for a in axes)):
            position = [0] * placement.ndim
            for a, k in zip(axes, index, strict=True):
                position[a] = k
            total += shapes[ranks[tuple(position)]][0][d]
        lengths.append(total)
    return tuple(lengths)


def _check_shapes(spec: Spec, shapes: Mapping[int, Any]) -> None:
    dtypes = {str(dtype) for _, dtype in shapes.values()}
    if len(dtypes) > 1:
        raise SignatureError(f"components must have one dtype; got {', '.join(sorted(dtypes))}")
    expected = {int(r): spec.piece_shape(p) for p, r in np.ndenumerate(spec.placement.ranks)}
    wrong = {r: s for r, (s, _) in shapes.items() if s != expected[r]}
    if not wrong:
        return
    lines = [f"rank {r} has {s}, expected {expected[r]}" for r, s in wrong.items()]
    example = next((c.dim for c in spec.sbp if isinstance(c, Split)), None)
    hint = "" if example is None else (
        f" (pieces are balanced: {spec.shape[example]} is cut as "
        f"{', '.join(map(str, balanced(spec.shape[example], spec.placement.size)))} over {spec.placement.size})"
        if len(spec.sbp.split_axes(example)) == spec.placement.ndim
        else " (pieces are balanced, the first ranks have one more)"
    )  # fmt: skip
    raise SignatureError(
        f"components do not make up one tensor of shape {spec.shape} as ({spec.sbp}) on {spec.placement}: "
        f"{'; '.join(lines)}{hint}"
    )


def _listed(shapes: Mapping[int, Any]) -> str:
    return ", ".join(f"rank {r}: {s}" for r, (s, _) in shapes.items())


def replicate(x: Any, placement: Placement) -> jax.Array:
    """A plain array or number on every device of a placement."""
    return put_equal(x, NamedSharding(placement.mesh, PartitionSpec()), "an operand beside global tensors")
