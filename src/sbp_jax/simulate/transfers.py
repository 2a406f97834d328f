"""The transfers of a plan: its boxings as moves on streams, small collectives combined as XLA combines them.

XLA's combiners (``AllReduceCombiner`` and the like for all-gather and reduce-scatter) merge collectives over the same
devices that do not depend on each other, up to a number of bytes of the merged one: 30 MiB
(``kDefaultAllReduceCombineThreshold``, openxla/xla ``xla/service/collective_utils.h``; the flag is
``xla_gpu_all_reduce_combine_threshold_bytes``). A merged collective starts when the last of its parts is there, and
pays the latency once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..cluster import Cluster
from ..plan import Boxing, Move, PlanData

COMBINE_BYTES = 30 * 2**20
_COMBINED = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Stage:
    """One move: its kind, the level of links it uses ("" for a copy on the device itself), bytes sent, seconds."""

    kind: str
    level: str
    bytes: float
    seconds: float
    is_async: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """Stages in sequence: from after node ``made_at`` to before ``needed_at``; ``after`` is the transfer it reads.

    ``boxings`` are the ids of the plan's boxings in it, with their shares of its seconds.
    """

    name: str
    detail: str
    made_at: int
    needed_at: int
    stages: tuple[Stage, ...]
    boxings: tuple[tuple[int, float], ...]
    after: int = -1


@dataclass(slots=True)
class _Group:
    """Boxings to be combined: where their transfer is, their bytes, the first node that needs one of them."""

    at: int
    boxings: list[Boxing]
    bytes: float
    needed_at: int


def transfers(plan: PlanData, cluster: Cluster) -> dict[int, list[Transfer]]:
    """By loop (-1: outside of loops), the transfers there, in the order they can begin."""
    by_loop: dict[int, list[Boxing]] = {}
    for b in plan.boxing_list:
        by_loop.setdefault(b.loop, []).append(b)
    return {loop: _of_loop(boxings, plan, cluster) for loop, boxings in by_loop.items()}


def _of_loop(boxings: Sequence[Boxing], plan: PlanData, cluster: Cluster) -> list[Transfer]:
    ordered = _sources_first(boxings)
    made = {(b.value_id, b.dst): b for b in ordered}
    read = {(b.value_id, b.src) for b in ordered}
    result: list[Transfer] = []
    where: dict[int, int] = {}
    open_: dict[object, _Group] = {}
    combined: list[_Group] = []
    for b in ordered:
        source = made.get((b.value_id, b.src))
        is_alone = source is not None or (b.value_id, b.dst) in read or len(b.moves) != 1
        if not is_alone and b.moves[0].kind in _COMBINED:
            key = (b.moves[0].kind, b.moves[0].axes, b.dtype)
            size = _payload(b.moves[0], plan)
            group = open_.get(key)
            # Made before any of the others' results is used: it cannot depend on them.
            if group is not None and group.bytes + size <= COMBINE_BYTES and b.made_at < group.needed_at:
                if len(group.boxings) == 1:
                    combined.append(group)
                group.boxings.append(b)
                group.bytes, group.needed_at = group.bytes + size, min(group.needed_at, b.needed_at)
                continue
            open_[key] = _Group(len(result), [b], size, b.needed_at)
        where[b.id] = len(result)
        after = where[source.id] if source is not None else -1
        stages = tuple(_stage(m, plan, cluster) for m in b.moves)
        detail = f"({b.src}) -> ({b.dst}) of {b.dtype}{list(b.shape)}; {b.source} for {b.user}"
        result.append(
            Transfer(
                f"{b.collective} {plan.called(b.value)}", detail, b.made_at, b.needed_at, stages, ((b.id, 1.0),), after
            )
        )
    for group in combined:
        result[group.at] = _combined(group.boxings, plan, cluster)
    return result


def _sources_first(boxings: Sequence[Boxing]) -> list[Boxing]:
    """In the order they begin; what is boxed from another boxing's result comes after that one."""
    made = {(b.value_id, b.dst): b for b in boxings}

    def depth(b: Boxing) -> int:
        source = made.get((b.value_id, b.src))
        return 0 if source is None or source is b else 1 + depth(source)

    return sorted(boxings, key=lambda b: (b.made_at, depth(b), b.needed_at, b.id))


def _stage(move: Move, plan: PlanData, cluster: Cluster) -> Stage:
    if not move.is_collective:
        return Stage(move.kind, "", move.bytes, move.seconds, False)
    axes = [plan.placement.axis_names.index(a) for a in move.axes]
    level = cluster.link(plan.placement.shape, axes).level
    return Stage(move.kind, level, move.bytes, move.seconds, move.kind in cluster.overlaps)


def _payload(move: Move, plan: PlanData) -> float:
    """Bytes of the larger side of a collective, from those each device sends."""
    p = math.prod(plan.placement.shape[plan.placement.axis_names.index(a)] for a in move.axes)
    return move.bytes * p / max(p - 1, 1) / (2 if move.kind == "all_reduce" else 1)


def _combined(group: Sequence[Boxing], plan: PlanData, cluster: Cluster) -> Transfer:
    move = group[0].moves[0]
    axes = [plan.placement.axis_names.index(a) for a in move.axes]
    sent, apart = sum(b.bytes for b in group), sum(b.seconds for b in group)
    # The plan's own seconds, less what the cluster says that merging saves.
    shape = plan.placement.shape
    saved = sum(cluster.collective_seconds(move.kind, b.bytes, shape, axes) for b in group)
    saved -= cluster.collective_seconds(move.kind, sent, shape, axes)
    stage = replace(_stage(move, plan, cluster), bytes=sent, seconds=max(0.0, apart - max(0.0, saved)))
    detail = "combined: " + ", ".join(dict.fromkeys(plan.called(b.value) for b in group))
    return Transfer(
        f"{move.kind} of {len(group)} values", detail, max(b.made_at for b in group), min(b.needed_at for b in group),
        (stage,), tuple((b.id, b.seconds / apart if apart else 1 / len(group)) for b in group),
    )  # fmt: skip
