"""Program + options + devices -> a pipeline's plan, and the step that runs it."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import PlanError
from ..placement import Placement
from ..plan import PlanData
from ..planner import Request
from ..schedules import Schedule, by_name
from ..trace import Program, fingerprint
from . import cuts
from .actors_of import Instance, splits_backward
from .case import Case, Cases
from .marks import marked_placement
from .options import Pipeline
from .phases import Phases, assign
from .plan import PipelinePlan
from .search import search_stages
from .stacked import Stacked
from .stage_parts import StagePart, StageParts, stage_parts
from .stage_plan import plan_stage
from .stage_program import StageProgram, flows, stage_program
from .step import PipelineStep
from .times import stage_times, transfer_seconds

# Numbers of groups of devices alike that ``stages="auto"`` compares with what the search finds.
_ALIKE = (1, 2, 4, 8)


@dataclass(slots=True)
class Made:
    """A pipeline's plan with what it was made from."""

    plan: PipelinePlan
    phases: Phases
    sources: list[StageProgram]
    places: list[Placement]
    stacked: Stacked | None = None
    """Where layers that the user has in one array are in several stages."""

    @property
    def program(self) -> Program:
        """The program that was cut into stages."""
        return self.phases.cut.program


def make_pipeline(
    program: Program, options: Pipeline, where: Placement, request_on: Callable[[Placement], Request], name: str,
    returned: Sequence[tuple[int, int]] = (),
) -> Made:  # fmt: skip
    """Plan a step on a pipeline over the devices of ``where``.

    ``request_on`` says what is asked of a stage's plan; ``returned`` pairs arguments with the results that are of
    their shapes and structure: where nothing is donated, they are taken for what the model is made of.

    Raises:
        PlanError: more stages than can be cut or than there are devices, a batch that does not divide, a step that
            needs the whole batch at once, marks that contradict each other.
        ScheduleError: a schedule that so many stages and micro-batches do not have.
    """
    cases = Cases(program, options, name, returned)

    def planned(
        case: Case, stage_of: dict[int, int], places: list[Placement], schedule: Schedule, notes: list[str]
    ) -> Made:
        grouped = case.grouped

        def request_of(where: Placement) -> Request:
            request = request_on(where)
            return request if grouped is None else replace(request, pins=grouped.pins(request.pins))

        phases = assign(case.parts, stage_of, schedule.stages, case.backward)
        made = _planned(phases, places, schedule, request_of, name, notes)
        made.stacked = None if grouped is None else Stacked(grouped)
        return made

    def evenly(ranks: int) -> Made:
        places = split_placement(where, ranks)
        schedule = _schedule(options, ranks)
        case = cases.for_stages(schedule.stages)
        stage_of = cuts.even(case.parts, case.factors, case.forward, schedule.stages)
        return planned(case, stage_of, places, schedule, [])

    whole = cases.whole
    marked = cuts.at_marks(whole.parts, whole.forward)
    if marked is not None:
        stage_of, marks = marked
        places = [marked_placement(m, where) for m in marks]
        _check_places(places, where)
        schedule = _schedule(options, len(places))
        _check_stages(schedule, len(places), "marked by sbp.scope")
        return planned(whole, stage_of, places, schedule, [])
    if isinstance(options.stages, tuple):
        n = len(options.stages) + 1
        ranks = _ranks_for(options, n)
        schedule = _schedule(options, ranks)
        _check_stages(schedule, n, "given by paths")
        stage_of = cuts.at_paths(whole.parts, whole.forward, options.stages)
        return planned(whole, stage_of, split_placement(where, ranks), schedule, [])
    if isinstance(options.stages, int):
        return evenly(options.stages)
    found = search_stages(cases, options, where, request_on)
    if found is None:
        return evenly(where.shape[0])
    chosen = planned(found.case, found.stage_of, found.places, found.schedule, [found.note])
    # Layers' seconds do not add up to just those of a stage: groups of devices alike may be better after all.
    limit = request_on(where).memory_limit_bytes or math.inf
    layers = len(whole.forward) + cases.layered.length
    for ranks in _ALIKE:
        if where.size % ranks == 0 and ranks <= layers:
            other = evenly(ranks)
            if other.plan.memory_per_device <= limit and other.plan.step_seconds < chosen.plan.step_seconds:
                other.plan.notes = [f"{ranks} groups of devices alike, better than what was chosen first: {found.note}"]
                chosen = other
    return chosen


def _schedule(options: Pipeline, ranks: int) -> Schedule:
    schedule = by_name(options.schedule, ranks, options.microbatches, **_chunks(options))
    if not schedule.is_synchronous:
        raise PlanError(
            f"schedule {options.schedule!r} updates weights between micro-batches, which changes the mathematics: it "
            "can be drawn and timed (sbp.schedules), not run"
        )
    return schedule


