"""A step cut into stages -> a pipeline's plan, and the step that runs it."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ..placement import Placement
from ..plan import PlanData
from ..planner import Request
from ..schedules import Schedule
from ..trace import Program
from .cuts.case import Case
from .cuts.phases import Phases, assign
from .cuts.stacked import Stacked
from .plans.plan import PipelinePlan
from .plans.stage_plan import RequestOn, as_planned
from .plans.stage_plans import plan_stages_to_fit
from .plans.times import StageTimes, stage_times, transfers_of, version_bytes
from .programs.asynchronous import check_updates, note, share_state, state_of, updates_between
from .programs.slots import StagePart, StageParts
from .programs.stage_parts import stage_parts
from .programs.stage_program import StageProgram, flows, stage_program
from .programs.update_parts import update_parts
from .run.actors_of import Instance, splits_backward
from .run.step import PipelineStep
from .spmd import SpmdStep, spmd_step


@dataclass(slots=True)
class Made:
    """A pipeline's plan with what it was made from."""

    plan: PipelinePlan
    phases: Phases
    sources: list[StageProgram]
    places: list[Placement]
    state: dict[int, int]
    """Where weights are updated between micro-batches: by argument the result that replaces it."""
    stacked: Stacked | None = None
    """Where layers that the user has in one array are in several stages."""

    @property
    def program(self) -> Program:
        """The program that was cut into stages."""
        return self.phases.cut.program


def planned(
    case: Case, stage_of: dict[int, int], places: list[Placement], schedule: Schedule,
    request_on: RequestOn, name: str, notes: list[str],
) -> Made:  # fmt: skip
    """The plan of a step cut into stages: of every stage, and of the whole.

    ``request_on`` says what is asked of a stage's plan, by nodes of the step as it was written.
    """
    grouped = case.grouped

    def request_of(where: Placement, pinned: bool = True) -> Request:
        request = request_on(where, pinned)
        return request if grouped is None else replace(request, pins=grouped.pins(request.pins))

    alone = (case.program.donated or case.returned) if updates_between(schedule) else ()
    phases = assign(case.parts, stage_of, schedule.stages, case.backward, alone)
    flow, state = flows(phases), dict[int, int]()
    if updates_between(schedule):
        state = state_of(phases.cut.program, phases, case.returned, schedule)
        share_state(phases, flow, state)
        check_updates(phases, flow, state, schedule)
    if not schedule.is_synchronous:
        notes = [*notes, note(schedule)]
    sources = [stage_program(phases, s, flow) for s in range(schedule.stages)]
    cluster = request_of(places[0], pinned=False).cluster
    stage_places = [places[schedule.rank_of(s)] for s in range(schedule.stages)]
    known: dict[tuple[int, int], StageTimes] = {}
    run: list[StageProgram] = []

    def whole(plans: list[PlanData], kinds: Sequence[int]) -> PipelinePlan:
        times = []
        run[:] = [as_planned(source, plan) for source, plan in zip(sources, plans, strict=True)]
        for source, plan, kind in zip(run, plans, kinds, strict=True):
            key = kind, id(plan.strategies)
            if key not in known:
                known[key] = stage_times(phases, source, plan)
            times.append(known[key])
        return PipelinePlan(
            name, schedule, plans, [t.seconds for t in times], [t.once_seconds for t in times],
            transfers_of(phases, sources, plans, stage_places, cluster), [t.activation_bytes for t in times],
            [t.kept_bytes for t in times], [t.working_bytes for t in times], "permute" not in cluster.overlaps, notes,
            [version_bytes(phases, source, plan, state) for source, plan in zip(sources, plans, strict=True)],
        )  # fmt: skip

    plan = plan_stages_to_fit(sources, schedule, places, request_of, name, whole)
    return Made(plan, phases, run, places, state, None if grouped is None else Stacked(grouped))


def make_step(
    made: Made, compiler_options: Mapping[str, Any] | None = None, execution: str = "actors"
) -> PipelineStep | SpmdStep:
    """The step of a plan, on devices."""
    schedule, phases, program = made.plan.schedule, made.phases, made.program
    dims = {program.input_ops[i].outs[0].id: (i, d) for i, d in phases.cut.batch.items()}
    dims |= {v: (i, -1) for i, op in enumerate(program.input_ops)
             if (v := op.outs[0].id) not in dims and phases.cut.home[v].value == "loop"}  # fmt: skip
    if execution == "spmd":
        return spmd_step(
            schedule, phases, made.sources, made.plan.stages, made.places, program, dims, compiler_options
        )  # fmt: skip
    used: dict[int, int] = {}
    for source in made.sources:
        for port in source.takes:
            if port.kind == "argument":
                used[port.key] = used.get(port.key, 0) + 1
    copies = len(schedule.placement)
    shared = {i for i, n in used.items() if n > 1 or copies > 1}
    parts: dict[Instance, StageParts] = {}
    for d in range(copies):
        for s, (source, plan) in enumerate(zip(made.sources, made.plan.stages, strict=True)):
            there = replace(plan, placement=made.places[schedule.rank_of(s, d)])
            if made.state:
                parts[d, s] = update_parts(
                    phases, source, there, shared, made.state, schedule.updates, compiler_options
                )
            else:
                parts[d, s] = stage_parts(phases, source, there, splits_backward(schedule), shared, compiler_options)
    compile_parts([part for p in parts.values() for part in p.all])
    return PipelineStep(schedule, parts, dims, len(program.output_ops))


def compile_parts(parts: Sequence[StagePart]) -> None:
    """Compile parts, several at a time.

    They are traced here, under the settings of the thread that calls the step: those of the threads that run it may be
    others.
    """
    lowered = [part.lowered() for part in parts]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for part, compiled in zip(parts, pool.map(lambda x: x.compile(), lowered), strict=True):
            part.function = compiled
