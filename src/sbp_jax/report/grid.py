"""Tables that fit into a width: no header and no cell is cut; long names wrap, then the least important columns go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """``drop``: where space is short, the column with the largest goes first; 0 stays. ``wrap``: the least width that
    its cells may wrap to; 0: they do not."""

    name: str
    justify: str = "left"
    drop: int = 0
    wrap: int = 0


class Grid:
    """A table without frames, as wide as it needs to be and at most as wide as the console."""

    def __init__(self, title: str, *columns: Column) -> None:
        self.title, self.columns = title, columns
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """One row, a cell for each column; cells may have several lines."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept, widths = self._fit(console, options.max_width)
        left_out = ", ".join(c.name for k, c in enumerate(self.columns) if k not in kept)
        if self.title or left_out:
            yield Text(f"{self.title}{f' (no room for: {left_out})' if left_out else ''}".strip())
        yield self._table(kept, widths)

    def _fit(self, console: Console, width: int) -> tuple[list[int], dict[int, int]]:
        """The columns to show, and of those that wrap how wide they are."""
        natural = [max(_width(c.name), *(_width(row[k]) for row in self.rows), 1) if self.rows else _width(c.name)
                   for k, c in enumerate(self.columns)]  # fmt: skip
        kept = list(range(len(self.columns)))
        while True:
            widths: dict[int, int] = {}
            over = self._measure(console, kept, widths) - width
            for k in sorted((k for k in kept if self.columns[k].wrap), key=lambda k: -natural[k]):
                least = max(self.columns[k].wrap, _width(self.columns[k].name))
                if over > 0 and natural[k] > least:
                    widths[k] = max(least, natural[k] - over)
                    over -= natural[k] - widths[k]
            dropped = max(kept, key=lambda k: self.columns[k].drop)
            if over <= 0 or not self.columns[dropped].drop:
                return kept, widths
            kept.remove(dropped)

    def _measure(self, console: Console, kept: Sequence[int], widths: dict[int, int]) -> int:
        return console.measure(self._table(kept, widths), options=console.options.update(width=10_000)).maximum

    def _table(self, kept: Sequence[int], widths: dict[int, int]) -> Table:
        made = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1))
        for k in kept:
            justify: Any = self.columns[k].justify
            made.add_column(self.columns[k].name, justify=justify, no_wrap=True)
        for row in self.rows:
            made.add_row(*(Text(_wrapped(row[k], widths.get(k, 0))) for k in kept))
        return made


def _wrapped(text: str, width: int) -> str:
    """Lines of at most so many characters (0: any), broken at spaces, else behind a part of a path."""
    if not width:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        while len(line) > width:
            at = line.rfind(" ", 1, width + 1)
            if at < max(1, width // 3):
                at = line.rfind("/", 1, width) + 1
            if at < max(1, width // 3):
                at = width
            lines.append(line[:at].rstrip())
            line = "  " * (len(line[at:].lstrip()) + 2 <= width) + line[at:].lstrip()
        lines.append(line)
    return "\n".join(lines)


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))
