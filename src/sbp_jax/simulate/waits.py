"""Where a simulated step waits for its links, and what it would take with faster ones."""

import math
from collections.abc import Mapping
from dataclasses import replace

from ..cluster import Cluster, Level
from ..plan import Boxing, Move, PlanData
from ..timeline import Timeline
from .engine import DRAWN, simulate
from .result import COMPUTE, Simulation


def waits(simulation: Simulation, timeline: Timeline) -> dict[int, float]:
    """By node, the seconds a step that the compute stream waits before it; at -1 those at the end.

    Of a loop the first iterations are drawn, and stand for all.
    """
    stands_for = [1.0] * len(timeline.loops)
    for k, loop in enumerate(timeline.loops):
        stands_for[k] = max(1.0, loop.trips / max(1, min(loop.trips, DRAWN)))
    found: dict[int, float] = {}
    end = 0.0
    for event in sorted((e for e in simulation.events if e.track == COMPUTE), key=lambda e: e.start_seconds):
        gap = event.start_seconds - end
        end = max(end, event.start_seconds + event.seconds)
        if gap > 1e-12 and event.count <= 1:
            inside = [x for x, loop in zip(stands_for, timeline.loops, strict=True)
                      if loop.first <= event.node <= loop.last]  # fmt: skip
            found[event.node] = found.get(event.node, 0.0) + gap * math.prod(inside)
    if simulation.step_seconds > end:
        found[-1] = found.get(-1, 0.0) + simulation.step_seconds - end
    return found


def with_faster_links(plan: PlanData, cluster: Cluster, speed: Mapping[str, float]) -> Simulation:
    """The same plan where each level of links named in ``speed`` carries so many times the bytes per second.

    The plan is not made anew: with faster links another one may be better still.
    """

    def sped(level: Level) -> Level:
        times, pair = speed.get(level.name, 1.0), level.pair_bytes_per_second
        return replace(
            level, bytes_per_second=times * level.bytes_per_second, pair_bytes_per_second=pair and times * pair
        )

    # Costs are kept by a cluster's name.
    other = replace(cluster, name=f"{cluster.name} with {dict(speed)}", levels=tuple(map(sped, cluster.levels)))
    shape, names = plan.placement.shape, plan.placement.axis_names
    known: dict[Move, Move] = {}

    def priced(move: Move) -> Move:
        if not move.is_collective:
            return move
        if move not in known:
            axes = [names.index(a) for a in move.axes]
            now, then = (c.collective_seconds(move.kind, move.bytes, shape, axes) for c in (cluster, other))
            known[move] = replace(move, seconds=move.seconds * (then / now if now else 1.0))
        return known[move]

    def boxed(b: Boxing) -> Boxing:
        return replace(b, moves=tuple(map(priced, b.moves)))

    return simulate(replace(plan, boxing_list=list(map(boxed, plan.boxing_list))), other)
