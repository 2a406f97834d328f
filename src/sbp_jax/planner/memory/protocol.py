"""What the search knows of memory: the bytes of any choice. ``footprint.py`` has them of a program."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..costs.cost_graph import CostGraph


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
