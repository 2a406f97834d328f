"""What a stage's plan says of its parts: seconds of a micro-batch forward and backward, of what happens once; bytes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ...cluster import Cluster
from ...pieces import stored_shape
from ...placement import Placement
from ...plan import Leaf, PlanData
from ...schedules import StageSeconds
from ...signature import Signature, Split
from ...trace import Graph, Op
from ..cuts.phases import Phases
from ..microbatches.cut import Region
from ..microbatches.units import nodes_of
from ..programs.stage_local import loop_of
from ..programs.stage_program import StageProgram
from .transfers import Handed, transfer_seconds


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of a micro-batch, seconds once a step, and bytes that a micro-batch holds between its two parts.

    ``kept_bytes`` is what a device holds besides micro-batches in flight but one; of that ``working_bytes`` only while
    the stage computes.
    """

    seconds: StageSeconds
    once_seconds: float
    activation_bytes: float
    kept_bytes: float
    working_bytes: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What one node of a stage's program takes in a step: in which ``part`` ("once", "forward", "input", "weight"), of
    which ``stage`` of the step (-1: of none), which ``node`` of the step it stands for (-1: none), and what a device
    holds of it until the backward part."""

    part: str
    stage: int
    node: int
    seconds: float
    held_bytes: float = 0.0


def spent(phases: Phases, source: StageProgram, plan: PlanData) -> Iterator[Spent]:
    """A stage's predicted seconds and bytes, by node of the step that they are of."""
    cut, line = phases.cut, plan.timeline
    unit_of = {n.index: k for k, u in enumerate(cut.units) for n in nodes_of(u)}

    def place(node: int) -> tuple[str, int, int]:
        o = source.origin[node] if 0 <= node < len(source.origin) else -1
        k = unit_of.get(o, -1)
        stage = phases.stage[k] if k >= 0 else -1
        if k < 0 or cut.regions[k] is not Region.LOOP:
            return "once", stage, o
        if node in source.again:
            return "input", stage, o
        if not phases.backward[k]:
            return "forward", stage, o
        ways = cut.ways.get(o)
        return ("weight" if ways is not None and any(c < -1 for c in ways[1]) else "input"), stage, o

    for node, cost in line.runs:
        trips = math.prod(loop.trips for loop in line.loops if loop.first <= node <= loop.last)
        yield Spent(*place(node), line.costs[cost].seconds * trips)
    for b in plan.boxing_list:
        where = place(b.needed_at)
        yield Spent(*(place(b.made_at) if where[0] == "once" and b.loop >= 0 else where), b.seconds * b.times)
    yield from _held(phases, source, plan, unit_of)


def _held(phases: Phases, source: StageProgram, plan: PlanData, unit_of: dict[int, int]) -> Iterator[Spent]:
    """What the forward part makes, or is handed, that the backward part reads: bytes of a micro-batch on a device."""
    loop = loop_of(source.program)
    if loop is None:
        return
    read: dict[int, int] = {}
    made = [(op, -1, source.origin[op.index]) for op in loop.roles["unstack"]]
    for op, origin in _with_origins(loop.bodies[0], source.origin):
        k = unit_of.get(origin, -1)
        if k >= 0 and (phases.backward[k] or op.index in source.again):
            read.update((x.id, phases.stage[k]) for x in op.reads)
        elif k >= 0:
            made.append((op, phases.stage[k], origin))
    for op, stage, origin in made:
        if plan.nodes[op.index] < 0:
            continue
        for v, signature in zip(op.outs, plan.strategies[plan.nodes[op.index]][1], strict=True):
            if v.id in read:
                held = v.itemsize * math.prod(stored_shape(v.shape, signature, plan.placement.shape))
                yield Spent("forward", stage if stage >= 0 else read[v.id], origin, 0.0, held)


def _with_origins(graph: Graph, origin: Sequence[int]) -> Iterator[tuple[Op, int]]:
    """The nodes of a graph, and which node of the step each stands for: the links of a loop for one of its body."""
    for unit in graph.ops:
        if isinstance(unit, Op):
            yield unit, origin[unit.index]
            continue
        inner = [pair for body in unit.bodies for pair in _with_origins(body, origin)]
        of = next((o for _, o in inner if o >= 0), -1)
        yield from ((op, origin[op.index] if origin[op.index] >= 0 else of) for op in unit.links)
        yield from inner


def stage_times(phases: Phases, source: StageProgram, plan: PlanData) -> StageTimes:
    """Split a stage's predicted seconds over its parts."""
    total: dict[str, float] = dict.fromkeys(("once", "forward", "input", "weight"), 0.0)
    held = 0.0
    for item in spent(phases, source, plan):
        total[item.part] += item.seconds
        held += item.held_bytes
    m = phases.cut.count
    # The plan counts what comes and goes with all micro-batches as if it were there at once.
    stacks = [_bytes(leaf, plan) for port, leaf in (*zip(source.takes, plan.inputs, strict=True),
              *zip(source.gives, plan.outputs, strict=True)) if port.kind == "part"]  # fmt: skip
    kept = max(0.0, plan.memory_per_device - (m - 1) * sum(stacks))
    seconds = StageSeconds(total["forward"] / m, total["input"] / m, total["weight"] / m)
    return StageTimes(seconds, total["once"], held, kept, max(0.0, kept - sum(b for _, _, b in resident(source, plan))))


