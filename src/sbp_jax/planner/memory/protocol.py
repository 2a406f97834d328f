"""What the search knows of memory: the bytes of any choice. ``footprint.py`` has them of a program."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..costs.cost_graph import CostGraph


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Bytes held at the points ``first`` to ``end - 1``, by the choice of ``a``, or of ``a`` (rows) and ``b``.

    ``b`` is -1 where only ``a`` decides; where it is ``a`` itself, the diagonal counts. ``bytes`` are not negative.
    """

    a: int
    b: int
    bytes: np.ndarray
    first: int
    end: int


class FootprintLike(Protocol):
    """The bytes of any choice over the step, and a graph whose total is those of one point."""

    def over_time(self, choice: Sequence[int]) -> np.ndarray:
        """Bytes a device holds at each node."""
        ...

    def at(self, point: int) -> CostGraph:
        """The same nodes and choices, with the bytes held at one point instead of seconds."""
        ...

    def held(self, choice: Sequence[int], point: int) -> list[tuple[str, float]]:
        """What is held at one point, in words, and its bytes."""
        ...

    def by_interval(self) -> Iterator[MemoryTable]:
        """All bytes, by where in the step they are held."""
        ...