def _planned(
    phases: Phases, places: list[Placement], schedule: Schedule, request_on: Callable[[Placement], Request], name: str,
    notes: list[str],
) -> Made:  # fmt: skip
    """The plan of every stage, and of the whole."""
    flow = flows(phases)
    sources = [stage_program(phases, s, flow) for s in range(schedule.stages)]
    plans = _plans(sources, schedule, places, request_on, name)
    times = [stage_times(phases, source, plan) for source, plan in zip(sources, plans, strict=True)]
    cluster = request_on(places[0]).cluster
    plan = PipelinePlan(
        name, schedule, plans, [t.seconds for t in times], [t.once_seconds for t in times],
        transfer_seconds(sources, plans, phases, cluster, schedule.ranks), [t.activation_bytes for t in times],
        [t.kept_bytes for t in times], [t.working_bytes for t in times], "permute" not in cluster.overlaps, notes,
    )  # fmt: skip
    return Made(plan, phases, sources, places)


def _chunks(options: Pipeline) -> dict[str, int]:
    return {} if options.chunks is None else {"chunks": options.chunks}


def _ranks_for(options: Pipeline, stages: int) -> int:
    """How many groups of devices so many stages have, for the schedule."""
    per_group = len(by_name(options.schedule, 2, 4, **_chunks(options)).placement[0]) // 2
    if stages % per_group:
        raise PlanError(
            f"schedule {options.schedule!r} has {per_group} stages a group of devices: {stages} stages, given by "
            f"{stages - 1} paths, cannot be shared out; give {stages - stages % per_group + per_group - 1} paths"
        )
    return stages // per_group


def _check_stages(schedule: Schedule, stages: int, how: str) -> None:
    if schedule.stages != stages:
        raise PlanError(
            f"schedule {schedule.name!r} has {schedule.stages} stages on {schedule.ranks} groups of devices, but "
            f"{stages} are {how}"
        )


def _check_places(places: list[Placement], where: Placement) -> None:
    outside = sorted({r for p in places for r in p.flat_ranks} - set(where.flat_ranks))
    if outside:
        raise PlanError(f"sbp.scope names devices {outside}, which are not among those of the placement, {where}")


def split_placement(where: Placement, count: int) -> list[Placement]:
    """The devices in ``count`` groups of the same size, along the outermost axis where that divides.

    Raises ``PlanError`` where they do not.
    """
    if where.size % count:
        possible = ", ".join(str(n) for n in range(1, where.size + 1) if where.size % n == 0)
        raise PlanError(f"{where.size} devices cannot be shared out over {count} stages; possible: {possible}")
    ranks = where.ranks
    if where.shape[0] % count == 0 and (where.ndim > 1 or where.shape[0] > count):
        groups = np.split(ranks, count)
        if where.shape[0] == count:
            return [_group(where, g[0], where.axis_names[1:]) for g in groups]
        return [_group(where, g, where.axis_names) for g in groups]
    return [_group(where, g, where.axis_names[-1:]) for g in ranks.reshape(count, -1)]


def _group(where: Placement, ranks: np.ndarray, names: tuple[str, ...]) -> Placement:
    return replace(where, shape=ranks.shape, flat_ranks=tuple(int(r) for r in ranks.ravel()), axis_names=tuple(names))


def _plans(
    sources: list[StageProgram], schedule: Schedule, places: list[Placement],
    request_on: Callable[[Placement], Request], name: str,
) -> list[PlanData]:  # fmt: skip
    """A plan for each stage; stages with the same program on devices alike share one."""
    known: dict[Any, PlanData] = {}
    plans = []
    for s, source in enumerate(sources):
        where = places[schedule.rank_of(s)]
        request = request_on(where)
        pins = tuple(sorted((k, str(p)) for k, (p, _) in request.pins.items()))
        key = fingerprint(source.program), where.shape, where.axis_names, pins and s
        if key not in known:
            known[key] = plan_stage(source, where, request, request.pins, f"stage {s} of {name}")
        plans.append(_named_as(known[key], source, where))
    return plans


def _named_as(plan: PlanData, source: StageProgram, where: Placement) -> PlanData:
    """A plan with the paths and the devices of a stage, which may be another one with the same program."""
    program = source.program
    inputs = [replace(leaf, path=op.label) for leaf, op in zip(plan.inputs, program.input_ops, strict=True)]
    outputs = [replace(leaf, path=op.label) for leaf, op in zip(plan.outputs, program.output_ops, strict=True)]
    return replace(plan, placement=where, inputs=inputs, outputs=outputs, function=f"stage {source.stage}")


def make_step(made: Made, compiler_options: Mapping[str, Any] | None = None) -> PipelineStep:
    """The step of a plan, on devices."""
    schedule, phases, program = made.plan.schedule, made.phases, made.program
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
            parts[d, s] = stage_parts(phases, source, there, splits_backward(schedule), shared, compiler_options)
    compile_parts([part for p in parts.values() for part in p.all])
    dims = {program.input_ops[i].outs[0].id: (i, d) for i, d in phases.cut.batch.items()}
    dims |= {v: (i, -1) for i, op in enumerate(program.input_ops)
             if (v := op.outs[0].id) not in dims and phases.cut.home[v].value == "loop"}  # fmt: skip
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
