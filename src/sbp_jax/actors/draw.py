"""A run over time, lanes by seconds; in the look of the pictures of pipeline schedules."""

from collections.abc import Mapping, Sequence

from ..drawing import Box, Drawing
from .span import FINISHED, INPUT, REGISTER, RUNTIME, Slice

_FILL = {
    "compute": "#9ec5f4", "receive": "#8fce9b", "send": "#b9e3a8", "load": "#f3cf8e", "host": "#d5c2ee",
    INPUT: "#f1f1f1", REGISTER: "#f6d5d0", RUNTIME: "#dddddd",
}  # fmt: skip


def drawing(pieces: Mapping[str, Sequence[Slice]], makespan_seconds: float) -> Drawing:
    """A row for each lane, a box for each firing, low ones for waits; what they are where they are pointed at."""
    firings = sum(piece.is_busy for row in pieces.values() for piece in row)
    return Drawing(
        f"Run of actors: {len(pieces)} lanes, {firings} firings, {makespan_seconds:.4g} s", makespan_seconds,
        tuple((lane, tuple(_box(p) for p in row if p.category != FINISHED)) for lane, row in pieces.items()),
    )  # fmt: skip


def _box(piece: Slice) -> Box:
    label = f"{piece.actor}[{piece.index}]"
    words = f"{label if piece.is_busy else f'{piece.category} of {label}'}: "
    times = f"{words}{piece.start_seconds:.4g} to {piece.end_seconds:.4g} s"
    return Box(piece.start_seconds, piece.end_seconds, _FILL[piece.category], times, label, is_low=not piece.is_busy)
