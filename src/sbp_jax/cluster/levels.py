"""Levels of links between devices, and where the groups of a mesh lie in them."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import SbpError


@dataclass(frozen=True, slots=True)
class Level:
    """One level of links. ``devices`` in one unit of it (8 for a node of 8); None for the outermost.

    bytes_per_second: the line rate of one link of this level, one direction. A device has one link, unless
        ``uplinks`` says how many of them each unit of the level inside shares (a node of 8 devices with 4 adapters:
        4). Devices of a unit then get equal shares.
    latency_seconds: one step of a ring, from one device to the next.
    efficiency: the part of the line rate that collectives reach.
    pair_bytes_per_second: between one pair of devices, where no switch lets a device use its whole rate towards any
        other (MI300X, DGX-1). Of the innermost level only.
    startup_seconds: what a collective over this level takes before its first step.

    Raises ``SbpError`` for values that cannot be.
    """

    name: str
    devices: int | None
    bytes_per_second: float
    latency_seconds: float
    efficiency: float = 1.0
    uplinks: int | None = None
    pair_bytes_per_second: float | None = None
    startup_seconds: float = 0.0

    def __post_init__(self) -> None:
        where = f"level {self.name!r}"
        positive(where, bytes_per_second=self.bytes_per_second, devices=self.devices, uplinks=self.uplinks,
                 pair_bytes_per_second=self.pair_bytes_per_second)  # fmt: skip
        not_negative(where, latency_seconds=self.latency_seconds, startup_seconds=self.startup_seconds)
        fraction(where, efficiency=self.efficiency)


@dataclass(frozen=True, slots=True)
class Link:
    """What a group of devices communicates over: bytes per second of a ring through the whole group."""

    bytes_per_second: float
    latency_seconds: float
    level: str


def positive(where: str, **values: float | None) -> None:
    """Raise ``SbpError`` naming all values that are not above zero. None is a value left out."""
    _check(where, "must be above zero", {k: v for k, v in values.items() if v is not None and not v > 0})


def not_negative(where: str, **values: float) -> None:
    """Raise ``SbpError`` naming all values below zero."""
    _check(where, "must not be below zero", {k: v for k, v in values.items() if not v >= 0})


def fraction(where: str, **values: float) -> None:
    """Raise ``SbpError`` naming all values outside (0, 1]."""
    _check(where, "must be above 0 and at most 1", {k: v for k, v in values.items() if not 0 < v <= 1})


def _check(where: str, rule: str, wrong: dict[str, float]) -> None:
    if wrong:
        raise SbpError(f"{where}: {', '.join(f'{k} = {v}' for k, v in wrong.items())}: {rule}")


def check_levels(levels: Sequence[Level]) -> None:
    """Raise ``SbpError`` unless every level's units are made of whole units of the one inside."""
    if not levels:
        raise SbpError("a cluster needs at least one level of links")
    if levels[-1].devices is not None:
        raise SbpError(
            f"the outermost level, {levels[-1].name!r}, has devices = {levels[-1].devices}: it holds all there are, "
            "so leave `devices` out"
        )
    if levels[0].uplinks is not None:
        raise SbpError(f"level {levels[0].name!r}: `uplinks` lead out of the level inside, and there is none")
    for inner, outer in itertools.pairwise(levels):
        if inner.devices is None or (outer.devices is not None and outer.devices % inner.devices):
            raise SbpError(
                f"levels go from the inside out: {outer.name!r} (devices = {outer.devices}) is not made of whole "
                f"units of {inner.name!r} (devices = {inner.devices})"
            )
        if outer.pair_bytes_per_second is not None:
            raise SbpError(f"level {outer.name!r}: `pair_bytes_per_second` is of the innermost level only")
    names = [v.name for v in levels]
    if len(set(names)) < len(names):
        raise SbpError(f"two levels have one name: {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class Span:
    """How a group lies at one level: over ``units`` of it, with ``members`` in the one that holds fewest."""

    members: int
    units: int


@functools.lru_cache(maxsize=4096)
def spans(units: tuple[int | None, ...], mesh: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[Span, ...], ...]:
    """The ways in which the groups along ``axes`` of a mesh lie in units of the given sizes, innermost level first.

    Ranks are row-major and fill a unit before the next. Each way ends with the first level that holds the group whole.
    """
    offsets, starts = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for axis, n in enumerate(mesh):
        steps = np.arange(n) * math.prod(mesh[axis + 1 :])
        if axis in axes:
            offsets = (offsets[:, None] + steps).ravel()
        else:
            starts = (starts[:, None] + steps).ravel()
    finite = [u for u in units if u is not None]
    if finite:  # units nest, so what matters of a start is its place in the largest one
        starts = np.unique(starts % finite[-1])
    found = {}
    for start in starts:
        way = []
        for u in units:
            counts = [len(offsets)] if u is None else np.unique((start + offsets) // u, return_counts=True)[1]
            way.append(Span(int(min(counts)), len(counts)))
            if len(counts) == 1:
                break
        found[tuple(way)] = None
    return tuple(found)
