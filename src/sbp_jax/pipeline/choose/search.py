"""``stages="auto"`` and ``microbatches="auto"``: what is worth planning, by tables of what layers take.

After Alpa (arXiv 2201.12023, section 5): the forward pass is clustered into layers, tables say what each takes on each
sub-mesh, and a dynamic program finds the ranges of layers and their devices with the least seconds of a step, the
traffic between stages included; here for each number of micro-batches. Groups of devices alike are looked at besides:
what schedules with several stages a group, and one program for all, need. What is chosen is then planned by itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import PlanError, ScheduleError
from ...placement import Placement
from ...planner import Request
from ...schedules import Schedule, StageSeconds, by_name, schedules
from ..cuts import boundaries
from ..cuts.case import Case, Steps
from ..cuts.items import Items
from ..options import Pipeline
from ..searches import search_stages
from ..stages import InFlight, Stages, Submesh, in_flight_of, submesh_options
from ..stages import assign as assign_devices
from .layer_tables import MOST_LAYERS, Amounts, LayerTables

# A stage has at least this part of the devices that it had, were all layers stages of devices alike.
_UNLIKE_SIZES = 2
# Schedules with one stage a group of devices, whose groups may be unlike.
_UNLIKE = {"1f1b", "eager_1f1b", "gpipe", "zb_h1"}
# A backward pass takes about twice as long as a forward pass.
_THIRDS = StageSeconds(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Found:
    """The stages chosen: the step as it is cut, of each forward op, by number, its stage; their devices; the schedule;
    how good it is."""

    case: Case
    stage_of: dict[int, int]
    places: list[Placement]
    schedule: Schedule
    note: str


@dataclass(frozen=True, slots=True, order=True)
class Alike:
    """So many groups of devices alike and micro-batches, and about how long a step takes on them."""

    seconds: float
    ranks: int
    microbatches: int


class StageSearch:
    """What is worth planning of a step on a placement.

    ``limit_bytes`` is what a device may hold; ``given`` are options of the schedule; ``ranks`` the number of groups of
    devices, where it is known.
    """

    def __init__(
        self, steps: Steps, options: Pipeline, counts: Sequence[int], where: Placement, request: Request,
        limit_bytes: float | None, given: Mapping[str, int], ranks: int | None = None,
    ) -> None:  # fmt: skip
        self.options, self.where, self.limit_bytes, self.request = options, where, limit_bytes, request
        self.given = given
        self.nodes, self.per_node = _nodes(where, request)
        meshes = [m for m in submesh_options(self.nodes, self.per_node) if self._is_worth(m, ranks)]
        self.tables = LayerTables(steps, counts, meshes, where, request)
        self.steps = steps

    def _is_worth(self, mesh: Submesh, ranks: int | None) -> bool:
        if ranks is not None:
            return mesh.devices * ranks == self.where.size
        is_even = mesh.nodes == 1 or not mesh.nodes & (mesh.nodes - 1) or mesh.nodes == self.nodes
        return is_even and mesh.devices * MOST_LAYERS * _UNLIKE_SIZES >= self.where.size

    def unlike(self) -> Found | None:
        """The best stages, whose groups of devices may be unlike; None for a schedule that wants them alike.

        Raises:
            PlanError: no stages fit into the devices' memory.
        """
        if self.options.schedule not in _UNLIKE or self.options.execution != "actors":
            if self.options.search is not None:
                raise PlanError(
                    f"search={self.options.search!r} chooses groups of devices that may be unlike, which schedule "
                    f"{self.options.schedule!r} with execution={self.options.execution!r} has not: take one of "
                    f"{', '.join(map(repr, sorted(_UNLIKE)))} with execution='actors', or leave search out"
                )
            return None
        best: tuple[float, int, Stages] | None = None
        refused: PlanError | None = None
        for count in self.tables.counts:
            try:
                found = search_stages(
                    self.options.search or "alpa_inter", self.options.search_options, self.tables.costs(count),
                    self.tables.meshes, self.where.size, count, limit_bytes=self.limit_bytes,
                    in_flight=_in_flight(self.options.schedule), overlaps=self._overlaps,
                    window=self._window(), schedule=self.options.schedule,
                )  # fmt: skip
            except PlanError as error:
                refused = error
                continue
            if best is None or found.total_seconds < best[0]:
                best = found.total_seconds, count, found
        if best is None:
            assert refused is not None
            raise refused
        _, count, found = best
        return self._as_cut(count, found)

    def alike(self, most_stages: float) -> list[Alike]:
        """Groups of devices alike and micro-batches that may fit, the quickest first."""
        chunks = self.options.chunks or schedules()[self.options.schedule].chunks or 2
        found = []
        for count in self.tables.counts:
            for mesh, amounts in zip(self.tables.meshes, self.tables.at(count), strict=True):
                ranks, rest = divmod(self.where.size, mesh.devices)
                if rest or ranks * chunks > max(most_stages, 1):
                    continue
                try:
                    bubble, peak = self._promised(ranks, count, chunks)
                except ScheduleError:
                    continue
                moved = self._moved(mesh, amounts, ranks * chunks) if ranks > 1 else 0.0
                pace = self._pace(amounts.seconds.sum() / ranks, chunks * moved)
                held = peak * amounts.held.sum() / (ranks * chunks)
                if amounts.kept.sum() / ranks + held <= (self.limit_bytes or math.inf):
                    seconds = count * pace / max(1.0 - bubble, 1e-6) + amounts.once.sum() / ranks
                    found.append(Alike(float(seconds + (ranks * chunks - 1) * moved), ranks, count))
        return sorted(found)

    def _promised(self, ranks: int, count: int, chunks: int) -> tuple[float, int]:
        """The schedule's bubble, and the most activations a rank holds. ``ScheduleError`` where it has no such form."""
        kind = schedules()[self.options.schedule]
        bubble = kind.bubble(ranks, count, _THIRDS, **self.given)
        if bubble is None:
            bubble = (ranks - 1) / (chunks * count + ranks - 1)
        return bubble, max(kind.peak(ranks, count, **self.given))

    def _moved(self, mesh: Submesh, amounts: Amounts, stages: int) -> float:
        """Seconds to send what crosses between two stages, there and back, in the mean: of cuts about where stages of
        equal work meet those where least crosses."""
        transfers = self.tables.transfer_seconds(mesh, amounts)[1:]
        if not len(transfers):
            return 0.0
        parts = np.cumsum(amounts.seconds)[:-1] / max(float(amounts.seconds.sum()), 1e-300) * stages
        away = np.abs(parts[None, :] - np.arange(1, stages)[:, None])
        near = away <= np.maximum(away.min(axis=1, keepdims=True), boundaries.MOST_UNEVEN)
        return float(np.where(near, transfers[None, :], np.inf).min(axis=1).mean())

    def _pace(self, compute: float, moved: float) -> float:
        """Seconds from one micro-batch to the next, of a group that computes and sends so long."""
        return max(compute, moved) if self._overlaps and self.options.schedule != "1f1b" else compute + moved

    @property
    def _overlaps(self) -> bool:
        return "permute" in self.request.cluster.overlaps

    def _window(self) -> InFlight | None:
        """How many micro-batches hold up the next one, where transfers run beside compute: elsewhere they hold up the
        stage that sends. ZB-H1 computes weights' gradients while it waits."""
        schedule = self.options.schedule
        return in_flight_of(schedule) if self._overlaps and schedule != "zb_h1" else None

    def _as_cut(self, count: int, found: Stages) -> Found:
        tables = self.tables
        taken = [tables.meshes[o] for o in found.options]
        ranks = assign_devices(taken, self.nodes, self.per_node)
        places = [tables.placement(mesh, own) for mesh, own in zip(taken, ranks, strict=True)]
        items = Items(self.steps.cut_in(count))
        stages = [next(s for s, (a, b) in enumerate(found.ranges) if a <= k < b) for k in tables.layers_of(items)]
        chosen, stage_of = items.in_stages(stages)
        among = "" if len(tables.counts) == 1 else f" and {', '.join(map(str, tables.counts))} micro-batches"
        by = f"search {self.options.search!r}, " if self.options.search else ""
        note = (
            f"stages chosen among ranges of {tables.count} layers on {', '.join(map(str, tables.meshes))} devices"
            f"{among}: {', '.join(found.labels)}; {by}{found.note} by the sums of layers' seconds"
        )
        return Found(chosen, stage_of, places, by_name(self.options.schedule, len(places), count), note)


def _nodes(where: Placement, request: Request) -> tuple[int, int]:
    """(nodes, devices of each) of a placement on its hardware."""
    inner = request.cluster.levels[0].devices
    per_node = where.size if inner is None else min(inner, where.size)
    if where.size % per_node:
        return 1, where.size
    return where.size // per_node, per_node


def _in_flight(schedule: str) -> InFlight:
    # ZB-H1 holds what 1F1B does (arXiv 2401.10241).
    return in_flight_of("1f1b" if schedule == "zb_h1" else schedule)
