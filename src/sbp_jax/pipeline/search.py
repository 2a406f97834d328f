"""``stages="auto"``: how many stages, which layers each, on how many devices.

After Alpa (arXiv 2201.12023, section 5): the forward pass is clustered into layers; for each size of a stage's devices
the planner plans the whole step once, which gives the seconds and bytes of each layer there; a dynamic program finds
the ranges of layers and their devices with the least seconds of a step, the traffic between stages included. Alpa plans
every range of layers by itself; here the seconds of a range are those of its layers, and only the stages that are
chosen are planned by themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..placement import Placement
from ..plan import PlanData
from ..planner import Request
from ..schedules import Schedule, by_name
from .case import Case, Cases
from .items import Items, Spread
from .options import Pipeline
from .phases import assign
from .stage_plan import plan_stage
from .stage_program import StageProgram, flows, stage_program
from .stages import InFlight, StageCosts, Submesh, in_flight_of, plan_stages, submesh_options
from .stages import assign as assign_devices
from .times import resident, spent

# So many layers are enough to share out, for each device of a small placement and in all.
_LAYERS_A_DEVICE, _MOST_LAYERS = 4, 32
# Schedules with one stage a group of devices, whose groups may be unlike.
_UNLIKE = {"1f1b", "eager_1f1b", "gpipe", "zb_h1"}


@dataclass(frozen=True, slots=True)
class Found:
    """The stages chosen: the step as it is cut, of each forward op, by number, its stage; their devices; the schedule;
    how good it is."""

    case: Case
    stage_of: dict[int, int]
    places: list[Placement]
    schedule: Schedule
    note: str


def search_stages(
    cases: Cases, options: Pipeline, where: Placement, request_on: Callable[[Placement], Request]
) -> Found | None:
    """The best stages for a schedule; None for one that wants all groups of devices alike.

    Raises:
        PlanError: no stages fit into the devices' memory.
    """
    if options.schedule not in _UNLIKE:
        return None
    request = replace(request_on(where), pins={}, memory_limit_bytes=None)
    limit = request_on(where).memory_limit_bytes
    nodes, per_node = _nodes(where, request)
    meshes = [
        m for m in submesh_options(nodes, per_node) if m.nodes == 1 or not m.nodes & (m.nodes - 1) or m.nodes == nodes
    ]
    case = cases.whole
    cut, forward = case.parts, case.forward
    items = Items(cases)
    layers, count = items.layers(max(1, min(len(items.unit), _LAYERS_A_DEVICE * where.size, _MOST_LAYERS)))
    whole = assign(cut, dict.fromkeys(forward, 0), 1, case.backward)
    source = stage_program(whole, 0, flows(whole))
    spread = Spread(items, layers, count, case)
    tables = []
    for mesh in meshes:
        there = _placement(mesh, where, range(mesh.devices))
        plan = plan_stage(source, replace(there, is_abstract=True), request, {}, f"a stage on {mesh}")
        tables.append(_of_layers(spread, source, plan))
    costs = _costs(tables, _transfers(items, layers, count, request, where))
    found = plan_stages(
        costs, meshes, where.size, cut.count, limit_bytes=limit, in_flight=_in_flight(options.schedule),
    )  # fmt: skip
    taken = [meshes[o] for o in found.options]
    ranks = assign_devices(taken, nodes, per_node)
    places = [_placement(mesh, where, own) for mesh, own in zip(taken, ranks, strict=True)]
    stages = [next(s for s, (a, b) in enumerate(found.ranges) if a <= layer < b) for layer in layers]
    note = (
        f"stages chosen among ranges of {count} layers on {', '.join(map(str, meshes))} devices: "
        f"{', '.join(found.labels)}; {found.note} by the sums of layers' seconds"
    )
    chosen, stage_of = items.in_stages(stages)
    return Found(chosen, stage_of, places, by_name(options.schedule, len(places), cut.count), note)


def _nodes(where: Placement, request: Request) -> tuple[int, int]:
    """(nodes, devices of each) of a placement on its hardware."""
    inner = request.cluster.levels[0].devices
    per_node = where.size if inner is None else min(inner, where.size)
    if where.size % per_node:
        return 1, where.size
    return where.size // per_node, per_node


def _placement(mesh: Submesh, where: Placement, own: Sequence[int]) -> Placement:
    """A stage's devices, by their positions in the whole placement: nodes by devices, or one axis within a node."""
    ranks = tuple(where.flat_ranks[k] for k in own)
    inner = where.axis_names[-1]
    if mesh.nodes == 1:
        return replace(where, shape=(mesh.devices,), flat_ranks=ranks, axis_names=(inner,))
    outer = next(n for n in (*where.axis_names[:-1], "nodes") if n != inner)
    return replace(where, shape=(mesh.nodes, mesh.devices_per_node), flat_ranks=ranks, axis_names=(outer, inner))


def _of_layers(spread: Spread, source: StageProgram, plan: PlanData) -> np.ndarray:
    """By layer: seconds of a micro-batch, seconds once, bytes kept, bytes of a micro-batch in flight."""
    layered, count = spread.phases, spread.count
    table = np.zeros((4, count))
    cut = layered.cut
    for item in spent(layered, source, plan):
        on = spread.of_node(item.node, item.stage)
        if item.part == "once":
            table[1] += item.seconds * on
        else:
            table[0] += item.seconds / cut.count * on
        table[3] += item.held_bytes * on
    for argument, node, held in resident(source, plan):
        table[2] += held * (spread.of_argument(argument) if argument >= 0 else spread.of_node(node))
    return table


def _transfers(items: Items, layers: Sequence[int], count: int, request: Request, where: Placement) -> np.ndarray:
    """Before every layer the seconds to send what crosses there, and its gradient back, were it one device's."""
    found = np.zeros(count)
    for k in range(1, len(layers)):
        if layers[k] != layers[k - 1] and where.size > 1:
            sent = float(items.crossing[k - 1])
            found[layers[k]] = 2 * request.cluster.collective_seconds("permute", sent, (where.size,), (0,))
    return found


def _costs(tables: Sequence[np.ndarray], transfers: np.ndarray) -> StageCosts:
    """The costs of every range of layers, from those of the layers."""
    sums = np.stack([np.concatenate((np.zeros((4, 1)), np.cumsum(t, axis=1)), axis=1) for t in tables], axis=-1)
    n = len(transfers)
    ranges = np.maximum(sums[:, None, :, :] - sums[:, :n, None, :], 0.0)
    return StageCosts(ranges[0], transfers, ranges[1], ranges[2], ranges[3])


def _in_flight(schedule: str) -> InFlight:
    # ZB-H1 holds what 1F1B does (arXiv 2401.10241).
    return in_flight_of("1f1b" if schedule == "zb_h1" else schedule)