def resident(source: StageProgram, plan: PlanData) -> Iterator[tuple[int, int, float]]:
    """What a device holds during the whole step: arguments, and the sums that the loop carries. Of each the number of
    the argument and -1, or -1 and the node of the step that reads the sum; bytes."""
    for port, leaf in zip(source.takes, plan.inputs, strict=True):
        if port.kind == "argument":
            shape = stored_shape(leaf.shape, leaf.signature, plan.placement.shape)
            yield port.key, -1, math.prod(shape) * itemsize_of(leaf.dtype)
    loop = loop_of(source.program)
    if loop is None:
        return
    reader: dict[int, int] = {}
    for n in source.program.nodes:
        for x in n.reads:
            reader[x.id] = max(reader.get(x.id, -1), source.origin[n.index])
    for op in loop.roles["carry"]:
        v = op.outs[1]
        shape = stored_shape(v.shape, plan.strategies[plan.nodes[op.index]][1][1], plan.placement.shape)
        yield -1, reader.get(v.id, -1), float(math.prod(shape) * v.itemsize)


def itemsize_of(dtype: str) -> float:
    """Bytes of an element of a type; of keys, and types of JAX's own, about so many."""
    try:
        return float(np.dtype(dtype).itemsize)
    except TypeError:
        return 2.0 if "16" in dtype else 1.0 if "8" in dtype else 8.0


def transfers_of(
    phases: Phases, sources: Sequence[StageProgram], plans: Sequence[PlanData], places: Sequence[Placement],
    cluster: Cluster,
) -> list[float]:  # fmt: skip
    """Seconds of one micro-batch between each stage and the next: half of the way there and back, which is what stages
    send forward and what they send back. A value goes straight to each stage that reads it. ``places``: by stage its
    devices."""
    backward = {v.id for k, u in enumerate(phases.cut.units) if phases.backward[k] for n in nodes_of(u) for v in n.outs}
    taken = [{p.key: leaf for p, leaf in zip(source.takes, plan.inputs, strict=True) if p.kind == "part"}
             for source, plan in zip(sources, plans, strict=True)]  # fmt: skip
    sent = np.zeros((len(sources), 2))
    for s, (source, plan) in enumerate(zip(sources, plans, strict=True)):
        for t, there in enumerate(taken):
            ways: tuple[list[Handed], list[Handed]] = [], []
            for port, leaf in zip(source.gives, plan.outputs, strict=True):
                if port.kind == "part" and t != s and port.key in there:
                    given, wanted = _of_one(leaf.signature), _of_one(there[port.key].signature)
                    ways[port.key in backward].append((leaf.shape[1:], itemsize_of(leaf.dtype), given, wanted))
            sent[s] += [transfer_seconds(handed, places[s], places[t], cluster) for handed in ways]
    return [float(sent[s, 0] + sent[s + 1, 1]) / 2 for s in range(len(sources) - 1)]


def _of_one(signature: Signature) -> Signature:
    """The signature of one micro-batch, of one of all with a dim in front that counts them, which is never split."""
    return Signature(tuple(Split(c.dim - 1) if isinstance(c, Split) else c for c in signature.components))


def version_bytes(phases: Phases, source: StageProgram, plan: PlanData, state: Mapping[int, int]) -> float:
    """Bytes per device of one version of the state that a stage's micro-batches read; not of what is gathered of it."""
    cut, found = phases.cut, 0.0
    units = [k for k, s in enumerate(phases.stage) if s == source.stage and cut.regions[k] is Region.LOOP]
    read, queue = set[int](), [x.id for k in units for x in cut.units[k].reads]
    while queue:
        x = queue.pop()
        k = phases.made.get(x, -1)
        if x not in read and (k < 0 or cut.regions[k] is Region.ONCE):
            read.add(x)
            queue += [] if k < 0 else [y.id for y in cut.units[k].reads]
    for port, leaf in zip(source.takes, plan.inputs, strict=True):
        if port.kind == "argument" and port.key in state:
            v = cut.program.input_ops[port.key].outs[0]
            if v.id in read:
                found += v.itemsize * math.prod(stored_shape(leaf.shape, leaf.signature, plan.placement.shape))
    return found


def _bytes(leaf: Leaf, plan: PlanData) -> float:
    """Bytes per device of one micro-batch's part of an argument or result."""
    shape = stored_shape(leaf.shape, leaf.signature, plan.placement.shape)
    return float(math.prod(shape[1:]) * jnp.dtype(leaf.dtype).itemsize)
