"""A plan by layer: layers alike in all that is shown share a row, with what they hold split how, compute and send."""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..paths import fold_layers, plain
from ..plan import Boxing, Leaf, PlanData
from ..plan.insight import PHASES, Decision
from ..signature import Signature
from .units import local_bytes

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
    """Layers alike together. Seconds, bytes and counts are a step's, on one device, of all of them.

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
        """``blocks/0..95 x96``."""
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
    for leaf, name, kind, layer in zip(
        plan.inputs, plain([x.path for x in plan.inputs]), insight.argument_kinds, insight.argument_layers, strict=True
    ):
        if kind == "parameters":
            leaves.setdefault(layer, []).append(replace(leaf, path=plan.called(name)))
    order: dict[str, None] = {}
    start = len(plan.inputs)
    for spot in dict.fromkeys(insight.node_spots[start:]):
        order[insight.spots[spot].layer] = None
    order.update((s.layer, None) for s in insight.spots)
    makes = _activations(plan)
    alike: dict[object, list[str]] = {}
    for layer in order:
        own = tuple((leaf_name(x), x.shape, x.dtype, x.signature) for x in leaves.get(layer, ()))
        made = tuple((a.shape, a.signature) for a in makes.get(layer, ()))
        alike.setdefault((own, made, layer if layer.startswith("(") else ""), []).append(layer)
    of: dict[str, Row] = {}
    for some in alike.values():
        for name, members in fold_layers(some).items():
            row = Row(name, members, leaves.get(members[0], []), makes.get(members[0], []))
            of.update(dict.fromkeys(members, row))
    found = list({id(row): row for row in (of[layer] for layer in order)}.values())
    _account(plan, of, exposed or {})
    return [r for r in found if r.parameters or r.boxings or r.compute_seconds or r.boxing_seconds or r.peak_bytes]


def shown_names(plan: PlanData) -> dict[str, str]:
    """Each layer's name as reports show it: that of its row, ``blocks/0..11`` where several alike are one."""
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


def _activations(plan: PlanData) -> dict[str, list[Activation]]:
    """What the matrix products of each layer make going forward, in order; else the largest value it makes."""
    spots = plan.insight.spots
    forward: dict[str, list[Decision]] = {}
    for d in plan.insight.decisions:
        if not d.name and d.shape:
            for layer in dict.fromkeys(spots[s].layer for s, _ in d.spots if spots[s].phase == "forward"):
                forward.setdefault(layer, []).append(d)
    made: dict[str, list[Activation]] = {}
    for layer, some in forward.items():
        products = [d for d in some if d.op.startswith(_MATRICES)]
        chosen: Sequence[Decision] = products or sorted(some, key=lambda d: -math.prod(d.shape))[:1]
        found = {(d.shape, d.signature): Activation(d.shape, d.dtype, d.signature, d.op, d.source) for d in chosen}
        made[layer] = list(found.values())
    return made


def leaf_name(leaf: Leaf) -> str:
    """The last part of a parameter's path."""
    return leaf.path.rpartition("/")[2]
