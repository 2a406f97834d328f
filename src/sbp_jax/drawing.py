"""Boxes in rows over seconds: what pictures of schedules and of runs are, as SVG, or in a file as SVG or PNG."""

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SbpError

_HIGH, _GAP, _LEAST_LEFT, _RIGHT = 26, 4, 64, 8
# About the width of a letter, and the side of a box in the legend.
_LETTER, _SIDE = 6.5, 12
# A PNG has so many pixels for each pixel of the SVG.
_PIXELS = 2


@dataclass(frozen=True, slots=True)
class Box:
    """Something that takes time. ``label`` is written in it where it fits, else ``short``; ``title`` is shown where it
    is pointed at. A low box is a third as high.
    """

    start_seconds: float
    end_seconds: float
    fill: str
    title: str
    label: str = ""
    short: str = ""
    is_low: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture: rows by name, each with its boxes, over so many seconds; in its legend words for some colours."""

    title: str
    seconds: float
    rows: tuple[tuple[str, tuple[Box, ...]], ...]
    legend: tuple[tuple[tuple[str, ...], str], ...] = ()

    @property
    def left(self) -> float:
        """Where the rows begin, after their names; in pixels, as all lengths."""
        return max(_LEAST_LEFT, 16 + _LETTER * max((len(name) for name, _ in self.rows), default=0))

    @property
    def height(self) -> int:
        """Of the whole picture."""
        return (len(self.rows) + bool(self.legend)) * (_HIGH + _GAP) + 2 * _GAP


@dataclass(frozen=True, slots=True)
class _Shape:
    """A rectangle (with ``fill``) or a text, whose ``anchor`` is at ``x``."""

    x: float
    y: float
    width: float = 0.0
    height: float = 0.0
    fill: str = ""
    words: str = ""
    anchor: str = "start"


def _row(drawing: Drawing, row: int, width: float) -> Iterator[tuple[_Shape, str]]:
    """The shapes of a row, each with its title."""
    name, boxes = drawing.rows[row]
    scale = (width - drawing.left - _RIGHT) / drawing.seconds if drawing.seconds > 0 else 0.0
    y = _GAP + row * (_HIGH + _GAP)
    yield _Shape(drawing.left - 8, y + 17, words=name, anchor="end"), ""
    for box in boxes:
        x, w = drawing.left + box.start_seconds * scale, (box.end_seconds - box.start_seconds) * scale
        top, high = (y + _HIGH // 3, _HIGH // 3) if box.is_low else (y, _HIGH)
        yield _Shape(x, top, w, high, box.fill), box.title
        words = next((text for text in (box.label, box.short) if text and _wide(text) < w), "")
        if words and not box.is_low:
            yield _Shape(x + w / 2, y + 17, words=words, anchor="middle"), ""


def _wide(text: str) -> float:
    """About the width of a text."""
    return _LETTER * (len(text) + 0.7 * text.count("@"))


def _legend(drawing: Drawing) -> Iterator[_Shape]:
    x, y = drawing.left, _GAP + len(drawing.rows) * (_HIGH + _GAP)
    for fills, words in drawing.legend:
        for fill in fills:
            yield _Shape(x, y + 7, _SIDE, _SIDE, fill)
            x += _SIDE + 2
        yield _Shape(x + 4, y + 17, words=words)
        x += 4 + _LETTER * len(words) + 20


def to_svg(drawing: Drawing, width: float) -> str:
    """The picture on its own, ``width`` pixels wide."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {drawing.height}" '
        f'width="{width:.0f}" height="{drawing.height}" font-family="sans-serif" font-size="11">'
        f"<title>{html.escape(drawing.title)}</title>"
    ]
    for row in range(len(drawing.rows)):
        parts += (_element(shape, title) for shape, title in _row(drawing, row, width))
    if drawing.legend:
        parts += ["<g>", *map(_element, _legend(drawing)), "</g>"]
    return "".join([*parts, "</svg>"])


def _element(shape: _Shape, title: str = "") -> str:
    if not shape.fill:
        return f'<text x="{shape.x:.2f}" y="{shape.y:g}" text-anchor="{shape.anchor}">{html.escape(shape.words)}</text>'
    told = f"<title>{html.escape(title)}</title>" if title else ""
    return (
        f'<rect x="{shape.x:.2f}" y="{shape.y:g}" width="{shape.width:.2f}" height="{shape.height:g}" '
        f'fill="{shape.fill}" stroke="#fff">{told}</rect>'
    )


def save(drawing: Drawing, path: str | Path, width: float, error: type[SbpError]) -> None:
    """Write the picture to a file, in the format that its name ends in.

    Raises:
        error: it ends in neither .svg nor .png; for .png matplotlib is missing; the file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".svg", ".png"):
        raise error(f"a picture is written as .svg or .png, as its name ends; got {str(path)!r}")
    try:
        if suffix == ".svg":
            Path(path).write_text(to_svg(drawing, width), encoding="utf-8")
        else:
            _figure(drawing, width, error).savefig(path, format="png", dpi=100 * _PIXELS, facecolor="white")
    except OSError as found:
        raise error(f"cannot write the picture to {str(path)!r}: {found.strerror}") from found


def _figure(drawing: Drawing, width: float, error: type[SbpError]) -> Any:
    """The picture by matplotlib, at 100 pixels an inch. Not by pyplot: its figures and backend are the user's."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.collections import PatchCollection
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError as found:
        raise error(
            "a PNG is drawn by matplotlib, which is not there: pip install 'sbp-jax[plot]', or write the picture as "
            ".svg, which needs nothing"
        ) from found
    figure = Figure(figsize=(width / 100, drawing.height / 100))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(drawing.height, 0))
    axes.axis("off")
    shapes = [shape for row in range(len(drawing.rows)) for shape, _ in _row(drawing, row, width)]
    shapes += _legend(drawing)
    boxes = [s for s in shapes if s.fill]
    axes.add_collection(
        PatchCollection(
            [Rectangle((s.x, s.y), s.width, s.height) for s in boxes], facecolors=[s.fill for s in boxes],
            edgecolors="white", linewidths=0.72,
        )
    )  # fmt: skip
    sides: dict[str, Any] = {"start": "left", "middle": "center", "end": "right"}
    for s in shapes:
        if s.words:  # 10 pixels, in a font that is wider than most; a $ is no mathematics
            axes.text(s.x, s.y, s.words, ha=sides[s.anchor], va="baseline", fontsize=7.2, parse_math=False)
    return figure
