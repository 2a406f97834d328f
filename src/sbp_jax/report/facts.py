"""What a report shows beside the plan itself: the step simulated, and what it would be with other hardware."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Facts:
    """A simulated step. ``exposed`` are seconds waited for a boxing, by its id; ``memory`` (seconds, bytes held from
    then on); ``faster`` (words, step's seconds) for the same plan on better links; ``busy`` seconds by level of
    links."""

    step_seconds: float
    compute_seconds: float
    busy: Mapping[str, float]
    memory: Sequence[tuple[float, float]]
    exposed: Mapping[int, float] = field(default_factory=dict)
    faster: Sequence[tuple[str, float]] = ()

    @property
    def exposed_seconds(self) -> float:
        """What the compute stream waits."""
        return max(0.0, self.step_seconds - self.compute_seconds)
