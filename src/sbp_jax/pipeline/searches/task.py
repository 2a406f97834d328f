"""What a search for stages is given, what it may ask, and how its answer is judged: by the model of ``plan_stages``."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import PlanError
from ...planner.amounts import bytes_text
from ...planner.catalogue import lookup
from ..stages.costs import Array, HasDevices, Problem, StageCosts, most_stages_after, problem_of, stage_bytes
from ..stages.dp import Stages, described
from ..stages.in_flight import InFlight
from ..stages.squares import least_squares
from ..stages.table import Adds, Stage, fill

# A method: the stages, first to last, or the whole answer where it proves a bound; None where it has none.
Run = Callable[["StageTask"], Sequence[Stage] | Stages | None]


@dataclass(frozen=True, slots=True, eq=False)
class StageTask:
    """L layers to cut into stages, each on one of S sub-mesh options, for a step of ``microbatches``.

    Attributes:
        costs: of every possible stage.
        meshes: the sub-mesh options, in the order of the last axis of ``costs``.
        limit_bytes: the memory of a device, or None.
        in_flight: how many micro-batches a stage holds, by the schedule.
        overlaps: whether stages compute while they send.
        window: how many micro-batches a stage has under way at most, whose way back it waits for, or None.
        schedule: the schedule's name.
        options: the values of the method's options.
    """

    costs: StageCosts
    meshes: Sequence[HasDevices]
    devices: int
    microbatches: int
    limit_bytes: float | None
    in_flight: InFlight
    overlaps: bool
    window: InFlight | None
    schedule: str
    options: Mapping[str, Any]
    problem: Problem = field(init=False)

    def __post_init__(self) -> None:
        most_after = most_stages_after(self.costs, self.in_flight, self.microbatches, self.limit_bytes)
        problem = problem_of(
            self.costs, self.meshes, self.devices, self.microbatches, most_after,
            overlaps=self.overlaps, stages=None, least_stages=1, most_stages=None, use_all=True,
            window=self.window,
        )  # fmt: skip
        object.__setattr__(self, "problem", problem)

    @property
    def layers(self) -> int:
        """L."""
        return self.costs.layers

    @property
    def paces(self) -> Array:
        """(L, L + 1, S): seconds from one micro-batch to the next of every stage, with its part of what is done once a
        step; inf where a stage is not possible."""
        return self.problem.pace + self.problem.once / self.microbatches

    def groups(self) -> Iterator[tuple[int, int]]:
        """Options of which a whole number of at most L makes up all devices: (option, how many)."""
        for o, size in enumerate(self.problem.sizes):
            count, rest = divmod(self.devices, size)
            if not rest and count <= self.layers:
                yield o, count

    def group_of(self, stages: int) -> int:
        """The option of which so many make up all devices. ``PlanError`` says which numbers are possible."""
        by_count = {count: o for o, count in self.groups()}
        if stages not in by_count:
            raise PlanError(
                f"stages={stages}: {self.layers} layers on {self.devices} devices can have "
                f"{', '.join(map(str, sorted(by_count))) or 'no number of'} stages of groups alike"
            )
        return by_count[stages]

    def alike(self, cuts: Iterable[int], option: int) -> list[Stage]:
        """Stages on groups alike, that begin at layer 0 and at ``cuts``."""
        ends = [0, *map(int, cuts), self.layers]
        return [(i, j, option) for i, j in itertools.pairwise(ends)]

    def too_large(self, stages: Sequence[Stage]) -> int:
        """How many stages do not fit into memory."""
        after = range(len(stages) - 1, -1, -1)
        return sum(int(self.problem.most_after[s] < a) for s, a in zip(stages, after, strict=True))

    def best(self, candidates: Iterable[Sequence[Stage]]) -> Sequence[Stage] | None:
        """The one whose step takes the least seconds, of those that fit if any does; the first of equal ones."""
        found = [c for c in candidates if np.isfinite(self.problem.total_seconds(c))]
        return min(found, key=lambda c: (self.too_large(c) > 0, self.problem.total_seconds(c)), default=None)

    def least(
        self, cost: Array, combine: Callable[..., Any], allowed: Array | None = None, stages: int | None = None,
        has_memory: bool = True,
    ) -> tuple[Stage, ...] | None:  # fmt: skip
        """The stages with the least ``cost``, combined by ``np.add`` or ``np.maximum``, by dynamic programming.

        ``allowed``: which stages may be, (L, L + 1, S); ``stages``: exactly so many; ``has_memory``: within the limit.
        """
        problem, possible = self.problem, np.isfinite(cost)
        if not has_memory:
            problem = replace(problem, most_after=np.full(problem.pace.shape, self.layers))
        if stages is not None:
            problem = replace(problem, least=stages, most=stages)
        table = fill(problem, possible if allowed is None else possible & allowed, Adds(cost, combine))
        if table is None:
            return None
        value, row = table.best()
        return table.stages(row, 1e-12 * value)


def balanced(amounts: Array, parts: int) -> list[int]:
    """Where to cut a line of amounts into so many parts, none empty, with the least sum of squares."""
    ends = np.concatenate(([0.0], np.cumsum(amounts + 1e-9 * (amounts.mean() + 1e-300))))
    return [int(k) + 1 for k in least_squares(ends, parts, float(ends[-1]))]


def search_stages(
    name: str, given: Mapping[str, Any] | None, costs: StageCosts, meshes: Sequence[HasDevices], devices: int,
    microbatches: int, *, limit_bytes: float | None, in_flight: InFlight, overlaps: bool,
    window: InFlight | None = None, schedule: str = "1f1b",
) -> Stages:  # fmt: skip
    """The stages that a method finds, judged by the model of ``plan_stages``.

    Raises:
        PlanError: a method or an option that is not known; no stages, or some that do not fit into memory.
    """
    method = lookup(name, "stages")
    task = StageTask(
        costs, meshes, devices, microbatches, limit_bytes, in_flight, overlaps, window, schedule,
        method.checked(given),
    )  # fmt: skip
    found = method.run(task)
    if isinstance(found, Stages):
        return found
    if found is None or not np.isfinite(task.problem.total_seconds(found)):
        within = "" if limit_bytes is None else f" within {bytes_text(limit_bytes)} of memory a device"
        raise PlanError(
            f"search {name!r} finds no stages of {task.layers} layers on {devices} devices in groups of "
            f"{', '.join(map(str, meshes))}{within}; 'alpa_inter' tries all there are"
        )
    if limit_bytes is not None and task.too_large(found):
        _refuse(name, task, found, limit_bytes)
    return described(task.problem, costs, in_flight, found, bound_seconds=0.0, tables=0)


def _refuse(name: str, task: StageTask, found: Sequence[Stage], limit_bytes: float) -> None:
    held = [
        float(stage_bytes(task.costs, task.in_flight, len(found) - 1 - s, task.microbatches)[stage])
        for s, stage in enumerate(found)
    ]
    s = max(range(len(found)), key=lambda s: held[s])
    i, j, o = found[s]
    raise PlanError(
        f"search {name!r} finds stages that do not fit: stage {s} (layers {i} to {j - 1} of {task.layers}, on "
        f"{task.meshes[o]}) holds {bytes_text(held[s])} on each device, {bytes_text(held[s] - limit_bytes)} more than "
        f"the {bytes_text(limit_bytes)} there are. Possible: 'alpa_inter' or 'piper', which keep to memory, more "
        "micro-batches, remat='auto'"
    )
