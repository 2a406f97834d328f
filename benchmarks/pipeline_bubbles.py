"""Bubbles of every schedule in the actor runtime, against its formula, and what it holds against its promise.

    python benchmarks/pipeline_bubbles.py

Two ranks: a rank that computes keeps a core busy. A task is a hash of as many bytes as take the milliseconds wanted
(calibrated in this process; it holds no lock of Python's), not a sleep. The forward pass takes one unit, the backward
pass two, or its halves one each. The bubble is what is left of ranks x makespan; what is held are registers of forward
actors, counted while it ran.
"""

import hashlib
import statistics
import sys
import time
from collections.abc import Callable

from sbp_jax.actors import Actor, ActorGraph, Runtime
from sbp_jax.schedules import Kind, Schedule, StageSeconds, Task, by_name, schedules

RANKS, MICROBATCHES, UNIT_SECONDS, ROUNDS, MOST_DIFFERENCE = 2, 8, 60e-3, 5, 0.05
UNITS = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.INPUT: 1, Kind.WEIGHT: 1}


def kernels() -> dict[Kind, Callable[[], object]]:
    """For each kind of task work of its length."""
    sample = bytes(64 << 20)
    start = time.perf_counter()
    hashlib.sha256(sample).digest()
    rate = len(sample) / (time.perf_counter() - start)
    data = bytes(int(rate * UNIT_SECONDS * max(UNITS.values())))
    views = {kind: memoryview(data)[: int(rate * UNIT_SECONDS * n)] for kind, n in UNITS.items()}
    return {kind: lambda v=view: hashlib.sha256(v).digest() for kind, view in views.items()}


def graph(schedule: Schedule, work: dict[Kind, Callable[[], object]]) -> ActorGraph:
    """Each part of each stage as an actor, rank by rank in the schedule's order.

    The whole backward pass and its first half are one actor, whose length depends on the micro-batch: DualPipe-V
    has both in one stage.
    """
    kinds: dict[str, dict[int, Kind]] = {}
    where: dict[str, Task] = {}
    for tasks in schedule.tasks:
        for t in tasks:
            kinds.setdefault(name(t.kind, t.direction, t.stage), {})[t.microbatch] = t.kind
            where[name(t.kind, t.direction, t.stage)] = t
    actors = []
    for label, own in kinds.items():
        d, s, kind = where[label].direction, where[label].stage, where[label].kind
        before = [name(Kind.FORWARD, d, s - 1)] if kind is Kind.FORWARD and s else []
        if kind is not Kind.FORWARD:
            before = [name(Kind.FORWARD, d, s)]
            if kind is Kind.WEIGHT:
                before.append(name(Kind.INPUT, d, s))
            elif s + 1 < schedule.stages:
                before.append(name(Kind.INPUT, d, s + 1))
        actors.append(Actor(
            label, lambda k, *_, own=own: work[own[k]](), tuple(before), schedule.microbatches,
            f"rank {schedule.rank_of(s, d)}", indices=tuple(sorted(own)),
        ))  # fmt: skip
    orders = {f"rank {r}": tuple((name(t.kind, t.direction, t.stage), t.microbatch) for t in tasks)
              for r, tasks in enumerate(schedule.tasks)}  # fmt: skip
    return ActorGraph(tuple(actors), orders)


def name(kind: Kind, direction: int, stage: int) -> str:
    """The actor of a part of a stage."""
    return f"{Kind.BACKWARD if kind is Kind.INPUT else kind}{stage}" + "'" * direction


def main() -> int:
    work = kernels()
    print(f"{RANKS} ranks, {MICROBATCHES} micro-batches, units of {UNIT_SECONDS * 1e3:.0f} ms; median of {ROUNDS} runs")
    print(f"{'schedule':18} {'formula':>8} {'measured':>9} {'difference':>11} {'held':>10} {'promised':>9}")
    is_good = True
    for label, found in sorted(schedules().items()):
        schedule = by_name(label, RANKS, MICROBATCHES)
        if not schedule.is_synchronous:
            continue  # a step has no bubble of its own
        formula = found.bubble(RANKS, MICROBATCHES, StageSeconds(1.0, 1.0, 1.0))
        with Runtime(graph(schedule, work)) as runtime:
            runtime.run()
            records = [runtime.run() for _ in range(ROUNDS)]
        measured = statistics.median(r.bubble_fraction() for r in records)
        own = [[name(Kind.FORWARD, d, s) for d, s in schedule.stages_of(r)] for r in range(RANKS)]
        held = tuple(max(r.peak_together(names) for r in records) for names in own)
        promised = found.peak(RANKS, MICROBATCHES)
        is_good &= formula is not None and abs(measured - formula) <= MOST_DIFFERENCE and held == promised
        told = "none" if formula is None else f"{formula:.4f}"
        apart = "" if formula is None else f"{measured - formula:+.4f}"
        print(f"{label:18} {told:>8} {measured:9.4f} {apart:>11} {held!s:>10} {promised!s:>9}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
