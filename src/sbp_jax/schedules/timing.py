"""When each task of a schedule runs, given the seconds of each: makespan, bubbles, activations held over time."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ScheduleError
from .execution import run_order
from .schedule import Kind, Schedule, Task, Value, needs, result


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """The seconds of one micro-batch in one virtual stage; without ``backward`` it takes as long as its two parts."""

    forward: float = 1.0
    input_gradient: float = 1.0
    weight_gradient: float = 1.0
    backward: float | None = None

    @property
    def whole_backward(self) -> float:
        """The seconds of B."""
        return self.input_gradient + self.weight_gradient if self.backward is None else self.backward

    def of(self, kind: Kind) -> float:
        """The seconds of a task of this kind."""
        if kind is Kind.FORWARD:
            return self.forward
        if kind is Kind.BACKWARD:
            return self.whole_backward
        return self.input_gradient if kind is Kind.INPUT else self.weight_gradient


@dataclass(frozen=True, slots=True)
class Run:
    """A task with its start and end, in seconds from the start of the step."""

    task: Task
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class Timing:
    """A schedule with the time of each task: ``runs`` has one tuple for each rank, in order of time."""

    schedule: Schedule
    runs: tuple[tuple[Run, ...], ...]

    @property
    def makespan_seconds(self) -> float:
        """From the start of the step to the end of its last task."""
        return max((runs[-1].end_seconds for runs in self.runs if runs), default=0.0)

    def busy_seconds(self, rank: int) -> float:
        """How long a rank computes."""
        return sum(r.end_seconds - r.start_seconds for r in self.runs[rank])

    def bubble_fraction(self, rank: int | None = None) -> float:
        """The part of the makespan in which a rank (without one: the mean of all ranks) does not compute."""
        ranks = range(self.schedule.ranks) if rank is None else [rank]
        whole = self.makespan_seconds * len(ranks)
        return (whole - sum(map(self.busy_seconds, ranks))) / whole if whole else 0.0

    def span_bubble_fraction(self, rank: int) -> float:
        """The same between a rank's first start and last end.

        This counts where the next step begins at each rank as soon as this one ends there, without a barrier: how
        arXiv 2401.10241 counts, whose optimizer step is validated afterwards.
        """
        runs = self.runs[rank]
        span = runs[-1].end_seconds - runs[0].start_seconds if runs else 0.0
        return (span - self.busy_seconds(rank)) / span if span else 0.0

    def held(self, rank: int, leftover: float = 1.0) -> tuple[tuple[float, float], ...]:
        """(seconds, activations held from then on) at each change, of one rank.

        An activation is held from the start of F to the end of B; where the backward pass is split, to the end of I,
        and ``leftover`` of it (M_W / M_B in the papers) from there to the end of W.
        """
        changes: list[tuple[float, float]] = []
        for run in self.runs[rank]:
            if run.task.kind is Kind.FORWARD:
                changes.append((run.start_seconds, 1.0))
            else:
                freed = {Kind.BACKWARD: 1.0, Kind.INPUT: 1.0 - leftover, Kind.WEIGHT: leftover}[run.task.kind]
                changes.append((run.end_seconds, -freed))
        held, found = 0.0, {0.0: 0.0}
        for seconds, change in sorted(changes, key=lambda c: c[0]):
            held += change
            found[seconds] = held
        return tuple(found.items())

    def peak_held(self, rank: int, leftover: float = 1.0) -> float:
        """The most activations that a rank holds at once; see ``held``."""
        return max(n for _, n in self.held(rank, leftover))


def simulate(
    schedule: Schedule,
    seconds: StageSeconds | Sequence[StageSeconds] = StageSeconds(),
    transfer_seconds: float | Sequence[float] = 0.0,
) -> Timing:
    """Run a schedule on paper: each task starts when its rank is free and what it needs has arrived.

    ``seconds`` is one for all virtual stages, or one for each; ``transfer_seconds`` that of moving an activation or its
    gradient between a stage and the next, where they are at different ranks (one for all, or one for each pair of
    neighbours). Transfers overlap with computation, and do not wait for each other.

    Raises:
        ScheduleError: the schedule ends in a deadlock, or lists of the wrong length are given.
    """
    stages = schedule.stages
    each = [seconds] * stages if isinstance(seconds, StageSeconds) else list(seconds)
    between = [transfer_seconds] * (stages - 1) if isinstance(transfer_seconds, int | float) else list(transfer_seconds)
    for what, given, right in (("seconds", each, stages), ("transfer_seconds", between, stages - 1)):
        if len(given) != right:
            raise ScheduleError(
                f"{what} is given {len(given)} times, schedule {schedule.name!r} has {stages} stages: "
                f"give one for all, or {right}"
            )
    ready: dict[Value, float] = {}
    runs: list[list[Run]] = [[] for _ in schedule.tasks]
    for rank, task in run_order(schedule):
        start = runs[rank][-1].end_seconds if runs[rank] else 0.0
        for value in needs(task, stages):
            moved = schedule.rank_of(value.stage, value.direction) != rank
            start = max(start, ready[value] + (between[min(value.stage, task.stage)] if moved else 0.0))
        end = start + each[task.stage].of(task.kind)
        runs[rank].append(Run(task, start, end))
        given = result(task)
        if given is not None:
            ready[given] = end
    return Timing(schedule, tuple(map(tuple, runs)))
