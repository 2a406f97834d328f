"""A schedule over time, ranks by seconds, as text and as SVG."""

import html

from .schedule import Kind, Task
from .timing import Timing

# Forward blue, backward green (its halves lighter and darker), readable without colour by their labels.
_FILL = {Kind.FORWARD: "#9ec5f4", Kind.BACKWARD: "#8fce9b", Kind.INPUT: "#b9e3a8", Kind.WEIGHT: "#f3cf8e"}
_HIGH, _LEFT, _GAP = 26, 64, 4


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
    """A picture on its own: a row for each rank, a box for each task, its name and times where it is pointed at."""
    ranks = timing.schedule.ranks
    end = timing.makespan_seconds
    scale = (width - _LEFT - 8) / end if end > 0 else 0.0
    height = ranks * (_HIGH + _GAP) + 2 * _GAP
    name = html.escape(f"Schedule {timing.schedule.name}: {ranks} ranks, {timing.schedule.microbatches} micro-batches")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" font-family="sans-serif" font-size="11"><title>{name}</title>'
    ]
    for rank, runs in enumerate(timing.runs):
        y = _GAP + rank * (_HIGH + _GAP)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">rank {rank}</text>')
        for run in runs:
            x, w = _LEFT + run.start_seconds * scale, (run.end_seconds - run.start_seconds) * scale
            words = label(timing, run.task)
            times = f"{run.task}: {run.start_seconds:g} to {run.end_seconds:g} s"
            parts.append(
                f'<rect x="{x:.2f}" y="{y}" width="{w:.2f}" height="{_HIGH}" fill="{_FILL[run.task.kind]}" '
                f'stroke="#fff"><title>{html.escape(times)}</title></rect>'
            )
            if len(words) * 6.5 < w:
                parts.append(f'<text x="{x + w / 2:.2f}" y="{y + 17}" text-anchor="middle">{html.escape(words)}</text>')
    return "".join([*parts, "</svg>"])
