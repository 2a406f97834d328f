"""What each layer of a step takes on each size of a group of devices, for any number of micro-batches.

The planner plans the whole step on each sub-mesh; the seconds and bytes of its nodes are those of the layers that they
lie in. Alpa (arXiv 2201.12023, section 5) plans every range of layers by itself; here those of a range are the sums of
its layers'. Seconds and bytes of a micro-batch are taken to be affine in its size: the step is planned as a whole, and
in some numbers of micro-batches, and what lies between is read from the line.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import PlanError
from ...pieces import stored_shape
from ...placement import Placement
from ...plan import PlanData
from ...planner import Request
from ...planner.effort import budget_for
from ...trace import Op, Value
from ..cuts.case import Steps
from ..cuts.items import Items, Spread
from ..cuts.phases import assign
from ..plans.stage_plan import plan_stage
from ..plans.times import resident, spent
from ..plans.transfers import neighbour_seconds
from ..programs.stage_program import StageProgram, flows, stage_program
from ..stages import StageCosts, Submesh

# So many layers are enough to share out, for each device of a small placement and in all.
_LAYERS_A_DEVICE, MOST_LAYERS = 4, 64
# Nodes of all plans together that are planned for tables at most, where fewer do: about 10 s.
_PLANNED_NODES = 20_000
# Tables compare; a plan that is within this of the best tells as much.
_GAP = 1e-2


@dataclass(frozen=True, slots=True)
class Amounts:
    """Of every layer on one sub-mesh: seconds of a micro-batch, seconds once a step, bytes kept, bytes of a micro-batch
    in flight; ``sent_bytes`` before every layer, of a device, if a stage begins there."""

    seconds: np.ndarray
    once: np.ndarray
    kept: np.ndarray
    held: np.ndarray
    sent_bytes: np.ndarray

    def towards(self, other: "Amounts", part: float) -> "Amounts":
        """On the line from these to others, so far; none is below 0."""
        pairs = [(getattr(self, name), getattr(other, name)) for name in self.__slots__]
        return Amounts(*(np.maximum(a + part * (b - a), 0.0) for a, b in pairs))


class LayerTables:
    """Tables for a step on ``meshes``, for any of ``counts`` micro-batches.

    ``count`` is how many layers there are.
    """

    def __init__(
        self, steps: Steps, counts: Sequence[int], meshes: Sequence[Submesh], where: Placement, request: Request
    ) -> None:
        self.steps, self.meshes, self.where, self.request = steps, meshes, where, request
        self._anchors = _anchors(counts, len(steps.program.nodes) * len(meshes))
        self.counts = [m for m in counts if m <= 2 * self._anchors[-1]]
        items = Items(steps.cut_in(self._anchors[-1]))
        layers, self.count = items.layers(min(_LAYERS_A_DEVICE * where.size, MOST_LAYERS))
        self._layer = dict(zip(zip(items.unit, items.part, strict=True), layers, strict=True))
        self._known = {m: [self._planned(m, mesh) for mesh in meshes] for m in self._anchors}

    def layers_of(self, items: Items) -> list[int]:
        """By item its layer; one that is not there with other micro-batches is of the layer before it."""
        found: list[int] = []
        for key in zip(items.unit, items.part, strict=True):
            before = found[-1] if found else 0
            found.append(max(before, self._layer.get(key, before)))
        return found

    def at(self, count: int) -> list[Amounts]:
        """By sub-mesh what layers take with so many micro-batches."""
        if count in self._known:
            return self._known[count]
        line = [m for m in self._anchors if m > 1]
        k = min(max(bisect.bisect(line, count), 1), len(line) - 1)
        low, high = line[k - 1 : k + 1]
        part = (1 / count - 1 / low) / (1 / high - 1 / low)
        return [a.towards(b, part) for a, b in zip(self._known[low], self._known[high], strict=True)]

    def costs(self, count: int) -> StageCosts:
        """The costs of every range of layers."""
        amounts = self.at(count)
        ranges = []
        for name in ("seconds", "once", "kept", "held"):
            sums = [np.concatenate(([0.0], np.cumsum(getattr(a, name)))) for a in amounts]
            each = np.stack(sums, axis=-1)
            ranges.append(np.maximum(each[None, :, :] - each[: self.count, None, :], 0.0))
        transfers = np.stack([self.transfer_seconds(*x) for x in zip(self.meshes, amounts, strict=True)], axis=-1)
        return StageCosts(ranges[0], transfers, *ranges[1:])

    def transfer_seconds(self, mesh: Submesh, amounts: Amounts) -> np.ndarray:
        """Before every layer: to send what crosses there forward, and its gradient back, if a stage begins there.

        Both stages are taken to have as many devices, and to be in different nodes where there are several.
        """
        cluster, ranks = self.request.cluster, self.where.flat_ranks
        return 2 * neighbour_seconds(ranks, mesh.devices, cluster, amounts.sent_bytes)

    def placement(self, mesh: Submesh, own: Sequence[int]) -> Placement:
        """A stage's devices, by their positions in the whole: nodes by devices, or one axis within a node."""
        where = self.where
        ranks = tuple(where.flat_ranks[k] for k in own)
        inner = where.axis_names[-1]
        if mesh.nodes == 1:
            return replace(where, shape=(mesh.devices,), flat_ranks=ranks, axis_names=(inner,))
        outer = next(n for n in (*where.axis_names[:-1], "nodes") if n != inner)
        return replace(where, shape=(mesh.nodes, mesh.devices_per_node), flat_ranks=ranks, axis_names=(outer, inner))

    def _planned(self, count: int, mesh: Submesh) -> Amounts:
        """The step planned on a sub-mesh, by layers."""
        cases = self.steps.cut_in(count)
        case = cases.whole
        whole = assign(case.parts, dict.fromkeys(case.forward, 0), 1, case.backward)
        source = stage_program(whole, 0, flows(whole))
        there = replace(self.placement(mesh, range(mesh.devices)), is_abstract=True)
        asked = replace(self.request, budget=budget_for("quick", None), gap=_GAP, thorough=False)
        plan = plan_stage(source, there, asked, {}, f"a stage on {mesh}")
        items = Items(cases)
        layers = self.layers_of(items)
        spread = Spread(items, layers, self.count, case)
        table = np.zeros((4, self.count))
        for item in spent(spread.phases, source, plan):
            on = spread.of_node(item.node, item.stage)
            if item.part == "once":
                table[1] += item.seconds * on
            else:
                table[0] += item.seconds / count * on
            table[3] += item.held_bytes * on
        for argument, node, held in resident(source, plan):
            table[2] += held * (spread.of_argument(argument) if argument >= 0 else spread.of_node(node))
        sent = np.zeros(self.count)
        crossing = items.crossing_of(_parts_of_values(case.program.nodes, source, plan))
        for k in range(1, len(layers)):
            if layers[k] != layers[k - 1]:
                sent[layers[k]] = crossing[k - 1]
        seconds, once, kept, held = table
        if self.request.remat:  # what is held may be made again
            held = np.zeros_like(held)
        return Amounts(seconds, once, kept, held, sent)


