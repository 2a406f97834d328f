"""What to say when no plan fits: by how much, what holds most of the memory, what would help."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import PlanError
from ..paths import fold, starred
from .amounts import bytes_text
from .least import Least
from .memory import FootprintLike

_NAMED = 5


class TooSmall(PlanError):
    """No plan was found within a memory limit; ``smallest_bytes`` is the least that one was found for."""

    def __init__(self, message: str, smallest_bytes: float) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.smallest_bytes)


class OutOfTime(TooSmall):
    """The time was up before a plan was found within a memory limit: there may be one."""


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


def too_small(limit: float, least: Least, footprint: FootprintLike) -> TooSmall:
    """The error for a limit that no plan was found for."""
    short = least.peak - limit
    proof = (
        f"every plan holds at least {_bytes(least.bound)}"
        if least.bound > limit
        else f"that none does is not proven (the bound is {_bytes(least.bound)})"
    )
    message = (
        f"no plan was found that fits into a memory limit of {_bytes(limit)} per device; the smallest that one does is "
        f"{_bytes(least.peak)}, {bytes_text(short)} ({short / max(limit, 1.0):.1%}) more; {proof}. "
        f"{_most(least, footprint)}"
        f"Raise memory_limit to {least.peak:.0f}, use more devices, a smaller batch, or rematerialisation "
        "(remat='auto', jax.checkpoint)"
    )
    return TooSmall(message, least.peak)


def _most(least: Least, footprint: FootprintLike) -> str:
    held = holdings(footprint, least.solution.choice, int(least.memory.argmax()))
    if not held:
        return ""
    total = max(sum(h.bytes for h in held), 1.0)
    lines = [
        f"  {bytes_text(h.bytes)} ({h.bytes / total:.0%}) {h.words}{f', {h.count} arrays' if h.count > 1 else ''}"
        for h in held[:_NAMED]
    ]
    return "That plan's peak is held by\n" + "\n".join(lines) + f"\nand {max(len(held) - _NAMED, 0)} smaller kinds. "


def _bytes(n: float) -> str:
    return f"{n:.0f} bytes ({bytes_text(n)})"
