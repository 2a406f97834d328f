"""What a simulated step would take with faster links."""

from collections.abc import Mapping
from dataclasses import replace

from ..cluster import Cluster, Level
from ..plan import Boxing, Move, PlanData
from .engine import simulate
from .result import Simulation


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
