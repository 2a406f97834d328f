"""A plan by layer: layers of one look folded, with what they hold split how, what they compute and send."""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..insight import PHASES, Decision
from ..plan import Boxing, Leaf, PlanData
from ..signature import Signature
from .units import local_bytes, star

_MATRICES = ("dot_general", "conv_general_dilated", "ragged_dot_general")


@dataclass(frozen=True, slots=True)
class Activation:
    """The largest value that a layer makes going forward, or that one of its matrix products makes."""

    shape: tuple[int, ...]
    dtype: str
    signature: Signature
    op: str
    source: str


@dataclass(slots=True)
class Row:
    """Layers of one look together. Seconds, bytes and counts are a step's, on one device, of all of them.

    ``parameters`` are those of one of them, ``kept_bytes`` what all hold in parameters and optimizer state,
    ``peak_bytes`` what all hold at the peak. ``compute`` and ``boxing`` seconds are by phase. ``exposed_seconds`` are
    waited for ``boxings``, those of values that these layers make.
    """

    name: str
    layers: list[str]
    parameters: list[Leaf] = field(default_factory=list)
    activations: list[Activation] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)
    compute: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    boxing: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    boxing_bytes: float = 0.0
    boxings: list[Boxing] = field(default_factory=list)
    kept_bytes: float = 0.0
    peak_bytes: float = 0.0
    exposed_seconds: float = 0.0

    @property
    def count(self) -> int:
        """How many layers."""
        return len(self.layers)

    @property
    def compute_seconds(self) -> float:
        """Over all phases."""
        return sum(self.compute.values())

    @property
    def boxing_seconds(self) -> float:
        """Over all phases."""
        return sum(self.boxing.values())

    @property
    def title(self) -> str:
        """``blocks/* x96``."""
        return f"{self.name} x{self.count}" if self.count > 1 else self.name


def runs_of(plan: PlanData) -> Callable[[int], float]:
    """How many times a step runs a node: the trips of the loops around it."""
    loops = sorted(plan.timeline.loops, key=lambda x: x.first)
    firsts = [x.first for x in loops]

    def of(node: int) -> float:
        return math.prod(x.trips for x in loops[: bisect.bisect_right(firsts, node)] if x.last >= node)

    return of


def rows(plan: PlanData, exposed: Mapping[int, float] | None = None) -> list[Row]:
    """The layers in the order in which they first run. ``exposed``: by boxing, the seconds that are waited for it."""
    insight = plan.insight
    if not insight.spots:
        return []
    leaves: dict[str, list[Leaf]] = {}
    for leaf, kind, layer in zip(plan.inputs, insight.argument_kinds, insight.argument_layers, strict=True):
        if kind == "parameters":
            leaves.setdefault(layer, []).append(leaf)
    order: dict[str, None] = {}
    start = len(plan.inputs)
    for spot in dict.fromkeys(insight.node_spots[start:]):
        order[insight.spots[spot].layer] = None
    order.update((s.layer, None) for s in insight.spots)
    found: dict[object, Row] = {}
    of: dict[str, Row] = {}
    for layer in order:
        own = leaves.get(layer, [])
        look = (star(layer), tuple((x.path.rpartition("/")[2], x.shape, x.dtype, x.signature) for x in own))
        row = found.get(look)
        if row is None:
            row = found[look] = Row(layer, [], own)
        row.layers.append(layer)
        of[layer] = row
    names = Counter(star(row.name) for row in found.values())
    for row in found.values():
        if row.count > 1:
            row.name = star(row.name) if names[star(row.name)] == 1 else f"{row.name} and alike"
    _account(plan, of, exposed or {})
    for row in found.values():
        row.activations = _activations(plan, row)
    return [
        r for r in found.values() if r.parameters or r.boxings or r.compute_seconds or r.boxing_seconds or r.peak_bytes
    ]


def shown_names(plan: PlanData) -> dict[str, str]:
    """Each layer's name as reports show it: with stars where several of one look are one row."""
    return {layer: row.name for row in rows(plan) for layer in row.layers}


def _account(plan: PlanData, of: Mapping[str, Row], exposed: Mapping[int, float]) -> None:
    """Seconds and bytes to the rows they are of."""
    insight, times = plan.insight, runs_of(plan)
    places = [(of[s.layer], s.phase) for s in insight.spots]
    node_spots = insight.node_spots
    for node, cost in plan.timeline.runs:
        row, phase = places[node_spots[node]]
        row.compute[phase] += plan.timeline.costs[cost].seconds * times(node)
    for boxing, crossing in zip(plan.boxing_list, insight.crossings, strict=True):
        row, phase = places[boxing_spot(plan, crossing.made_in, crossing.used_in)]
        row.boxing[phase] += boxing.seconds * boxing.times
        row.boxing_bytes += boxing.bytes * boxing.times
        row.boxings.append(boxing)
        row.exposed_seconds += exposed.get(boxing.id, 0.0)
    for leaf, kind, layer in zip(plan.inputs, insight.argument_kinds, insight.argument_layers, strict=True):
        if kind in ("parameters", "optimizer state"):
            of[layer].kept_bytes += local_bytes(leaf.shape, leaf.dtype, leaf.signature, plan.placement)
    for held in insight.at_peak:
        of[held.layer].peak_bytes += held.bytes
    for k, decision in enumerate(insight.decisions):
        for row in {id(r): r for r in (places[s][0] for s, _ in decision.spots)}.values():
            row.decisions.append(k)


def boxing_spot(plan: PlanData, made_in: int, used_in: int) -> int:
    """Where a boxing counts: in the layer that makes its value; in the phase that needs it."""
    spots = plan.insight.spots
    made, used = spots[made_in], spots[used_in]
    if made.phase == used.phase:
        return made_in
    same = [k for k, s in enumerate(spots) if s.layer == made.layer and s.phase == used.phase]
    return same[0] if same else made_in


def _activations(plan: PlanData, row: Row) -> list[Activation]:
    """What the matrix products of a layer make going forward, in order; else the largest value it makes."""
    spots = plan.insight.spots
    mine = set(row.layers)
    forward = [
        d
        for d in (plan.insight.decisions[k] for k in row.decisions)
        if not d.name and d.shape and any(spots[s].layer in mine and spots[s].phase == "forward" for s, _ in d.spots)
    ]
    products = [d for d in forward if d.op.startswith(_MATRICES)]
    chosen: Sequence[Decision] = products or sorted(forward, key=lambda d: -math.prod(d.shape))[:1]
    found = {(d.shape, d.signature): Activation(d.shape, d.dtype, d.signature, d.op, d.source) for d in chosen}
    return list(found.values())
