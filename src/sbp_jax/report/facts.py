"""What a report shows beside the plan itself: the step simulated, and what it would be with other hardware."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """Something on a track ("compute", or a level of links) of the simulated step; ``node`` is what is computed, -1 for
    what is none; ``count`` > 1: iterations of a loop drawn as one."""

    track: str
    name: str
    start_seconds: float
    seconds: float
    detail: str = ""
    node: int = -1
    count: float = 1.0


@dataclass(frozen=True, slots=True)
class Facts:
    """A simulated step. ``exposed`` are seconds waited for a boxing, by its id; ``memory`` (seconds, bytes held from
    then on); ``faster`` (words, step's seconds) for the same plan on better links; ``busy`` seconds by level of
    links; ``spans`` what runs when."""

    step_seconds: float
    compute_seconds: float
    busy: Mapping[str, float]
    memory: Sequence[tuple[float, float]]
    exposed: Mapping[int, float] = field(default_factory=dict)
    faster: Sequence[tuple[str, float]] = ()
    spans: Sequence[Span] = ()

    @property
    def exposed_seconds(self) -> float:
        """What the compute stream waits."""
        return max(0.0, self.step_seconds - self.compute_seconds)
