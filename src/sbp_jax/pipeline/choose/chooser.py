"""Program + options + devices -> which stages, devices, and micro-batches: what the user named, or what is best."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ...errors import PlanError, SbpError, ScheduleError
from ...placement import Placement
from ...schedules import Schedule, by_name
from ...schedules.schedule import peak_held
from ...trace import Program
from ..cuts import boundaries
from ..cuts.case import Steps
from ..cuts.marks import marked_placement
from ..make import Made, planned
from ..options import Pipeline
from ..plans.stage_plan import RequestOn
from ..programs.asynchronous import updates_between
from .layer_tables import possible_counts
from .search import Alike, Found, StageSearch

# So many choices that tables call good are planned: besides stages that may be unlike, and without any.
_TRIED_BESIDES, _TRIED = 2, 3
# So many at most, where those do not fit or cannot be.
_MOST_TRIED = 12
# Schedules that hold no more than as many micro-batches as there are groups of devices.
_HOLD_FEWER = ("1f1b", "zb_h1")


def make_pipeline(
    program: Program, options: Pipeline, where: Placement, request_on: RequestOn, name: str,
    returned: Sequence[tuple[int, int]] = (),
) -> Made:  # fmt: skip
    """Plan a step as a pipeline on the devices of a placement.

    ``request_on`` says what is asked of a stage's plan; ``returned`` pairs arguments with the results that are of
    their shapes and structure: where nothing is donated, they are taken for what the model is made of.

    Raises:
        PlanError: more stages than can be cut or than there are devices, a batch that does not divide, a step that
            needs the whole batch at once, marks that contradict each other, stages that do not fit into memory.
        ScheduleError: a schedule that so many stages and micro-batches do not have.
    """
    return _Chooser(program, options, where, request_on, name, returned).chosen()


class _Chooser:
    def __init__(
        self, program: Program, options: Pipeline, where: Placement, request_on: RequestOn,
        name: str, returned: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        self.options, self.where, self.request_on, self.name = options, where, request_on, name
        self.steps = Steps(program, options, name, returned)
        self.counts, self.why = possible_counts(self.steps, options.microbatches)
        self.limit_bytes = request_on(where, pinned=False).memory_limit_bytes

    def chosen(self) -> Made:
        """What the user named, the rest as good as was found."""
        options, whole = self.options, self.steps.cut_in(self.counts[0]).whole
        if problem := boundaries.nothing_to_cut(whole.parts, whole.factors, whole.forward, self.name):
            raise PlanError(problem)
        marked = boundaries.at_marks(whole.parts, whole.forward)
        if marked is not None:
            if options.search is not None:
                raise PlanError(
                    f"search={options.search!r} decides the stages of {self.name}, which sbp.scope in it has decided: "
                    "leave out one of them"
                )
            made = self.best_count(len(set(marked[1])), self.at_marks)
        elif isinstance(options.stages, tuple):
            made = self.best_count(_ranks_for(options, len(options.stages) + 1), self.at_paths)
        elif isinstance(options.stages, int):
            ranks = options.stages
            made = self.best_count(ranks, lambda count: self.evenly(ranks, count))
        else:
            made = self.best()
        if self.why:
            made.plan.notes = [*made.plan.notes, self.why]
        return made

    def best(self) -> Made:
        """The best stages: unlike, where the schedule lets them be, or groups of devices alike."""
        search = self.searched(None)
        if self.options.search is not None:
            return self.of(search.unlike())
        whole = self.steps.cut_in(self.counts[0]).whole
        alike = search.alike(len(whole.forward) + self.steps.layered.length)
        first, refused, why = None, None, ""
        try:
            found = search.unlike()
            if found is not None:
                first = self.of(found)
        except PlanError as error:
            found, refused = None, error
        if found is not None and first is not None:
            why = f"better than what was chosen first: {found.note}"
            if len({p.shape for p in found.places}) == 1:  # these are alike
                here = len(found.places), first.plan.microbatches
                alike = [x for x in alike if (x.ranks, x.microbatches) != here]
        # Layers' seconds do not add up to just those of a stage: groups of devices alike may be better after all.
        most = _TRIED if first is None else _TRIED_BESIDES
        made, tried = self.best_of(alike, lambda x: self.evenly(x.ranks, x.microbatches), first, most, refused)
        if made is not first:
            counts = ", ".join(f"{x.ranks} ({x.microbatches})" for x in tried)
            why = why or f"the best of {counts} groups (micro-batches), which tables of layers call good"
            made.plan.notes = [*made.plan.notes, f"{len(made.places)} groups of devices alike, {why}"]
        return made

    def of(self, found: Found | None) -> Made:
        """The plan of stages that a search has found."""
        assert found is not None
        return planned(
            found.case, found.stage_of, found.places, found.schedule, self.request_on, self.name, [found.note]
        )  # fmt: skip

    def best_count(self, ranks: int, make: Callable[[int], Made]) -> Made:
        """The best number of micro-batches for so many groups of devices."""
        if len(self.counts) == 1:
            return make(self.counts[0])
        alike = [x for x in self.searched(ranks).alike(math.inf) if x.ranks == ranks]
        # Without a table: bubbles are short where there are several micro-batches for each group.
        others = sorted(self.counts, key=lambda m: (m < 4 * ranks, abs(m - 4 * ranks)))
        order = alike or [Alike(0.0, ranks, m) for m in others]
        made, _ = self.best_of(order, lambda x: make(x.microbatches), None, _TRIED, None)
        told = ", ".join(map(str, self.counts))
        made.plan.notes = [*made.plan.notes, f"{made.plan.microbatches} micro-batches, chosen among {told}"]
        return made

    def best_of(
        self, order: Iterable[Alike], make: Callable[[Alike], Made], first: Made | None, most: int,
        refused: SbpError | None,
    ) -> tuple[Made, list[Alike]]:  # fmt: skip
        """The quickest of what fits, and what was planned; ``order`` begins with what is likely good."""
        best = first
        tried: list[Alike] = []
        for x in itertools.islice(order, _MOST_TRIED):
            if best is not None and self.fits(best) and (len(tried) >= most or x.seconds >= best.plan.step_seconds):
                break
            try:
                made = make(x)
            except (PlanError, ScheduleError) as error:
                refused = error
                continue
            tried.append(x)
            if best is None or (self.fits(made), -made.plan.step_seconds) > (self.fits(best), -best.plan.step_seconds):
                best = made
        if best is None:
            raise refused or PlanError(
                f"{self.where.size} devices: no number of groups of devices alike has stages of {self.name} that fit "
                'and that the schedule can have: name the stages, or take execution="actors" and schedule="1f1b"'
            )
        return best, tried

    def fits(self, made: Made) -> bool:
        """Whether a plan keeps the limit."""
        return made.plan.memory_per_device <= (self.limit_bytes or math.inf)

    def searched(self, ranks: int | None) -> StageSearch:
        request = replace(self.request_on(self.where, pinned=False), memory_limit_bytes=None)
        given = schedule_options(self.options)
        return StageSearch(
            self.steps, self.options, self.counts, self.where, request, self.limit_bytes, given, ranks
        )  # fmt: skip

    def evenly(self, ranks: int, count: int) -> Made:
        """Stages of about equal work on groups of devices alike."""
        places = split_placement(self.where, ranks)
        schedule = _schedule(self.options, ranks, count)
        cases = self.steps.cut_in(count)
        case = cases.for_stages(schedule.stages)
        stage_of = boundaries.even(case.parts, case.factors, case.forward, schedule.stages)
        return planned(case, stage_of, places, schedule, self.request_on, self.name, [])

    def at_marks(self, count: int) -> Made:
        """Stages as ``sbp.scope`` says."""
        whole = self.steps.cut_in(count).whole
        marked = boundaries.at_marks(whole.parts, whole.forward)
        assert marked is not None
        stage_of, marks = marked
        places = [marked_placement(m, self.where) for m in marks]
        _check_places(places, self.where)
        schedule = _schedule(self.options, len(places), count)
        _check_stages(schedule, len(places), "marked by sbp.scope")
        return planned(whole, stage_of, places, schedule, self.request_on, self.name, [])

    def at_paths(self, count: int) -> Made:
        """Stages as the user's paths say."""
        paths = self.options.stages
        assert isinstance(paths, tuple)
        whole, n = self.steps.cut_in(count).whole, len(paths) + 1
        ranks = _ranks_for(self.options, n)
        schedule = _schedule(self.options, ranks, count)
        _check_stages(schedule, n, "given by paths")
        stage_of = boundaries.at_paths(whole.parts, whole.forward, paths)
        places = split_placement(self.where, ranks)
        return planned(whole, stage_of, places, schedule, self.request_on, self.name, [])


