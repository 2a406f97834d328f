"""Which layers make a stage, and on how many devices each runs: Alpa's inter-operator pass.

Zheng et al., arXiv 2201.12023, section 5.1: a step of m micro-batches takes the sum of the stages' seconds and m - 1
times those of the slowest (equation 2). For each limit of the slowest, a dynamic program finds the least sum (equations
3 and 4, algorithm 1). Alpa tries the limits in order, and leaves out those within epsilon of the last. Here
``search.py`` finds the limit by branch and bound: mostly 10 to 50 tables, for an exact result, too. What stages do once
a step (``once_seconds``), which Alpa leaves out, is a second limit, searched in the same way.

Each stage here runs on devices of its own. Several stages a rank (interleaved schedules) would be a parameter
``chunks``: the memory of a stage then depends on all chunks of its rank, and the m - 1 pass ranks, not stages. It would
go into ``Problem`` (pace and bytes of a rank) and into ``table.py`` (what a row counts).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import PlanError
from .costs import HasDevices, Problem, StageCosts, most_stages_after, problem_of, stage_bytes, transfers
from .in_flight import InFlight, in_flight_of
from .infeasible import explained
from .search import Search
from .table import Stage

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages, first to last; per stage, tuples are in this order.

    Attributes:
        ranges: the first layer, and the layer after the last.
        options: the index of its sub-mesh option.
        labels: the option in words.
        devices: how many it has.
        seconds: compute of one micro-batch, forward and backward.
        transfer_seconds: what it sends, of one micro-batch, forward and backward.
        once_seconds: what it does once a step.
        memory_bytes: on each of its devices, with the micro-batches that it has in flight.
        total_seconds: of the step; the model is ``plan_stages``'s.
        slowest_seconds: from one micro-batch to the next.
        bound_seconds: no plan of these stages and options has a total below this, by the same model; 0 where none is
            proven.
        tables: how many tables the search filled.
    """

    ranges: tuple[tuple[int, int], ...]
    options: tuple[int, ...]
    labels: tuple[str, ...]
    devices: tuple[int, ...]
    seconds: tuple[float, ...]
    transfer_seconds: tuple[float, ...]
    once_seconds: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    total_seconds: float
    slowest_seconds: float
    bound_seconds: float
    tables: int

    @property
    def gap(self) -> float:
        """By what part of the total a better plan could be faster, at most; 0 if this is a best one."""
        return 1.0 - self.bound_seconds / self.total_seconds if self.total_seconds else 0.0

    @property
    def note(self) -> str:
        """How good it is, in words."""
        if self.bound_seconds <= 0 < self.total_seconds:
            return "no bound proven"
        return "exact" if self.gap <= _ROUNDING else f"within {self.gap:.2g} of the best"


def plan_stages(
    costs: StageCosts,
    options: Sequence[HasDevices],
    devices: int,
    microbatches: int,
    *,
    limit_bytes: float | None = None,
    in_flight: InFlight | None = None,
    overlaps: bool = False,
    window: InFlight | None = None,
    stages: int | None = None,
    least_stages: int = 1,
    most_stages: int | None = None,
    use_all: bool = True,
    epsilon: float = 0.0,
) -> Stages:
    """The stages with the least seconds of a step.

    The model, of m micro-batches:

        total = sum of latencies + (m - 1) * pace + largest once_seconds

    A stage's latency is its compute and what it sends. The pace, from one micro-batch to the next, is that of the
    slowest stage: compute + what it sends, or with ``overlaps`` the longer of the two. With a ``window``, a stage has
    only so many micro-batches under way. The next one waits until the first is back, so that the pace is no less than a
    micro-batch's way from a stage to the last and back (their compute, and what is sent between them) over the window.
    In 1F1B, whose window is the number of stages on the way, transfers thus do not hide; in GPipe they do.

    For stages of equal seconds and no transfers this is exact for GPipe and 1F1B (p stages: p - 1 bubbles of one
    stage). For unequal stages it is exact for GPipe where the stage with the slowest forward pass has the slowest
    backward pass, too, and too low else. 1F1B may take less than it (what stages after the slowest do may hide behind
    it), or more, where forward passes take unlike parts of stages: its tasks alternate in a fixed order.

    Of equal plans: the fewest stages, then the first by (layer after the stage, option).

    Args:
        costs: of every possible stage.
        options: the sub-mesh options, in the order of the last axis of ``costs``.
        devices: how many there are for all stages together.
        microbatches: of a step.
        limit_bytes: the memory of one device; without it, any stage fits.
        in_flight: how many micro-batches a stage holds; without it, that of 1F1B. ``in_flight_of`` has others by name.
        overlaps: whether stages compute while they send.
        window: how many micro-batches a stage has under way at most, whose way back it waits for; without it, it never
            does. A schedule's is its ``in_flight``.
        stages: exactly so many; or ``least_stages`` and ``most_stages``.
        use_all: whether all devices must be used.
        epsilon: the least total may be below the one found by this part of it. At 0 the total is the least, up to
            rounding; this takes hardly longer.

    Raises:
        PlanError: no stages fit (the message says which layers do not, by how many bytes, and what would help), or
            numbers that cannot be.
    """
    if not 0 <= epsilon < 1:
        raise PlanError(f"epsilon={epsilon}: give a part of the total, of at least 0 and below 1")
    in_flight = in_flight or in_flight_of("1f1b")
    most_after = most_stages_after(costs, in_flight, microbatches, limit_bytes)
    problem = problem_of(
        costs, options, devices, microbatches, most_after,
        overlaps=overlaps, stages=stages, least_stages=least_stages, most_stages=most_stages, use_all=use_all,
        window=window,
    )  # fmt: skip
    search = Search(problem, epsilon)
    if search.best is None:
        raise explained(problem, costs, in_flight, limit_bytes)
    bound = search.run()
    return described(problem, costs, in_flight, search.best, min(bound, search.total), search.tables)


def described(
    problem: Problem, costs: StageCosts, in_flight: InFlight, found: Sequence[Stage], bound_seconds: float, tables: int
) -> Stages:
    """Stages that were found, with what they take by the model of ``plan_stages``."""
    after = range(len(found) - 1, -1, -1)
    moved = transfers(costs)
    return Stages(
        ranges=tuple((i, j) for i, j, _ in found),
        options=tuple(o for _, _, o in found),
        labels=tuple(problem.labels[o] for _, _, o in found),
        devices=tuple(problem.sizes[o] for _, _, o in found),
        seconds=tuple(float(costs.seconds[s]) for s in found),
        transfer_seconds=tuple(float(moved[s]) for s in found),
        once_seconds=tuple(float(problem.once[s]) for s in found),
        memory_bytes=tuple(
            float(stage_bytes(costs, in_flight, a, problem.microbatches)[s]) for a, s in zip(after, found, strict=True)
        ),
        total_seconds=problem.total_seconds(found),
        slowest_seconds=problem.stage_seconds(found)[1],
        bound_seconds=bound_seconds,
        tables=tables,
    )
