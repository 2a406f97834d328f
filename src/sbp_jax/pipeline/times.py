"""What a stage's plan says of its parts: seconds of a micro-batch forward and backward, of what happens once; bytes."""

from dataclasses import dataclass

import numpy as np

from ..cluster import Cluster
from ..pieces import stored_shape
from ..plan import PlanData
from ..schedules import StageSeconds
from ..trace import Structured, Value
from .microbatches import Region, nodes_of
from .phases import Phases
from .stage_program import StageProgram


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of a micro-batch, seconds once a step, and bytes that a micro-batch holds between its two parts."""

    seconds: StageSeconds
    once_seconds: float
    activation_bytes: float


def stage_times(phases: Phases, source: StageProgram, plan: PlanData) -> StageTimes:
    """Split a stage's predicted seconds over its parts."""
    cut = phases.cut
    unit_of = {n.index: k for k, u in enumerate(cut.units) for n in nodes_of(u)}

    def part(node: int) -> str:
        o = source.origin[node] if 0 <= node < len(source.origin) else -1
        k = unit_of.get(o, -1)
        if k < 0 or cut.regions[k] is not Region.LOOP:
            return "once"
        if not phases.backward[k]:
            return "forward"
        ways = cut.ways.get(o)
        return "weight" if ways is not None and any(c < -1 for c in ways[1]) else "input"

    total: dict[str, float] = dict.fromkeys(("once", "forward", "input", "weight"), 0.0)
    line = plan.timeline
    trips = {}
    for node, cost in line.runs:
        if node not in trips:
            trips[node] = 1.0
            for loop in line.loops:
                if loop.first <= node <= loop.last:
                    trips[node] *= loop.trips
        total[part(node)] += line.costs[cost].seconds * trips[node]
    for b in plan.boxing_list:
        where = part(b.needed_at)
        total[where if where != "once" or b.loop < 0 else part(b.made_at)] += b.seconds * b.times
    m = cut.count
    seconds = StageSeconds(total["forward"] / m, total["input"] / m, total["weight"] / m)
    return StageTimes(seconds, total["once"], activation_bytes(phases, source, plan))


def activation_bytes(phases: Phases, source: StageProgram, plan: PlanData) -> float:
    """Bytes per device of what the forward part of a stage makes, or takes, that its backward part reads."""
    cut = phases.cut
    unit_of = {n.index: k for k, u in enumerate(cut.units) for n in nodes_of(u)}
    loops = [u for u in source.program.graph.ops if isinstance(u, Structured)]
    body = {n.index for u in loops for b in u.bodies for n in b.nodes()}
    made: dict[int, Value] = {}
    read: set[int] = set()
    for op in source.program.nodes:
        o = source.origin[op.index]
        k = unit_of.get(o, -1)
        if op.index not in body or k < 0 or cut.regions[k] is not Region.LOOP:
            continue
        if phases.backward[k]:
            read.update(x.id for x in op.reads)
        else:
            made.update((v.id, v) for v in op.outs)
    signatures = {v.id: s for op in source.program.nodes if plan.nodes[op.index] >= 0
                  for v, s in zip(op.outs, plan.strategies[plan.nodes[op.index]][1], strict=False)}  # fmt: skip
    total = 0.0
    for i in read & made.keys():
        if i in signatures:
            n = made[i].itemsize
            for d in stored_shape(made[i].shape, signatures[i], plan.placement.shape):
                n *= d
            total += n
    return total


def transfer_seconds(
    sources: list[StageProgram], plans: list[PlanData], phases: Phases, cluster: Cluster, ranks: int
) -> list[float]:
    """Of one micro-batch between each stage and the next, the longer of forward and backward."""
    backward = {v.id for k, u in enumerate(phases.cut.units) if phases.backward[k] for n in nodes_of(u) for v in n.outs}
    found = []
    for s in range(len(sources) - 1):
        sent = {False: 0.0, True: 0.0}
        for o, port in enumerate(sources[s].gives):
            if port.kind == "part" and port.key not in backward:
                sent[False] += _bytes(plans[s], o)
        for o, port in enumerate(sources[s + 1].gives):
            if port.kind == "part" and port.key in backward:
                sent[True] += _bytes(plans[s + 1], o)
        size = plans[s].placement.size
        found.append(max(cluster.collective_seconds("permute", b, (ranks, size), (0,)) if b else 0.0
                         for b in sent.values()))  # fmt: skip
    return found


def _bytes(plan: PlanData, result: int) -> float:
    """Bytes per device of one micro-batch's part of a result."""
    leaf = plan.outputs[result]
    shape = stored_shape(leaf.shape, leaf.signature, plan.placement.shape)
    return float(np.prod(shape[1:])) * np.dtype(leaf.dtype).itemsize