def schedule_options(options: Pipeline) -> dict[str, int]:
    """What the user says of the schedule besides its name."""
    given = {"chunks": options.chunks, "update_every": options.update_every}
    return {name: n for name, n in given.items() if n is not None}


def _schedule(options: Pipeline, ranks: int, count: int) -> Schedule:
    schedule = by_name(options.schedule, ranks, count, **schedule_options(options))
    if options.execution == "spmd" and updates_between(schedule):
        raise PlanError(
            f"schedule {schedule.name!r} updates weights between micro-batches, which one program for all devices "
            '(execution="spmd") does not: take execution="actors", or a synchronous schedule, such as "1f1b"'
        )
    held = peak_held(schedule)
    if options.registers is not None and max(held) > options.registers:
        fewer = [n for n in _HOLD_FEWER if n != schedule.name]
        raise PlanError(
            f"registers={options.registers} are too few: schedule {schedule.name!r} of {count} micro-batches on "
            f"{ranks} groups of devices holds {max(held)} of them at once (by group: {', '.join(map(str, held))}). "
            "Give as many, fewer micro-batches or groups, or a schedule that holds fewer, such as "
            f"{' or '.join(map(repr, fewer))}"
        )
    return schedule


def _ranks_for(options: Pipeline, stages: int) -> int:
    """How many groups of devices so many stages have, for the schedule."""
    per_group = (
        len(by_name(options.schedule, 2, 4, **schedule_options(replace(options, update_every=None))).placement[0]) // 2
    )
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
