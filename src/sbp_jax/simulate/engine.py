"""The simulation: nodes in program order on one compute stream, transfers on a stream for each level of links.

A transfer starts as soon as its value is made and its stream free, first come first served; the first node that needs
it waits. Kinds that do not run beside compute (``Cluster.overlaps``), and copies on the device itself, take the compute
stream. XLA's latency-hiding scheduler moves independent compute between start and end; here that is left to the
program's order, which keeps most of it: gradients are reduced while the backward pass goes on.

Compute is slower while a collective runs beside it, by ``Cluster.overlap_slowdown``.

A loop's iterations do not overlap: what starts in a body ends in it, as in XLA's while loops (unless it pipelines
their collectives, which is off by default). So one iteration is simulated, and its time multiplied. A transfer that
began before a loop runs on through it, unless the body itself uses that level of links.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .. import cluster as clusters
from ..cluster import Cluster
from ..errors import PlanError, SbpError
from ..plan import PlanData
from ..plan.timeline import Loop, Timeline
from .result import COMPUTE, Simulation
from .trace import Event
from .transfers import Transfer, transfers

# Iterations of a loop that are drawn one by one.
DRAWN = 2


@dataclass(slots=True)
class _Span:
    """What a stretch of the step came to; times are relative to its start."""

    seconds: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    flops: float = 0.0
    events: list[Event] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    waits: dict[int, float] = field(default_factory=dict)

    def wait(self, boxing: int, seconds: float) -> None:
        """The compute stream waits for a boxing. Whatever stops it comes through here, so that a step is compute and
        waits, and nothing else."""
        self.waits[boxing] = self.waits.get(boxing, 0.0) + seconds

    def add(self, event: Event) -> None:
        """An event, and the time its track is busy."""
        if event.seconds > 0:
            self.events.append(event)
            self.spend(event.track, event.seconds)

    def spend(self, track: str, seconds: float) -> None:
        """Time that a track is busy."""
        if seconds > 0:
            self.busy[track] = self.busy.get(track, 0.0) + seconds

    def repeat(self, body: "_Span", trips: float, at: float, label: str, draws: bool) -> None:
        """``trips`` iterations of ``body`` from ``at`` on: the first drawn, the rest as one event for each track."""
        for track, seconds in body.busy.items():
            self.busy[track] = self.busy.get(track, 0.0) + trips * seconds
        self.flops += trips * body.flops
        for boxing, waited in body.waits.items():
            self.wait(boxing, trips * waited)
        if not draws:
            return
        drawn = min(trips, DRAWN)
        for k in range(int(drawn)):
            offset = at + k * body.seconds
            self.events += (replace(e, start_seconds=e.start_seconds + offset) for e in body.events)
            self.memory += ((t + offset, held) for t, held in body.memory)
        rest = trips - int(drawn)
        start, seconds = at + int(drawn) * body.seconds, rest * body.seconds
        if rest > 0 and seconds > 0:
            for track, busy in body.busy.items():
                name = f"{rest:g} more iterations of {label}"
                detail = f"busy {busy / body.seconds:.1%} of the time"
                flops = rest * body.flops if track == COMPUTE else 0.0
                self.events.append(Event(name, track, start, seconds, detail, flops=flops, count=rest))


def simulate(plan: PlanData, cluster: Cluster | str | None = None, *, events: bool = True) -> Simulation:
    """One step of ``plan`` on ``cluster`` (None: the one it was planned for, which the plan holds).

    Without ``events`` nothing is drawn: only sums are kept, in half the time.

    Seconds are the plan's own; the cluster says which collectives run beside compute, on which links. Raises
    ``PlanError`` where the plan does not hold its cluster and it is no preset, or where the plan has no timeline.
    """
    if not plan.timeline.runs and plan.compute_seconds:
        raise PlanError(f"the plan of {plan.function} has no timeline: make it again with this version of sbp_jax")
    try:
        hardware = (
            clusters.parse(plan.hardware)
            if cluster is None and plan.hardware
            else clusters.get(plan.cluster if cluster is None else cluster)
        )
    except SbpError as error:
        if cluster is not None:
            raise
        raise PlanError(
            f"the plan of {plan.function} was made for cluster {plan.cluster!r}, which is not a preset: pass it, "
            "simulate(plan, cluster=...)"
        ) from error
    run = _Runner(plan.timeline, transfers(plan, hardware), hardware.overlap_slowdown, events)
    whole = run.scope(-1)
    levels = {level: seconds for level, seconds in whole.busy.items() if level != COMPUTE}
    return Simulation(
        plan.function, plan.placement.size, hardware, whole.seconds, whole.busy.get(COMPUTE, 0.0), levels, whole.flops,
        plan.memory_per_device, tuple(whole.memory), tuple(whole.events), tuple(sorted(whole.waits.items())),
    )  # fmt: skip


class _Runner:
    """Simulates one scope after the other: the step, a loop's body."""

    def __init__(self, timeline: Timeline, by_loop: Mapping[int, list[Transfer]], slowdown: float, draws: bool) -> None:
        self.timeline, self.transfers, self.slowdown, self.draws = timeline, by_loop, slowdown, draws
        self.children: dict[int, list[tuple[int, Loop]]] = {}
        for index, loop in enumerate(timeline.loops):
            self.children.setdefault(loop.parent, []).append((index, loop))
        self.run_nodes = [node for node, _ in timeline.runs]
        self.memory_nodes = [node for node, _ in timeline.memory]

    def scope(self, index: int) -> _Span:
        """One pass through a loop's body, or through the step for -1."""
        return _Pass(self, index).run()

    def steps(self, index: int) -> tuple[dict[int, list[int]], dict[int, float], dict[int, tuple[int, Loop]]]:
        """By node of this scope itself: the costs it runs, the bytes held from there on, the loop that begins."""
        children = sorted(self.children.get(index, ()), key=lambda x: x[1].first)
        loop = self.timeline.loops[index] if index >= 0 else None
        spans: list[tuple[int, int]] = []
        start = 0 if loop is None else loop.first
        for _, child in children:
            spans.append((start, child.first))
            start = child.last + 1
        spans.append((start, (max([0, *self.run_nodes, *self.memory_nodes]) if loop is None else loop.last) + 1))
        runs: dict[int, list[int]] = {}
        memory: dict[int, float] = {}
        for first, end in spans:
            for node, cost in self.timeline.runs[bisect_left(self.run_nodes, first) : bisect_left(self.run_nodes, end)]:
                runs.setdefault(node, []).append(cost)
            held = slice(bisect_left(self.memory_nodes, first), bisect_left(self.memory_nodes, end))
            memory.update(self.timeline.memory[held])
        return runs, memory, {child.first: (k, child) for k, child in children}


