"""Placements: which devices hold a tensor, arranged in a named n-d mesh.

A placement is plain data (type, ranks, axis names). Its ``mesh`` is made on demand, so a placement
for planning needs no devices at all (``placement.abstract``).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from . import cluster as clusters
from .errors import PlacementError

_TYPES = {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "tpu": "tpu"}


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices of one ``type``, as an n-d array of ranks with a name for each axis.

    ``ranks`` index ``jax.devices(type)``; the order given is the order meant. ``cluster`` names the
    hardware that an abstract placement stands for. ``is_described``: it stands for devices that are only described
    (``jax.experimental.topologies``); in the process that has their mesh steps can be compiled for them, not run.
    """

    type: str
    shape: tuple[int, ...]
    flat_ranks: tuple[int, ...]
    axis_names: tuple[str, ...]
    is_abstract: bool = False
    cluster: str | None = None
    is_described: bool = False

    def __post_init__(self) -> None:
        if self.type not in _TYPES.values():
            raise PlacementError(f"placement type {self.type!r} is not known; possible: {', '.join(_TYPES)}")
        if not self.shape or any(n < 1 for n in self.shape):
            raise PlacementError(f"placement needs at least one device on each axis, got shape {self.shape}")
        repeated = (
            sorted({r for r in self.flat_ranks if self.flat_ranks.count(r) > 1})
            if len(set(self.flat_ranks)) != len(self.flat_ranks)
            else []
        )
        if repeated:
            raise PlacementError(f"ranks {repeated} are repeated in the placement; each device can hold one component")
        if any(r < 0 for r in self.flat_ranks):
            raise PlacementError(f"ranks must be 0 or more, got {sorted(r for r in self.flat_ranks if r < 0)}")
        if len(self.axis_names) != len(self.shape) or len(set(self.axis_names)) != len(self.axis_names):
            raise PlacementError(
                f"axis_names {self.axis_names} must be {len(self.shape)} different names, one for each axis of "
                f"shape {self.shape}"
            )

    @property
    def ranks(self) -> np.ndarray:
        """The ranks as an array of the placement's shape."""
        return np.array(self.flat_ranks).reshape(self.shape)

    @property
    def ndim(self) -> int:
        """The number of mesh axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @property
    def can_compile(self) -> bool:
        """Whether there are devices, or descriptions of them, that XLA can compile for."""
        return not self.is_abstract or self in _DESCRIBED

    @property
    def mesh(self) -> Mesh:
        """The ``jax.sharding.Mesh`` over the devices. Raises ``PlacementError`` when they do not exist."""
        if self.is_abstract:
            if self in _DESCRIBED:
                return _DESCRIBED[self]
            raise PlacementError(
                f"{self} is abstract: it has no devices, it is for planning only. "
                "Use sbp.placement(type, ranks=...) or sbp.placement.all(type) to run"
            )
        return _mesh(self)

    def stage(self, index: int) -> "Placement":
        """The devices at a position of the outermost axis: a stage of a pipeline, with the axes inside.

        Of a placement of one axis it is one device, on an axis of that name. Raises ``PlacementError`` for a position
        that there is not.
        """
        n = self.shape[0]
        if isinstance(index, bool) or not isinstance(index, int) or not -n <= index < n:
            raise PlacementError(f"{self} has the stages 0 to {n - 1} along {self.axis_names[0]!r}, got {index!r}")
        inner, names = (self.shape[1:], self.axis_names[1:]) if self.ndim > 1 else ((1,), self.axis_names)
        ranks = tuple(int(r) for r in self.ranks[index].reshape(-1))
        return Placement(self.type, inner, ranks, names, self.is_abstract, self.cluster)

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={n}" for name, n in zip(self.axis_names, self.shape, strict=True))
        return f"{'abstract ' if self.is_abstract else ''}{self.cluster or self.type}[{axes}]"


# Meshes of devices that are only described, by the placements that stand for them.
_DESCRIBED: dict[Placement, Mesh] = {}


@functools.lru_cache(maxsize=256)
def _mesh(p: Placement) -> Mesh:
    devices = _devices(p.type)
    missing = sorted(r for r in p.flat_ranks if r >= len(devices))
    if missing:
        raise PlacementError(
            f"{p} needs ranks {missing}, but there are only {len(devices)} {p.type} device(s) "
            f"(ranks 0..{len(devices) - 1}). "
            "To simulate more on CPU set XLA_FLAGS=--xla_force_host_platform_device_count=N before jax starts; "
            "to plan without devices use sbp.placement.abstract(shape, axis_names=...)"
        )
    array = np.array([devices[r] for r in p.flat_ranks], dtype=object).reshape(p.shape)
    return Mesh(array, p.axis_names, axis_types=(AxisType.Auto,) * p.ndim)


def _devices(kind: str) -> list[Any]:
    try:
        return jax.devices(kind)
    except RuntimeError as error:
        raise PlacementError(
            f"there are no {kind} devices here; this process sees {jax.devices()[0].platform} only"
        ) from error


def _is_here(device: Any) -> bool:
    """Whether a device exists; False for one of a topology's description."""
    try:
        return device in jax.devices(device.platform)
    except RuntimeError:
        return False


