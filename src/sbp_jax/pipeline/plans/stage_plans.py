"""The plans of all stages: each the planner's own, and together within memory with the micro-batches in flight.

A stage's plan counts one micro-batch under way; how many there are is the schedule's matter, and what each holds that
of the plan. So stages are planned without a limit first. Those of groups of devices that then hold more than a device
may are planned again: with ``remat="auto"`` so that they make again, in their backward parts, what is too much; then
for less memory by what is too much, until they fit.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import PlanError
from ...placement import Placement
from ...plan import PlanData
from ...planner.amounts import bytes_text
from ...planner.memory.infeasible import TooSmall
from ...schedules import Schedule
from ...schedules.schedule import peak_held
from ...trace import fingerprint
from ..programs.stage_program import StageProgram
from .plan import PipelinePlan
from .stage_plan import RequestOn, plan_stage, plan_stage_again

# How often stages are planned again for less memory.
_ROUNDS = 6

# From the stages' plans, and of each the number of its kind (the same program on devices alike), to the whole.
Whole = Callable[[list[PlanData], Sequence[int]], PipelinePlan]


def plan_stages_to_fit(
    sources: list[StageProgram], schedule: Schedule, places: list[Placement],
    request_on: RequestOn, name: str, whole: Whole,
) -> PipelinePlan:  # fmt: skip
    """The pipeline's plan.

    Raises ``PlanError`` where a stage does not fit into a firm limit: which, and by how much.
    """
    stages = _Stages(sources, schedule, places, request_on, name)
    plans = [stages.planned(s, None) for s in range(schedule.stages)]
    plan = whole(plans, stages.kinds)
    request = request_on(places[0], pinned=False)
    limit = request.memory_limit_bytes
    if limit is None:
        return plan
    if request.remat:
        plan = _spared(stages, plan, limit, whole)
    asked: dict[int, float] = {}
    why = ""
    for _ in range(_ROUNDS):
        over = _over(plan, limit)
        if not over:
            return plan
        try:
            for s, much in _by_stage(over, schedule).items():
                asked[s] = min(asked.get(s, math.inf), plan.stages[s].memory_per_device) - much
            tightest = stages.tightest(asked, min)
            plans = [stages.planned(s, tightest[s]) if s in tightest else p for s, p in enumerate(plan.stages)]
        except TooSmall as error:
            why = str(error)
            break
        plan = whole(plans, stages.kinds)
    over = _over(plan, limit)
    return _refused(plan, over, limit, request.limit_is_firm, name, why) if over else plan


def _spared(stages: "_Stages", plan: PipelinePlan, limit: float, whole: Whole) -> PipelinePlan:
    """The plan whose stages make again, in their backward parts, what they cannot hold of micro-batches in flight."""
    spared: dict[int, float] = {}
    held = peak_held(plan.schedule)
    for _ in range(_ROUNDS):
        over = _over(plan, limit)
        if not over:
            break
        for rank, much in over.items():
            for s in {s for _, s in plan.schedule.stages_of(rank)}:
                spared[s] = spared.get(s, 0.0) + much / held[rank]
        most = stages.tightest(spared, max)
        plans = [stages.again(s, most[s]) if s in most else p for s, p in enumerate(plan.stages)]
        new = whole(plans, stages.kinds)
        if max(new.memory_by_rank) >= max(plan.memory_by_rank):
            break
        plan = new
    return plan


def _over(plan: PipelinePlan, limit: float) -> dict[int, float]:
    """By group of devices what it holds too much."""
    return {rank: b - limit for rank, b in enumerate(plan.memory_by_rank) if b > limit}


def _by_stage(over: Mapping[int, float], schedule: Schedule) -> dict[int, float]:
    """By stage of a group that holds too much its part of what is too much."""
    found: dict[int, float] = {}
    for rank, much in over.items():
        own = sorted({s for _, s in schedule.stages_of(rank)})
        for s in own:
            found[s] = max(found.get(s, 0.0), much / len(own))
    return found


def _refused(
    plan: PipelinePlan, over: dict[int, float], limit: float, is_firm: bool, name: str, why: str
) -> PipelinePlan:
    """Say which group does not fit, by how much: as an error where the limit is firm, else as a note."""
    rank = max(over, key=lambda r: over[r])
    held = peak_held(plan.schedule)[rank]
    own = ", ".join(str(s) for s in sorted({s for _, s in plan.schedule.stages_of(rank)}))
    told = (
        f"stage {own} of {name} does not fit: its devices hold {bytes_text(plan.memory_by_rank[rank])} each with "
        f"{held} micro-batches in flight, {bytes_text(over[rank])} more than the {bytes_text(limit)} there "
        "are. Possible: more and smaller micro-batches, a schedule that holds fewer ('1f1b'), more stages, "
        "recomputation (remat='auto', jax.checkpoint)"
    )
    if is_firm:
        # The limits that a stage's own error names count one micro-batch.
        _, what, rest = why.partition("That plan's peak is held by")
        holds = rest.partition(" Raise memory_limit")[0]
        raise PlanError(f"{told}. At the least, a stage's memory is held by{holds}" if what else told)
    plan.notes = [*plan.notes, told]
    return plan


class _Stages:
    """Plans of stages; the same program on devices alike is planned once for a limit."""

    def __init__(
        self, sources: list[StageProgram], schedule: Schedule, places: list[Placement],
        request_on: RequestOn, name: str,
    ) -> None:  # fmt: skip
        self.sources, self.schedule, self.places = sources, schedule, places
        self.request_on, self.name = request_on, name
        self._known: dict[tuple[int, float | None], PlanData] = {}
        keys: dict[Any, int] = {}
        self.kinds: list[int] = []
        for s, source in enumerate(sources):
            where = places[schedule.rank_of(s)]
            pins = tuple(sorted((k, str(p)) for k, (p, _) in request_on(where).pins.items()))
            key = fingerprint(source.program), where.shape, where.axis_names, pins and s
            self.kinds.append(keys.setdefault(key, len(keys)))

    def planned(self, s: int, limit: float | None) -> PlanData:
        """The plan of a stage within a limit of its own."""
        source, where = self.sources[s], self.places[self.schedule.rank_of(s)]
        key = self.kinds[s], limit
        if key not in self._known:
            asked = self.request_on(where)
            request = replace(asked, memory_limit_bytes=limit, limit_is_firm=True)
            self._known[key] = plan_stage(source, where, request, asked.pins, f"stage {s} of {self.name}")
        return _named_as(self._known[key], source, where)

    def again(self, s: int, spared_bytes: float) -> PlanData:
        """The plan of a stage that makes again what spares so many bytes of each micro-batch in flight."""
        source, where = self.sources[s], self.places[self.schedule.rank_of(s)]
        key = self.kinds[s], -spared_bytes
        if key not in self._known:
            asked, base = self.request_on(where), self.planned(s, None)
            name = f"stage {s} of {self.name}"
            found = plan_stage_again(source, where, asked, asked.pins, name, base, spared_bytes)
            self._known[key] = found or base
        return _named_as(self._known[key], source, where)

    def tightest(self, asked: Mapping[int, float], of: Callable[[Iterable[float]], float]) -> dict[int, float]:
        """Stages of one kind share the plan of the tightest of them."""
        by_kind: dict[int, list[float]] = {}
        for s, n in asked.items():
            by_kind.setdefault(self.kinds[s], []).append(n)
        return {s: of(by_kind[self.kinds[s]]) for s in asked}


def _named_as(plan: PlanData, source: StageProgram, where: Placement) -> PlanData:
    """A plan with the paths and the devices of a stage, which may be another one with the same program."""
    program = source.program
    inputs = [replace(leaf, path=op.label) for leaf, op in zip(plan.inputs, program.input_ops, strict=True)]
    outputs = [replace(leaf, path=op.label) for leaf, op in zip(plan.outputs, program.output_ops, strict=True)]
    return replace(plan, placement=where, inputs=inputs, outputs=outputs, function=f"stage {source.stage}")
