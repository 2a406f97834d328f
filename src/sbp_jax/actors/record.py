"""What happened in a run: when each actor fired, what lanes waited for, how many registers were in use."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import drawing
from ..errors import ActorError
from . import draw, trace
from .span import Slice, Span, slices


@dataclass(frozen=True, slots=True)
class Record:
    """A run that has completed.

    Attributes:
        lanes: by lane, its actors; both as declared.
        inputs: by actor, what it reads.
        spans: every firing, by start.
        results: by collected actor, its results by index, in the order in which they came.
    """

    lanes: Mapping[str, tuple[str, ...]]
    inputs: Mapping[str, tuple[str, ...]]
    spans: tuple[Span, ...]
    results: Mapping[str, Mapping[int, Any]]

    @property
    def makespan_seconds(self) -> float:
        """From the start of the run to the end of its last firing."""
        return max((span.end_seconds for span in self.spans), default=0.0)

    @property
    def peak_registers(self) -> dict[str, int]:
        """By actor, the most of its registers that were in use at once."""
        return {name: max((n for _, n in counts), default=0) for name, counts in self.registers_in_use().items()}

    def registers_in_use(self) -> dict[str, list[tuple[float, int]]]:
        """By actor, how many of its registers are in use from each time on, in seconds from the start of the run.

        From the start of its firing to the end of the last firing that reads the result. Collected results count no
        longer than that.
        """
        until: dict[tuple[str, int], float] = {(s.actor, s.index): s.end_seconds for s in self.spans}
        for span in self.spans:
            for name in self.inputs[span.actor]:
                until[name, span.index] = max(until[name, span.index], span.end_seconds)
        changes: dict[str, list[tuple[float, int]]] = {name: [] for name in self.inputs}
        for span in self.spans:
            changes[span.actor] += [(span.start_seconds, 1), (until[span.actor, span.index], -1)]
        found: dict[str, list[tuple[float, int]]] = {}
        for name, steps in changes.items():
            counts, n = [], 0
            for at, change in sorted(steps):  # at the same time, what is given back comes first
                n += change
                counts.append((at, n))
            found[name] = counts
        return found

    def peak_together(self, actors: Sequence[str]) -> int:
        """The most registers of several actors in use at once: what a rank holds of all its stages."""
        in_use = self.registers_in_use()
        now, most = dict.fromkeys(actors, 0), 0
        for _, name, n in sorted((at, actor, n) for actor in actors for at, n in in_use[actor]):
            now[name] = n
            most = max(most, sum(now.values()))
        return most

    def lane_spans(self, lane: str) -> tuple[Span, ...]:
        """The firings of a lane, in order."""
        self._known(lane)
        return tuple(span for span in self.spans if span.lane == lane)

    def busy_seconds(self, lane: str) -> float:
        """How long a lane computes."""
        return sum(span.seconds for span in self.lane_spans(lane))

    def bubble_fraction(self, lane: str | None = None) -> float:
        """The part of the makespan in which a lane is not busy.

        Without one, the mean of the lanes that compute: not of those that load, send and receive, where others do.
        """
        if self.makespan_seconds <= 0:
            return 0.0
        computing = list(dict.fromkeys(span.lane for span in self.spans if span.kind == "compute"))
        lanes = [lane] if lane is not None else computing or list(self.lanes)
        return 1.0 - sum(map(self.busy_seconds, lanes)) / (self.makespan_seconds * len(lanes))

    def slices(self, lane: str) -> tuple[Slice, ...]:
        """The whole makespan of a lane in pieces: firings, waits, the runtime's own time, the rest after its end."""
        return tuple(slices(self.lane_spans(lane), self.makespan_seconds))

    def to_json(self) -> dict[str, Any]:
        """The run in the Trace Event Format, which Perfetto and Chrome open: a track for each lane, waits as pieces of
        their own, registers in use as counters.
        """
        return trace.to_json(self._pieces(), self.lanes, self.registers_in_use())

    def save(self, path: str | Path) -> None:
        """Write the trace (see ``to_json``) to a file. Raises ActorError where that cannot be."""
        try:
            Path(path).write_text(json.dumps(self.to_json(), separators=(",", ":")))
        except OSError as error:
            raise ActorError(f"cannot write the trace to {str(path)!r}: {error.strerror}") from error

    def to_svg(self, width: float = 960.0) -> str:
        """A picture on its own, ``width`` pixels wide: a row for each lane, a box for each firing."""
        return drawing.to_svg(self._drawing(), width)

    def save_picture(self, path: str | Path, width: float = 960.0) -> None:
        """Write the picture to a file, as SVG or PNG by the end of its name. PNG needs matplotlib (``sbp-jax[plot]``).

        A PNG has twice ``width`` pixels a row. Raises ActorError where the picture cannot be written, with what to do.
        """
        drawing.save(self._drawing(), path, width, ActorError)

    def _drawing(self) -> drawing.Drawing:
        return draw.drawing(self._pieces(), self.makespan_seconds)

    def _pieces(self) -> dict[str, Sequence[Slice]]:
        """By lane, its pieces of time."""
        by_lane: dict[str, list[Span]] = {lane: [] for lane in self.lanes}
        for span in self.spans:
            by_lane[span.lane].append(span)
        return {lane: tuple(slices(spans, self.makespan_seconds)) for lane, spans in by_lane.items()}

    def _known(self, lane: str) -> None:
        if lane not in self.lanes:
            raise ActorError(f"there is no lane {lane!r}; there are {', '.join(map(repr, self.lanes))}")