def _kind(type: str) -> str:
    if type not in _TYPES:
        raise PlacementError(f"placement type {type!r} is not known; possible: {', '.join(_TYPES)}")
    return _TYPES[type]


def _names(axis_names: Sequence[str] | str | None, ndim: int) -> tuple[str, ...]:
    if axis_names is None:
        return tuple(f"axis{i}" for i in range(ndim))
    return (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)


def _check_meant(type: str, ranks: object) -> None:
    """Refuse what is more likely a number of devices, or a mesh's shape, than devices' numbers."""
    if isinstance(ranks, int | np.integer) and not isinstance(ranks, bool) and ranks > 0:
        raise PlacementError(
            f"ranks={ranks} is one number: {ranks} devices are sbp.placement({type!r}, ranks=range({ranks})), all that "
            f"there are sbp.placement.all({type!r}), device number {ranks} alone is ranks=[{ranks}]"
        )
    is_shape = isinstance(ranks, tuple) and len(ranks) > 1 and all(isinstance(n, int) and n > 0 for n in ranks)
    if isinstance(ranks, tuple) and is_shape:
        size, shape = math.prod(ranks), ", ".join(map(str, ranks))
        raise PlacementError(
            f"ranks=({shape}): a mesh of that shape is sbp.placement({type!r}, ranks=np.arange({size}).reshape({shape})"
            f"), or jax.make_mesh(({shape}), ...) as the placement; devices number {shape} are ranks=[{shape}]"
        )


class _PlacementFactory:
    """``sbp.placement(...)`` and its other constructors."""

    def __call__(self, type: str, ranks: object, axis_names: Sequence[str] | str | None = None) -> Placement:
        """Devices of ``type`` "cpu", "gpu"/"cuda" or "tpu": ``ranks`` is a list of their numbers, nested once for each
        further mesh axis, or an array of them.

        Raises ``PlacementError`` for one number other than 0, and a tuple of numbers that may be a mesh's shape.
        """
        _check_meant(type, ranks)
        try:
            array = np.atleast_1d(np.asarray(ranks))
        except ValueError:
            array = np.empty(0, dtype=object)
        if array.size == 0 or not np.issubdtype(array.dtype, np.integer):
            raise PlacementError(f"ranks must be a non-empty regular array of integers, got {ranks!r}")
        return Placement(_kind(type), array.shape, tuple(map(int, array.ravel())), _names(axis_names, array.ndim))

    def all(self, type: str, axis_names: Sequence[str] | str | None = None) -> "Placement":
        """Every visible device of ``type``, on one axis."""
        n = len(_devices(_kind(type)))
        return Placement(_kind(type), (n,), tuple(range(n)), _names(axis_names, 1))

    def from_mesh(self, mesh: Mesh | AbstractMesh) -> Placement:
        """The placement of a ``jax.sharding.Mesh``.

        An ``AbstractMesh`` gives an abstract placement, and so does a mesh of devices that are only described
        (``jax.experimental.topologies.get_topology_desc(...).devices``), for which steps can be compiled, too.
        """
        names = tuple(map(str, mesh.axis_names))
        if isinstance(mesh, AbstractMesh):
            return self.abstract(tuple(mesh.axis_sizes), axis_names=names)
        devices = list(mesh.devices.ravel())
        kind = _kind(devices[0].platform)
        if not _is_here(devices[0]):
            like = clusters.preset_of(devices[0].device_kind)
            described = self.abstract(mesh.devices.shape, names, None if like is None else like.name, kind)
            described = replace(described, is_described=True)
            _DESCRIBED[described] = mesh
            return described
        order = {d: r for r, d in enumerate(_devices(kind))}
        return Placement(kind, mesh.devices.shape, tuple(order[d] for d in devices), names)

    def abstract(
        self,
        shape: Sequence[int] | int,
        axis_names: Sequence[str] | str | None = None,
        cluster: str | None = None,
        type: str = "gpu",
    ) -> Placement:
        """A mesh of ``shape`` without devices, standing for ``cluster``: for planning only.

        Raises ``SbpError`` for a cluster that is not known.
        """
        if cluster is not None:
            clusters.get(cluster)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        names = _names(axis_names, len(sizes))
        return Placement(_kind(type), sizes, tuple(range(math.prod(sizes))), names, True, cluster)


placement = _PlacementFactory()
