"""Pieces of a lane's time: its firings, and what it did between them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

INPUT, REGISTER, RUNTIME, FINISHED = "wait for input", "wait for register", "runtime", "finished"


@dataclass(frozen=True, slots=True)
class Span:
    """A firing. Times are in seconds from the start of the run.

    Attributes:
        lane: where it ran.
        actor: what fired.
        kind: the actor's kind.
        index: for which index.
        start_seconds: when ``act`` was called.
        end_seconds: when its result was there (and ``wait`` had returned).
        input_wait_seconds: how long the lane stood idle before it because an input was missing.
        register_wait_seconds: how long, after all inputs were there, because no register was free. What the lane was
            idle beyond both is the runtime's own time: messages, and the wait for Python's interpreter lock.
    """

    lane: str
    actor: str
    kind: str
    index: int
    start_seconds: float
    end_seconds: float
    input_wait_seconds: float
    register_wait_seconds: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a lane's time: a firing (``category`` is the actor's kind), or one of ``INPUT``, ``REGISTER``,
    ``RUNTIME`` before the firing that is named, or ``FINISHED`` after the last one.
    """

    category: str
    actor: str
    index: int
    start_seconds: float
    end_seconds: float

    @property
    def is_busy(self) -> bool:
        """Whether the lane computes."""
        return self.category not in (INPUT, REGISTER, RUNTIME, FINISHED)


def slices(spans: Iterable[Span], end_seconds: float) -> Iterator[Slice]:
    """The time of one lane from 0 to ``end_seconds`` without gaps, given its firings in order."""
    at = 0.0
    for span in spans:
        ready = at + span.input_wait_seconds
        free = ready + span.register_wait_seconds
        # Sums are rounded: no piece may end after the firing begins.
        ends = (min(ready, span.start_seconds), min(free, span.start_seconds), span.start_seconds)
        for category, end in zip((INPUT, REGISTER, RUNTIME), ends, strict=True):
            if end > at:
                yield Slice(category, span.actor, span.index, at, end)
                at = end
        yield Slice(span.kind, span.actor, span.index, at, span.end_seconds)
        at = span.end_seconds
    if end_seconds > at:
        yield Slice(FINISHED, "", -1, at, end_seconds)
