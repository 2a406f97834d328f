"""A schedule over time, ranks by seconds, as text and as a picture."""

from pathlib import Path

from .. import drawing
from ..drawing import Box, Drawing
from ..errors import ScheduleError
from .schedule import Kind, Schedule, Task
from .timing import Timing

# Forward blue, backward green (its halves lighter and darker), readable without colour by their labels.
_FILL = {Kind.FORWARD: "#9ec5f4", Kind.BACKWARD: "#8fce9b", Kind.INPUT: "#b9e3a8", Kind.WEIGHT: "#f3cf8e"}
# Of a rank's chunks the first is so much whiter than these, the last so much darker.
_WHITER, _DARKER = 0.35, 0.22


def label(timing: Timing, task: Task) -> str:
    """A task in few letters: its stage is left out where each rank has one only."""
    alone = all(len(timing.schedule.stages_of(r)) == 1 for r in range(timing.schedule.ranks))
    return f"{task.kind}{task.microbatch}" if alone else str(task)


def to_text(timing: Timing, slot_seconds: float | None = None) -> str:
    """A line for each rank, a column for each time slot: a task's label, ``-`` while it goes on, ``.`` for a bubble.

    ``slot_seconds`` is by default the shortest task's; tasks begin in the nearest slot.
    """
    every = [run for runs in timing.runs for run in runs]
    lengths = [run.end_seconds - run.start_seconds for run in every if run.end_seconds > run.start_seconds]
    slot = slot_seconds or min(lengths, default=1.0)
    labels = {run.task: label(timing, run.task) for run in every}
    width = max(map(len, labels.values()), default=1)
    last = round(timing.makespan_seconds / slot)
    lines = []
    for rank, runs in enumerate(timing.runs):
        cells = ["."] * last
        for run in runs:
            start, end = round(run.start_seconds / slot), round(run.end_seconds / slot)
            for k in range(start, end):
                cells[k] = labels[run.task] if k == start else "-"
        lines.append(f"rank {rank:<2} " + " ".join(cell.ljust(width) for cell in cells).rstrip())
    return "\n".join(lines)


def to_svg(timing: Timing, width: float = 960.0) -> str:
    """A picture on its own: a row for each rank, a box for each task, its name and times where it is pointed at.

    Where a rank has several stages, their boxes have shades, which a line below tells apart.
    """
    return drawing.to_svg(_drawing(timing), width)


def save_picture(timing: Timing, path: str | Path, width: float = 960.0) -> None:
    """Write the picture to a file, as SVG or PNG by the end of its name. PNG needs matplotlib (``sbp-jax[plot]``).

    A PNG has twice ``width`` pixels a row.

    Raises:
        ScheduleError: another ending, no matplotlib, or a file that cannot be written.
    """
    drawing.save(_drawing(timing), path, width, ScheduleError)


def _drawing(timing: Timing) -> Drawing:
    schedule = timing.schedule
    chunks = _chunks(schedule)
    fills = {(kind, c): _shade(fill, c, len(chunks)) for kind, fill in _FILL.items() for c in range(len(chunks))}
    chunk_of = {stage: c for c, stages in enumerate(chunks) for stage in stages}
    rows = [
        (f"rank {rank}", tuple(
            Box(r.start_seconds, r.end_seconds, fills[r.task.kind, chunk_of[r.task.direction, r.task.stage]],
                f"{r.task}: {r.start_seconds:g} to {r.end_seconds:g} s", label(timing, r.task), _short(r.task))
            for r in runs
        ))
        for rank, runs in enumerate(timing.runs)
    ]  # fmt: skip
    kinds = [kind for kind in _FILL if any(t.kind is kind for tasks in schedule.tasks for t in tasks)]
    legend = [(tuple(fills[kind, c] for kind in kinds), _words(c, stages)) for c, stages in enumerate(chunks)]
    title = f"Schedule {schedule.name}: {schedule.ranks} ranks, {schedule.microbatches} micro-batches"
    return Drawing(title, timing.makespan_seconds, tuple(rows), tuple(legend) if len(chunks) > 1 else ())


def _chunks(schedule: Schedule) -> list[list[tuple[int, int]]]:
    """The (direction, stage) pairs that are the first, second, ... of their rank."""
    found: list[list[tuple[int, int]]] = []
    for rank in range(schedule.ranks):
        for c, stage in enumerate(schedule.stages_of(rank)):
            found += [[]] if c == len(found) else []
            found[c].append(stage)
    return found


def _short(task: Task) -> str:
    """Without its stage, where that does not fit."""
    return f"{task.kind}{task.microbatch}" + "'" * task.direction


def _words(chunk: int, stages: list[tuple[int, int]]) -> str:
    """A chunk in the legend: ``chunk 1: stages 4 to 7``."""
    directions, numbers = {d for d, _ in stages}, sorted(s for _, s in stages)
    which = f"stages {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"stage {numbers[0]}"
    return f"chunk {chunk}: {which}" + (" of the second direction (')" if directions == {1} else "")


def _shade(fill: str, chunk: int, chunks: int) -> str:
    """A colour, lighter for the first of several chunks, darker for the last."""
    if chunks < 2:
        return fill
    change = _WHITER - (_WHITER + _DARKER) * chunk / (chunks - 1)
    parts = [int(fill[k : k + 2], 16) for k in (1, 3, 5)]
    mixed = [round(p + (255 - p) * change if change > 0 else p * (1 + change)) for p in parts]
    return "#" + "".join(f"{p:02x}" for p in mixed)
