"""How a value lies on two sides, each a device or a group of devices, and what it takes to lie another way.

A layout is a number, as in ``rules/widen.py`` (a split dim, ``B``, a term of a reduction), with three more: whole on
the first side alone, on the second alone, or outside of both. Of a split dim the first side has the part ``ratio``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...rules.widen import B
from ..placing import Devices

FIRST, SECOND, OUTSIDE = -5, -6, -7


def is_terms(layout: int) -> bool:
    """Whether the sides have terms of a reduction."""
    return FIRST < layout < B


def received(source: int, target: int, size_bytes: float, ratio: float) -> tuple[float, float] | None:
    """Bytes that the first and the second side receive of a value of ``size_bytes``; None where there is no way.

    As in AccPar's tables of what moves between layers (section 4): what a side needs and does not have. Of terms of a
    reduction each side needs the other's; a whole value becomes a term beside zeros, which are not sent.
    """
    if source == target or source == B:
        return 0.0, 0.0
    own = ratio, 1.0 - ratio
    if is_terms(target):
        if source >= 0 or is_terms(source):
            return None
        return (size_bytes if source == OUTSIDE else 0.0), 0.0
    needs = own if target >= 0 else (float(target != SECOND), float(target != FIRST))
    has = own if source >= 0 else (float(source == FIRST), float(source == SECOND))
    return size_bytes * needs[0] * (1.0 - has[0]), size_bytes * needs[1] * (1.0 - has[1])


@dataclass(frozen=True, slots=True)
class Sides:
    """Two groups of devices, by number, and what lies between them.

    ``latency_seconds``, ``bytes_per_second`` to the first side and to the second; ``memory_rate`` by side.
    """

    groups: tuple[tuple[int, ...], tuple[int, ...]]
    latency_seconds: tuple[float, float]
    bytes_per_second: tuple[float, float]
    memory_rate: tuple[float, float]

    @classmethod
    def of(cls, devices: Devices, first: Sequence[int], second: Sequence[int]) -> "Sides":
        """Links are the means of those between the groups' devices; memory works side by side."""
        wait, rate = np.array(devices.latency_seconds), np.array(devices.bytes_per_second)
        to_second, to_first = np.ix_(first, second), np.ix_(second, first)
        memory = [sum(devices.kinds[d].memory_rate for d in group) for group in (first, second)]
        return cls((tuple(first), tuple(second)), (float(wait[to_first].mean()), float(wait[to_second].mean())),
                   (float(rate[to_first].mean()), float(rate[to_second].mean())), (memory[0], memory[1]))  # fmt: skip

    def seconds(self, source: int, target: int, size_bytes: float, ratio: float) -> tuple[float, float]:
        """Until the first and the second side have a value in another layout; ``inf`` where there is no way.

        What is put together of two parts, or added up, is written once more.
        """
        sent = received(source, target, size_bytes, ratio)
        if sent is None:
            return float("inf"), float("inf")
        is_joined = source >= 0 or is_terms(source)
        whole = (ratio, 1.0 - ratio) if target >= 0 else (1.0, 1.0)
        found = [0.0, 0.0]
        for side, n in enumerate(sent):
            if n:
                found[side] = self.latency_seconds[side] + n / self.bytes_per_second[side]
                found[side] += 2 * size_bytes * whole[side] / self.memory_rate[side] if is_joined else 0.0
        return found[0], found[1]
