"""What a search may spend: work, which is the same on every machine, and seconds only where the user gives a limit."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """``work`` counts entries of matrices that are looked at; ``seconds`` is a clock, infinite unless the user sets it.

    ``clock`` is read for the second only: a test may pass one of its own.
    """

    work: float = math.inf
    seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic
    spent: float = 0.0
    began: float = field(default=0.0)

    def __post_init__(self) -> None:
        if self.seconds < math.inf:
            self.began = self.clock()

    def spend(self, work: float) -> None:
        """Count some work."""
        self.spent += work

    @property
    def seconds_left(self) -> float:
        """By the clock; infinite without a limit, and the clock is not read then."""
        return math.inf if self.seconds == math.inf else self.seconds - (self.clock() - self.began)

    @property
    def part(self) -> float:
        """Which part of the budget is spent: 1 or more when it is over."""
        part = self.spent / self.work
        if self.seconds < math.inf:
            part = max(part, 1.0 - self.seconds_left / self.seconds) if self.seconds > 0 else 1.0
        return part

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.part >= 1.0