def _anchors(counts: Sequence[int], nodes: int) -> list[int]:
    """In which numbers of micro-batches a step is planned whose plans have so many nodes together: all, if it is small.

    One has no loop: what is made once a step is made for each micro-batch there, so that it is on no line.
    """
    several = [m for m in counts if m > 1]
    if nodes * len(several) > _PLANNED_NODES and len(several) > 2:
        several = [several[0], several[3 * len(several) // 4]]
    return [m for m in counts if m == 1 or m in several]


def possible_counts(steps: Steps, asked: int | str) -> tuple[list[int], str]:
    """The numbers of micro-batches to choose among, and why there is no choice where there is none."""
    if isinstance(asked, int):
        return [asked], ""
    counts = steps.counts
    if len(counts) > 1:
        try:
            steps.cut_in(counts[1])
        except PlanError as error:
            return [1], f"one micro-batch: {error}"
    return counts, ""


def _parts_of_values(nodes: Sequence[Op], source: StageProgram, plan: PlanData) -> dict[int, float]:
    """By value of the step, which part of it one device has: as it is made, or else (of a loop) as it is read."""
    made: dict[int, float] = {}
    read: dict[int, float] = {}
    for op in source.program.nodes:
        o = source.origin[op.index]
        if o < 0 or plan.nodes[op.index] < 0:
            continue
        taken, given = plan.strategies[plan.nodes[op.index]]
        for values, own, signatures, found in (
            (op.outs, nodes[o].outs, given, made),
            (op.ins, nodes[o].ins, taken, read),
        ):
            for v, x, signature in zip(values, own, signatures, strict=False):
                if isinstance(v, Value) and isinstance(x, Value) and (size := math.prod(v.shape)):
                    found[x.id] = math.prod(stored_shape(v.shape, signature, plan.placement.shape)) / size
    return read | made
