"""What to say when no plan fits: by how much, what holds most of the memory, what would help."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import PlanError
from ...paths import fold, starred
from .protocol import FootprintLike


class TooSmall(PlanError):
    """No plan was found within a memory limit; ``smallest_bytes`` is the least that one was found for.

    Attributes:
        least_bytes: what every plan holds at least (proven).
        told: the message, where every plan holds so many bytes at least.
    """

    def __init__(
        self, message: str, smallest_bytes: float, least_bytes: float = 0.0,
        told: Callable[[float], str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.smallest_bytes, self.least_bytes, self.told = smallest_bytes, least_bytes, told

    def where(self, least_bytes: float) -> "TooSmall":
        """The same of more plans, which all hold so many bytes at least."""
        if self.told is None:
            return self
        return TooSmall(self.told(least_bytes), self.smallest_bytes, least_bytes, self.told)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.smallest_bytes, self.least_bytes)


class OutOfTime(TooSmall):
    """The time was up before a plan was found within a memory limit: there may be one."""


class NoneCheaper(PlanError):
    """No plan within a memory limit takes less than one that is known, of the same step in another form (proven)."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Values of one kind, alive at one moment: how many, their bytes on a device, in words what they are."""

    words: str
    count: int
    bytes: float


def holdings(footprint: FootprintLike, choice: Sequence[int], point: int) -> list[Holding]:
    """What is held at a node, largest first; equal arguments and lines of different layers are one."""
    found: dict[str, list[tuple[str, float]]] = {}
    for words, size in footprint.held(choice, point):
        found.setdefault(starred(words), []).append((words, size))
    return sorted(
        (Holding(", ".join(fold(w for w, _ in some)), len(some), sum(s for _, s in some)) for some in found.values()),
        key=lambda h: -h.bytes,
    )
