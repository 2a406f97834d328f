"""Who takes part in a collective: the devices of a placement, in groups along some of its axes."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..errors import SbpError
from ..placement import Placement, placement
from ..shardings import PlacementLike, placement_for

GroupLike = str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Group:
    """The devices along ``axes`` of a placement; one such group for each position on its other axes."""

    placement: Placement
    axes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Members of one group."""
        shape = dict(zip(self.placement.axis_names, self.placement.shape, strict=True))
        return int(np.prod([shape[name] for name in self.axes], dtype=np.int64))

    def __str__(self) -> str:
        return f"{' x '.join(self.axes)} of {self.placement}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A group as this process sees it. ``devices`` are its own, in rank order, with their ``ranks`` in their groups.

    ``processes``: all that take part. ``is_uniform``: whether a tensor that each process passes for all its devices
    gives one result for all devices of this process.
    """

    devices: tuple[Any, ...]
    ranks: tuple[int, ...]
    processes: tuple[int, ...]
    is_uniform: bool


def group_of(group: GroupLike, where: PlacementLike | None) -> Group:
    """The group that a call means: all devices, where it says nothing."""
    p = _default() if where is None else placement_for(where, None)
    axes = axis_names(group) or p.axis_names
    unknown = [name for name in axes if name not in p.axis_names]
    if unknown:
        hint = "" if where is not None else "; placement= says which devices, and their axes"
        raise SbpError(f"group={group!r}: {p} has no axis {unknown[0]!r}; its axes: {', '.join(p.axis_names)}{hint}")
    return Group(p, tuple(name for name in p.axis_names if name in axes))


def axis_names(group: GroupLike) -> tuple[str, ...]:
    """The axes that ``group=`` names; none for None. Raises ``SbpError`` if it names none, or one twice."""
    if group is None:
        return ()
    names = (group,) if isinstance(group, str) else tuple(group)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise SbpError(f"group={group!r} must be the name of a mesh axis, or several different ones")
    return names


def _default() -> Placement:
    return _all(jax.default_backend(), jax.device_count())


@functools.lru_cache(maxsize=8)
def _all(kind: str, devices: int) -> Placement:
    return placement.all(kind)


@functools.lru_cache(maxsize=256)
def layout(group: Group) -> Layout:
    """Devices, ranks and processes of a group."""
    devices: Any = group.placement.mesh.devices
    owner = np.vectorize(lambda d: d.process_index, otypes=[int])(devices)
    names = group.placement.axis_names
    inside = tuple(names.index(name) for name in group.axes)
    shape = group.placement.shape
    here = jax.process_index()
    mine, ranks, lines = [], [], set()
    for position in np.ndindex(shape):
        if owner[position] != here:
            continue
        mine.append(devices[position])
        ranks.append(int(np.ravel_multi_index([position[a] for a in inside], [shape[a] for a in inside])))
        line = tuple(slice(None) if a in inside else k for a, k in enumerate(position))
        lines.add(tuple(owner[line].ravel().tolist()))
    return Layout(tuple(mine), tuple(ranks), tuple(sorted(set(owner.ravel().tolist()))), len(lines) <= 1)


def root_in(group: Group, root: int, what: str) -> int:
    """A rank of the group, checked."""
    if isinstance(root, bool) or not isinstance(root, int | np.integer) or not 0 <= root < group.size:
        raise SbpError(f"{what}={root!r}: the group ({group}) has {group.size} members, ranks 0 to {group.size - 1}")
    return int(root)
