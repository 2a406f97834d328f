"""Registers: places in memory for what is kept from one time slot to another, each used again when it is free.

Lifetimes are intervals, so giving every value the first register that is free needs no more of them than values of its
type are ever alive at once.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .layout import Type


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From the end of the slot ``made`` to the start of the slot ``last``, in which it is read for the last time."""

    type: Type
    made: int
    last: int


@dataclass(slots=True)
class Registers:
    """How many registers of each type every rank needs at most, and which one each value has, by rank and key.

    One more of each type takes what is not kept.
    """

    count: dict[Type, int] = field(default_factory=dict)
    at: dict[tuple[int, Any], int] = field(default_factory=dict)


def allocate(ranks: Mapping[int, Mapping[Any, Lifetime]]) -> Registers:
    """Registers for the values of every rank."""
    found = Registers()
    for rank, values in ranks.items():
        free: dict[Type, list[int]] = {}
        used: dict[Type, list[tuple[int, int]]] = {}
        count: dict[Type, int] = {}
        for key, life in sorted(values.items(), key=lambda item: item[1].made):
            ours, busy = free.setdefault(life.type, []), used.setdefault(life.type, [])
            while busy and busy[0][0] <= life.made:
                heapq.heappush(ours, heapq.heappop(busy)[1])
            if ours:
                k = heapq.heappop(ours)
            else:
                k = count[life.type] = count.get(life.type, 0) + 1
                k -= 1
            heapq.heappush(busy, (life.last, k))
            found.at[rank, key] = k
        for kind, n in count.items():
            found.count[kind] = max(found.count.get(kind, 0), n)
    return found
