"""The plans of all stages: each the planner's own, and together within memory with the micro-batches in flight.

A stage's plan counts one micro-batch under way; how many there are is the schedule's matter, and what each holds that
of the plan. So stages are planned without a limit first. Those of groups of devices that then hold more than a device
may are planned again, for less by what is too much, until they fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import PlanError
from ..placement import Placement
from ..plan import PlanData
from ..planner.memory.infeasible import TooSmall
from ..schedules import Schedule
from ..schedules.schedule import peak_held
from ..trace import fingerprint
from .plan import PipelinePlan
from .stage_plan import RequestOn, plan_stage
from .stage_program import StageProgram

# How often stages are planned again for less memory.
_ROUNDS = 6
_MIB = 2.0**20

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
    asked: dict[int, float] = {}
    for _ in range(_ROUNDS if limit is not None else 0):
        assert limit is not None
        over = {rank: b - limit for rank, b in enumerate(plan.memory_by_rank) if b > limit}
        if not over:
            return plan
        less = _shares(over, schedule, stages.kinds)
        try:
            for s, much in less.items():
                asked[s] = min(asked.get(s, float("inf")), plans[s].memory_per_device) - much
            # Stages of one kind share the plan of the tightest of them.
            tightest = {
                stages.kinds[s]: min(asked[x] for x in less if stages.kinds[x] == stages.kinds[s]) for s in less
            }
            for s in less:
                asked[s] = tightest[stages.kinds[s]]
                plans[s] = stages.planned(s, asked[s])
        except TooSmall as error:
            return _refused(plan, over, limit, request.limit_is_firm, name, str(error))
        plan = whole(plans, stages.kinds)
    over = {rank: b - (limit or 0.0) for rank, b in enumerate(plan.memory_by_rank) if limit is not None and b > limit}
    if over and limit is not None:
        return _refused(plan, over, limit, request.limit_is_firm, name, "")
    return plan


def _shares(over: dict[int, float], schedule: Schedule, kinds: Sequence[int]) -> dict[int, float]:
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
        f"stage {own} of {name} does not fit: its devices hold {plan.memory_by_rank[rank] / _MIB:,.1f} MiB each with "
        f"{held} micro-batches in flight, {over[rank] / _MIB:,.1f} MiB more than the {limit / _MIB:,.1f} MiB there "
        "are. Possible: more and smaller micro-batches, a schedule that holds fewer ('1f1b'), more stages, "
        "recomputation (remat='auto', jax.checkpoint)"
    )
    if is_firm:
        raise PlanError(f"{told}. {why}" if why else told)
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


def _named_as(plan: PlanData, source: StageProgram, where: Placement) -> PlanData:
    """A plan with the paths and the devices of a stage, which may be another one with the same program."""
    program = source.program
    inputs = [replace(leaf, path=op.label) for leaf, op in zip(plan.inputs, program.input_ops, strict=True)]
    outputs = [replace(leaf, path=op.label) for leaf, op in zip(plan.outputs, program.output_ops, strict=True)]
    return replace(plan, placement=where, inputs=inputs, outputs=outputs, function=f"stage {source.stage}")
