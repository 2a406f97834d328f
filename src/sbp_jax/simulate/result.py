"""What a simulated step came to: times, rates, memory, and every event."""

from dataclasses import dataclass
from pathlib import Path

from ..cluster import Cluster
from . import trace
from .trace import Event

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Simulation:
    """One step on one device (all do the same). Seconds and bytes are of one step; ``print`` gives a short table.

    ``compute_seconds`` is what the compute stream is busy; ``communication_seconds`` what each level's stream is;
    ``flops`` are those executed, recomputation included. ``memory`` is (seconds, bytes held from then on). ``waits``
    are (id of a boxing, seconds that the compute stream waits for it); with ``compute_seconds`` they sum to the step.
    Loops are drawn with their first iterations, the rest as one event.
    """

    function: str
    devices: int
    cluster: Cluster
    step_seconds: float
    compute_seconds: float
    communication_seconds: dict[str, float]
    flops: float
    peak_memory_bytes: float
    memory: tuple[tuple[float, float], ...]
    events: tuple[Event, ...]
    waits: tuple[tuple[int, float], ...] = ()

    @property
    def exposed_communication_seconds(self) -> float:
        """What the compute stream waits for collectives: the step without its compute."""
        return max(0.0, self.step_seconds - self.compute_seconds)

    @property
    def flops_per_second(self) -> float:
        """Executed FLOP/s of one device."""
        return self.flops / self.step_seconds if self.step_seconds else 0.0

    def model_flops_per_second(self, model_flops: float) -> float:
        """FLOP/s of one device, counting ``model_flops`` for a step of all devices together, by your own formula."""
        return model_flops / self.devices / self.step_seconds if self.step_seconds else 0.0

    def model_flops_utilization(self, model_flops: float, dtype: str = "bfloat16") -> float:
        """``model_flops_per_second`` as a part of the device's peak in ``dtype``.

        "MFU" of Chowdhery et al., arXiv:2204.02311, appendix B: ``model_flops`` without recomputation.
        """
        return self.model_flops_per_second(model_flops) / self.cluster.device.rate(dtype)

    def save_trace(self, path: str | Path) -> None:
        """Write the step as a trace that ui.perfetto.dev and chrome://tracing open. ``PlanError`` if it cannot."""
        title = f"{self.function}: one of {self.devices} {self.cluster.name} devices"
        trace.save(path, trace.to_json(title, sorted(self.communication_seconds), self.events, self.memory))

    def __str__(self) -> str:
        def share(seconds: float) -> str:
            return f"{1e3 * seconds:12.3f} ms {seconds / self.step_seconds if self.step_seconds else 0.0:7.1%}"

        lines = [
            f"A step of {self.function} on {self.devices} devices of {self.cluster.name}, simulated",
            f"  step                   {share(self.step_seconds)}",
            f"  compute                {share(self.compute_seconds)}",
            *(
                f"  on {f'{level} links':<20}{share(seconds)}"
                for level, seconds in sorted(self.communication_seconds.items())
            ),
            f"  exposed communication  {share(self.exposed_communication_seconds)}",
            f"  {self.flops_per_second / 1e12:.4g} TFLOP/s executed by each device, "
            f"{self.peak_memory_bytes / 2**30:.4g} GiB at the peak",
        ]
        return "\n".join(lines)
