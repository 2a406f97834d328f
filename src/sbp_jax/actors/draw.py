"""A run over time, lanes by seconds, as SVG; in the look of the pictures of pipeline schedules."""

import html
from collections.abc import Mapping, Sequence

from .span import FINISHED, INPUT, REGISTER, RUNTIME, Slice

_FILL = {
    "compute": "#9ec5f4", "receive": "#8fce9b", "send": "#b9e3a8", "load": "#f3cf8e", "host": "#d5c2ee",
    INPUT: "#f1f1f1", REGISTER: "#f6d5d0", RUNTIME: "#dddddd",
}  # fmt: skip
_HIGH, _GAP = 26, 4
_LETTER = 6.5


def to_svg(pieces: Mapping[str, Sequence[Slice]], makespan_seconds: float, width: float) -> str:
    """A row for each lane, a box for each firing, low ones for waits; what they are where they are pointed at."""
    left = 16 + _LETTER * max(map(len, pieces), default=0)
    scale = (width - left - 8) / makespan_seconds if makespan_seconds > 0 else 0.0
    height = len(pieces) * (_HIGH + _GAP) + 2 * _GAP
    firings = sum(piece.is_busy for row in pieces.values() for piece in row)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" font-family="sans-serif" font-size="11">'
        f"<title>Run of actors: {len(pieces)} lanes, {firings} firings, {makespan_seconds:.4g} s</title>"
    ]
    for row, (lane, slices) in enumerate(pieces.items()):
        y = _GAP + row * (_HIGH + _GAP)
        parts.append(f'<text x="{left - 8:g}" y="{y + 17}" text-anchor="end">{html.escape(lane)}</text>')
        parts += (_box(piece, left, y, scale) for piece in slices if piece.category != FINISHED)
    return "".join([*parts, "</svg>"])


def _box(piece: Slice, left: float, y: float, scale: float) -> str:
    x, w = left + piece.start_seconds * scale, (piece.end_seconds - piece.start_seconds) * scale
    label = f"{piece.actor}[{piece.index}]"
    words = f"{label if piece.is_busy else f'{piece.category} of {label}'}: "
    times = f"{words}{piece.start_seconds:.4g} to {piece.end_seconds:.4g} s"
    top, high = (y, _HIGH) if piece.is_busy else (y + _HIGH // 3, _HIGH // 3)
    box = (
        f'<rect x="{x:.2f}" y="{top}" width="{w:.2f}" height="{high}" fill="{_FILL[piece.category]}" '
        f'stroke="#fff"><title>{html.escape(times)}</title></rect>'
    )
    if piece.is_busy and len(label) * _LETTER < w:
        box += f'<text x="{x + w / 2:.2f}" y="{y + 17}" text-anchor="middle">{html.escape(label)}</text>'
    return box
