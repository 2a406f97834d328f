"""Signatures <-> JAX's shardings; a mesh or a sharding read where a placement or a signature is wanted."""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .errors import PlacementError, SignatureError
from .placement import Placement, placement
from .signature import Component, Partial, Signature, SignatureLike, Split, broadcast, signature_for

PlacementLike: TypeAlias = Placement | Mesh | AbstractMesh
SbpLike: TypeAlias = SignatureLike | PartitionSpec | NamedSharding


def is_sbp(x: Any) -> bool:
    """Whether ``x`` is read as one signature (None: no pin), and not as a tree of them."""
    return x is None or isinstance(x, str | Signature | Component | PartitionSpec | NamedSharding) or (
        isinstance(x, tuple | list) and len(x) > 0 and all(isinstance(c, Component) for c in x)
    )  # fmt: skip


def as_placement(given: Any, what: str = "placement") -> Placement:
    """A placement, or that of a mesh. Raises ``PlacementError`` for anything else."""
    if isinstance(given, Placement):
        return given
    if isinstance(given, Mesh | AbstractMesh):
        return _of_mesh(given)
    raise PlacementError(
        f"{what} must be a sbp.placement(...) or a jax.sharding.Mesh, got {given!r}; possible: "
        "sbp.placement('cpu', ranks=[0, 1]), sbp.placement.all('gpu'), jax.make_mesh((2, 4), ('dp', 'tp'))"
    )


@functools.lru_cache(maxsize=256)
def _of_mesh(mesh: Mesh | AbstractMesh) -> Placement:
    if not mesh.axis_names:
        raise PlacementError("the mesh has no axes: a placement needs at least one")
    return placement.from_mesh(mesh)


def placement_for(given: Any, sbp: Any, what: str = "a global tensor") -> Placement:
    """The placement given, else that of the mesh in ``sbp``. Raises ``PlacementError`` where there is neither."""
    if given is None and isinstance(sbp, NamedSharding):
        given = sbp.mesh
    if given is None:
        raise PlacementError(
            f"{what} needs placement=..., got None; possible: sbp.placement('cpu', ranks=[0, 1]), "
            "sbp.placement.all('gpu'), a jax.sharding.Mesh, or sbp=NamedSharding(mesh, spec)"
        )
    return as_placement(given)


def signature_on(given: SbpLike, ndim: int, where: Placement) -> Signature:
    """The signature that ``given`` means for a tensor of rank ``ndim`` on ``where``.

    ``given`` is a signature, a ``PartitionSpec`` of the placement's axes, or a ``NamedSharding`` of its mesh. Raises
    ``SignatureError`` for another mesh, and what does not fit the rank or the axes.
    """
    if isinstance(given, NamedSharding):
        sizes = tuple((str(n), int(k)) for n, k in given.mesh.shape.items())
        check_mesh(sizes, device_ids(given.mesh), where, str(given.spec))
        if given.memory_kind not in (None, "device") and not isinstance(given.mesh, AbstractMesh):
            if given.memory_kind not in {d.default_memory().kind for d in given.device_set}:
                raise SignatureError(f"{given}: memory kind {given.memory_kind!r} is not the devices' default")
        given = given.spec
    if isinstance(given, PartitionSpec):
        return from_partition_spec(given, where.axis_names, ndim)
    return signature_for(given, ndim, where.shape)


def device_ids(mesh: Mesh | AbstractMesh) -> tuple[int, ...] | None:
    """The ids of a mesh's devices, row-major; None for an abstract mesh."""
    return None if isinstance(mesh, AbstractMesh) else tuple(d.id for d in mesh.devices.flat)


def check_mesh(axes: Sequence[tuple[str, int]], devices: Sequence[int] | None, where: Placement, asked: str) -> None:
    """That a mesh is a placement's: the same axes, in whatever order, and where both have devices the same ones at the
    same coordinates. Raises ``SignatureError``, which names both; ``asked`` is what was on the mesh."""
    if dict(axes) != dict(zip(where.axis_names, where.shape, strict=True)):
        told = ", ".join(f"{name}={n}" for name, n in axes)
        raise SignatureError(
            f"{asked} is on a mesh [{told}], the placement is {where}: the axes must have the same names "
            "and sizes. Use the placement's mesh, or give this mesh as the placement"
        )
    if devices is None or where.is_abstract:
        return
    turned = where.mesh.devices.transpose([where.axis_names.index(name) for name, _ in axes])
    ids = [d.id for d in turned.flat]
    if list(devices) != ids:
        raise SignatureError(
            f"{asked} is on a mesh of devices {list(devices)}, {where} has {ids}: the devices must be the same, in "
            "the same order. Use the placement's mesh, or give this mesh as the placement"
        )