class _Pass:
    """One pass through one scope."""

    def __init__(self, runner: _Runner, index: int) -> None:
        self.runner, self.index = runner, index
        self.span, self.clock = _Span(), 0.0
        self.free: dict[str, float] = {}
        self.holder: dict[str, int] = {}  # the transfer that a level of links is busy with until then
        self.transfers = runner.transfers.get(index, [])
        self.done: dict[int, float] = {}

    def run(self) -> _Span:
        """Walk the positions at which something happens."""
        runs, memory, loops = self.runner.steps(self.index)
        made: dict[int, list[int]] = {}
        needed: dict[int, list[int]] = {}
        for k, t in enumerate(self.transfers):
            made.setdefault(t.made_at, []).append(k)
            needed.setdefault(t.needed_at, []).append(k)
        for at in sorted({*runs, *memory, *loops, *made, *needed}):
            for k in needed.get(at, ()):
                self._wait_until(self.done.get(k, 0.0), k)
            if at in memory:
                self.span.memory.append((self.clock, memory[at]))
            if at in loops:
                self._loop(*loops[at])
            for cost in runs.get(at, ()):
                self._compute(cost, at)
            for k in made.get(at, ()):
                self._issue(k)
        for k, done in self.done.items():
            self._wait_until(done, k)
        self.span.seconds = self.clock
        return self.span

    def _wait_until(self, time: float, k: int) -> None:
        """The compute stream stands still until ``time``, for transfer ``k``."""
        if time > self.clock:
            for boxing, share in self.transfers[k].boxings:
                self.span.wait(boxing, share * (time - self.clock))
            self.clock = time

    def _compute(self, cost: int, node: int) -> None:
        c = self.runner.timeline.costs[cost]
        # Meanwhile a collective takes units and memory bandwidth: compute is that much slower as long as both run.
        slowdown = self.runner.slowdown
        beside = min(c.seconds * (1 + slowdown), max(0.0, max(self.free.values(), default=0.0) - self.clock))
        seconds = c.seconds + beside * slowdown / (1 + slowdown)
        if self.runner.draws:
            name, _, where = c.label.partition(" ")
            self.span.add(Event(name, COMPUTE, self.clock, seconds, where, flops=c.flops, node=node))
        else:
            self.span.spend(COMPUTE, seconds)
        self.span.flops += c.flops
        self.clock += seconds

    def _loop(self, index: int, loop: Loop) -> None:
        body = self.runner.scope(index)
        for level in body.busy:
            if level in self.holder:
                self._wait_until(self.free[level], self.holder[level])
        self.span.repeat(body, loop.trips, self.clock, loop.label, self.runner.draws)
        self.clock += loop.trips * body.seconds
        for level in body.busy:
            self.free[level] = self.clock

    def _issue(self, k: int) -> None:
        transfer = self.transfers[k]
        ready = max(self.clock, self.done.get(transfer.after, 0.0))
        for stage in transfer.stages:
            start = max(ready, self.free.get(stage.level, 0.0) if stage.level else self.clock)
            if not stage.is_async:  # the compute stream waits for what came before, and then for this
                start = max(start, self.clock)
                self._wait_until(start, k)
                if stage.level:
                    self._wait_until(start + stage.seconds, k)
                else:
                    self.clock += stage.seconds
            ready = start + stage.seconds
            if stage.level:
                self.free[stage.level], self.holder[stage.level] = ready, k
            track = stage.level or COMPUTE
            if self.runner.draws:
                self.span.add(Event(transfer.name, track, start, stage.seconds, transfer.detail, bytes=stage.bytes))
            else:
                self.span.spend(track, stage.seconds)
        self.done[k] = ready
        if transfer.needed_at <= transfer.made_at:
            self._wait_until(ready, k)
