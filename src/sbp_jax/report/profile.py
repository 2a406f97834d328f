"""What a profiled step took, by layer, beside what the plan predicted."""

from collections.abc import Sequence
from dataclasses import dataclass

from . import html, svg
from .grid import Column, Grid
from .text import plain_text
from .units import human_seconds, percent


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Seconds a step on one device: what a layer's ops took, and what its boxings took while nothing was computed.

    ``layers`` are the layers of the row, none for the rows that are not a layer's.
    """

    name: str
    layers: tuple[str, ...]
    compute_seconds: float
    boxing_seconds: float
    predicted_compute_seconds: float
    predicted_waits_seconds: float

    @property
    def seconds(self) -> float:
        """Measured, both together."""
        return self.compute_seconds + self.boxing_seconds

    @property
    def predicted_seconds(self) -> float:
        """Predicted, both together."""
        return self.predicted_compute_seconds + self.predicted_waits_seconds


@dataclass(frozen=True, slots=True)
class Profile:
    """What ``plan.profile`` returns: ``print`` it, or let Jupyter show it.

    ``step_seconds`` is the mean over ``repetitions`` of a step with the profiler on, ``unprofiled_seconds`` without it;
    ``predicted_seconds`` the simulated step. ``rows`` sum to ``step_seconds``, and their predictions to
    ``predicted_seconds``: the last ones are ops that XLA added and what is no op's time.
    """

    function: str
    placement: str
    cluster: str
    repetitions: int
    step_seconds: float
    unprofiled_seconds: float
    predicted_seconds: float
    rows: tuple[ProfileRow, ...]

    def __str__(self) -> str:
        return plain_text([self._title(), "", self._grid()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return svg.fragment(section(self))

    def _title(self) -> str:
        return (
            f"Profile of {self.function} on {self.placement}: {human_seconds(self.step_seconds)} a step, mean of "
            f"{self.repetitions} with the profiler on ({human_seconds(self.unprofiled_seconds)} without it); "
            f"{human_seconds(self.predicted_seconds)} predicted for {self.cluster}"
        )

    def _grid(self) -> Grid:
        made = Grid(
            "By layer, a step on each device", Column("layer", wrap=20), Column("measured", "right"),
            Column("share", "right"), Column("compute", "right", 3), Column("waits", "right", 3),
            Column("predicted", "right"), Column("its compute", "right", 4), Column("its waits", "right", 4),
        )  # fmt: skip
        for cells in self.cells():
            made.add_row(*cells)
        return made

    def cells(self) -> list[list[str]]:
        """The table: measured and predicted seconds of each row, and of all."""
        columns = ("seconds", "compute_seconds", "boxing_seconds", "predicted_seconds", "predicted_compute_seconds",
                   "predicted_waits_seconds")  # fmt: skip

        def line(name: str, values: Sequence[float]) -> list[str]:
            first, *rest = map(human_seconds, values)
            return [name, first, percent(values[0], self.step_seconds), *rest]

        lines = [line(r.name, [getattr(r, c) for c in columns]) for r in self.rows]
        return [*lines, line("all", [sum(getattr(r, c) for r in self.rows) for c in columns])]


def section(profile: Profile) -> str:
    """The profile as a part of a report."""
    names = ["layer", "measured#", "share#", "its compute#", "its waits#", "predicted#", "its compute#", "its waits#"]
    rows = [[html.escape(c) for c in cells] for cells in profile.cells()]
    return (
        f'<h2>Measured</h2><p class="sub">{html.escape(profile._title())}. Waits: communication while nothing is '
        f"computed.</p>{html.table('', names, rows)}"
    )