def to_partition_spec(signature: SbpLike, p: PlacementLike, ndim: int, allow_unreduced: bool = False) -> PartitionSpec:
    """The ``PartitionSpec`` of a tensor of rank ``ndim``, one entry for each dimension.

    A dimension split by several axes names them outermost first. ``PartitionSpec`` cannot say partial:
    that raises ``SignatureError``, or with ``allow_unreduced`` sums become ``P(..., unreduced={axis})``.
    """
    p = as_placement(p)
    sig = signature_on(signature, ndim, p)
    entries: list[str | tuple[str, ...] | None] = []
    for dim in range(ndim):
        names = tuple(p.axis_names[i] for i in sig.split_axes(dim))
        entries.append(names[0] if len(names) == 1 else names or None)
    partial = {p.axis_names[i]: c for i, c in enumerate(sig) if isinstance(c, Partial)}
    if not partial:
        return PartitionSpec(*entries)
    if not allow_unreduced:
        raise SignatureError(
            f"({sig}) is partial on {', '.join(partial)}: a PartitionSpec can say split and broadcast only. "
            "Redistribute to B or S(dim) first, or pass allow_unreduced=True"
        )
    other = [c for c in partial.values() if c.op != "sum"]
    if other:
        raise SignatureError(f"({sig}): PartitionSpec(unreduced=...) means a sum; {other[0]} has no counterpart")
    return PartitionSpec(*entries, unreduced=frozenset(partial))


def to_sharding(signature: SbpLike, p: PlacementLike, ndim: int) -> NamedSharding:
    """The ``NamedSharding`` of a tensor of rank ``ndim`` on ``p`` (whose devices must exist)."""
    p = as_placement(p)
    return NamedSharding(p.mesh, to_partition_spec(signature, p, ndim))


def from_partition_spec(spec: PartitionSpec, axis_names: Sequence[str], ndim: int) -> Signature:
    """The signature that ``spec`` means on axes ``axis_names``; what SBP cannot say raises."""
    order = {name: i for i, name in enumerate(axis_names)}
    components: list[Component] = [broadcast] * len(order)
    if len(spec) > ndim:
        raise SignatureError(f"{spec} has {len(spec)} entries, but the tensor has rank {ndim}")
    for dim, entry in enumerate(spec.partitions):
        if entry is PartitionSpec.UNCONSTRAINED:
            raise SignatureError(
                f"{spec} leaves dimension {dim} open: a signature says of every axis what it does. Only pins "
                "(in_sbp, out_sbp, to_global inside a planned function) may leave a dimension to the planner"
            )
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        unknown = [n for n in names if n not in order]
        if unknown:
            raise SignatureError(f"{spec} names axes {unknown}; the mesh has {tuple(order)}")
        if list(names) != sorted(names, key=order.__getitem__):
            raise SignatureError(
                f"{spec} splits dimension {dim} by {names}, against the order of the mesh axes {tuple(order)}: "
                "signatures nest outermost first. Reorder the mesh's axes, or the entry"
            )
        for name in names:
            components[order[name]] = Split(dim)
    for name in getattr(spec, "unreduced", ()):
        components[order[name]] = Partial("sum")
    return Signature(tuple(components))


def from_sharding(sharding: NamedSharding, ndim: int) -> Signature:
    """The signature, on the sharding's own mesh, of a tensor of rank ``ndim``."""
    if not isinstance(sharding, NamedSharding):
        raise SignatureError(f"from_sharding takes a NamedSharding (a mesh with names), got {type(sharding).__name__}")
    return from_partition_spec(sharding.spec, tuple(map(str, sharding.mesh.axis_names)), ndim)
