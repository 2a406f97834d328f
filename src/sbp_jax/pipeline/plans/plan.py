"""A pipeline's plan: its stages, each with a plan of its own, the schedule, and what a step will take."""

import functools
import io
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...plan import PlanData
from ...schedules import Schedule, StageSeconds, Timing, peak_versions, save_picture, simulate, to_svg, to_text
from ...schedules.schedule import peak_held

# A printed schedule has at most so many columns, whatever the shortest task takes.
_MOST_SLOTS = 50


@dataclass
class PipelinePlan:
    """What was decided for a step on a pipeline.

    Attributes:
        function: its name.
        schedule: which group of devices runs what in which order (``schedule.microbatches``, ``schedule.ranks``).
        stages: the plan of every stage, for all its micro-batches and its update: placement, signatures, boxing.
        seconds: of one micro-batch in each stage, forward and backward, in seconds.
        once_seconds: of each stage, what happens once a step: gathering weights, summing gradients, the update.
        transfer_seconds: of one micro-batch between each stage and the next: half of the way there and back.
        activation_bytes: what one micro-batch holds on a device of each stage from its forward to its backward part.
        kept_bytes: what a device of each stage holds besides, with one micro-batch.
        working_bytes: of that, what it holds only while it computes; the rest are arguments and sums.
        transfers_wait: whether a group of devices waits while it sends: hardware that sends beside compute does not.
        notes: what is to be known besides.
        version_bytes: what a device of each stage holds for one more version of its weights, where they are updated
            between micro-batches.
    """

    function: str
    schedule: Schedule
    stages: list[PlanData]
    seconds: list[StageSeconds]
    once_seconds: list[float]
    transfer_seconds: list[float]
    activation_bytes: list[float]
    kept_bytes: list[float]
    working_bytes: list[float]
    transfers_wait: bool = False
    notes: list[str] = field(default_factory=list)
    version_bytes: list[float] = field(default_factory=list)

    @functools.cached_property
    def timing(self) -> Timing:
        """When each task runs, by the predicted seconds."""
        if not self.transfers_wait:
            return simulate(self.schedule, self.seconds, self.transfer_seconds)
        # Each task sends when it has computed; what a device receives comes in the meantime.
        sent = [0.0, *self.transfer_seconds, 0.0]
        waiting = [
            replace(s, forward=s.forward + after, backward=s.whole_backward + before,
                    input_gradient=s.input_gradient + before)
            for s, before, after in zip(self.seconds, sent, sent[1:], strict=False)
        ]  # fmt: skip
        return simulate(self.schedule, waiting)

    @property
    def microbatches(self) -> int:
        """How many parts the batch is cut into."""
        return self.schedule.microbatches

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step: the micro-batches by the schedule, and the longest of what stages do once.

        What they do once they do for every update, where a step has several.
        """
        by_rank = [0.0] * self.schedule.ranks
        for s, seconds in enumerate(self.once_seconds):
            by_rank[self.schedule.rank_of(s)] += seconds
        return self.timing.makespan_seconds + self.schedule.updates * max(by_rank)

    @property
    def bubble_fraction(self) -> float:
        """The part of the time of the micro-batches in which devices wait, by the predicted seconds."""
        return self.timing.bubble_fraction()

    @property
    def memory_by_rank(self) -> list[float]:
        """Bytes per device of every group: what its stages hold, with as many micro-batches as the schedule has, and as
        many versions of their weights.
        """
        held, versions = peak_held(self.schedule), peak_versions(self.schedule)
        found = []
        for rank in range(self.schedule.ranks):
            own = [s for _, s in self.schedule.stages_of(rank)]
            most = max(self.activation_bytes[s] for s in own)
            working = max(self.working_bytes[s] for s in own)
            resident = sum(self.kept_bytes[s] - self.working_bytes[s] for s in own)
            older = (versions[rank] - 1) * sum(self.version_bytes[s] for s in own) if self.version_bytes else 0.0
            found.append(resident + working + older + max(0, held[rank] - 1) * most)
        return found

    @property
    def memory_per_device(self) -> float:
        """Bytes of the device that holds the most."""
        return max(self.memory_by_rank)

    def to_svg(self, width: float = 960.0) -> str:
        """A picture of the schedule, by the predicted seconds; ``width`` in pixels."""
        return to_svg(self.timing, width)

    def save_picture(self, path: str | Path, width: float = 960.0) -> None:
        """Write the picture of the schedule to a file, as SVG or PNG by the end of its name.

        PNG needs matplotlib (``sbp-jax[plot]``). Raises ScheduleError where the picture cannot be written.
        """
        save_picture(self.timing, path, width)

    def __str__(self) -> str:
        table = Table(title=f"{self.function}: {len(self.stages)} stages, {self.microbatches} micro-batches, "
                            f"{self.schedule.name}", box=box.SIMPLE, title_justify="left")  # fmt: skip
        for name in ("stage", "group", "devices", "forward", "backward", "once a step", "memory"):
            table.add_column(name, justify="right" if name not in ("devices",) else "left")
        memory = self.memory_by_rank
        for s, plan in enumerate(self.stages):
            rank, seconds = self.schedule.rank_of(s), self.seconds[s]
            amounts = map(_ms, (seconds.forward, seconds.whole_backward, self.once_seconds[s]))
            held = f"{memory[rank] / 2**20:,.1f} MiB"
            table.add_row(str(s), str(rank), escape(str(plan.placement)), *amounts, held)
        shortest = min(r.end_seconds - r.start_seconds for runs in self.timing.runs for r in runs)
        slot = max(shortest, self.timing.makespan_seconds / _MOST_SLOTS)
        buffer = io.StringIO()
        Console(file=buffer, width=120, no_color=True, force_jupyter=False, force_terminal=False).print(table)
        lines = [*(line.rstrip() for line in buffer.getvalue().rstrip().splitlines()), "",
                 to_text(self.timing, slot).rstrip(), "",
                 f"step {_ms(self.step_seconds)} predicted, bubble {self.bubble_fraction:.1%}"]  # fmt: skip
        return "\n".join([*lines, *self.notes])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
