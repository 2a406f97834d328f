"""The values that a limit may have: those of single stages, or, where a pipeline's is none of these, any number."""

from dataclasses import dataclass

import numpy as np

from .costs import Array

# Parts of a limit that are not told apart, where it may be any number.
_ROUNDING = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Some numbers, in order."""

    values: Array

    def below(self, x: float) -> float:
        """The next one below; -inf if there is none."""
        k = int(np.searchsorted(self.values, x))
        return float(self.values[k - 1]) if k else -np.inf

    def at_most(self, x: float) -> float:
        """The next one at or below."""
        k = int(np.searchsorted(self.values, x, "right"))
        return float(self.values[k - 1]) if k else -np.inf

    def above(self, x: float) -> float:
        """The next one above; inf if there is none."""
        k = int(np.searchsorted(self.values, x, "right"))
        return float(self.values[k]) if k < len(self.values) else np.inf

    def halves(self, low: float, high: float) -> tuple[float, float] | None:
        """The end of the lower half, and where the upper one begins; None where there is nothing to cut."""
        if low >= high:
            return None
        middle = max(min(self.at_most((low + high) / 2), self.below(high)), low)
        return middle, self.above(middle)


@dataclass(frozen=True, slots=True)
class Line:
    """All numbers from ``least`` on."""

    least: float

    def below(self, x: float) -> float:
        """The next one below that is told apart; -inf if there is none."""
        less = x * (1 - _ROUNDING)
        return less if less >= self.least else -np.inf

    def at_most(self, x: float) -> float:
        """``x``; -inf if it is below the least."""
        return x if x >= self.least else -np.inf

    def above(self, x: float) -> float:
        """``x`` itself: numbers as close to it as one likes."""
        return x

    def halves(self, low: float, high: float) -> tuple[float, float] | None:
        """The same number twice, half way; None where there is nothing to cut."""
        middle = (low + high) / 2
        return (middle, middle) if high - low > _ROUNDING * high else None
