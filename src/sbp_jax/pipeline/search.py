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

from ..pieces import stored_shape
from ..placement import Placement
from ..plan import PlanData
from ..planner import Request
from ..rules import Factors
from ..schedules import Schedule, by_name
from . import cuts
from .microbatches import Microbatches, nodes_of
from .options import Pipeline
from .phases import Phases, assign
from .stage_local import loop_of
from .stage_plan import plan_stage
from .stage_program import StageProgram, flows, stage_program
from .stages import InFlight, StageCosts, Submesh, in_flight_of, plan_stages, submesh_options
from .stages import assign as assign_devices
from .times import Spent, spent

# So many layers are enough to share out, for each device of a small placement and in all.
_LAYERS_A_DEVICE, _MOST_LAYERS = 4, 32
# Schedules with one stage a group of devices, whose groups may be unlike.
_UNLIKE = {"1f1b", "eager_1f1b", "gpipe", "zb_h1"}


@dataclass(frozen=True, slots=True)
class Found:
    """The stages chosen: of each forward op, by number, its stage; their devices; the schedule; how good it is."""

    stage_of: dict[int, int]
    places: list[Placement]
    schedule: Schedule
    note: str


def search_stages(
    cut: Microbatches, factors: Sequence[Factors], forward: Sequence[int], backward: list[bool], options: Pipeline,
    where: Placement, request_on: Callable[[Placement], Request],
) -> Found | None:  # fmt: skip
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
    count = max(1, min(len(forward), _LAYERS_A_DEVICE * where.size, _MOST_LAYERS))
    layer_of, count = _layers(cut, factors, forward, count)
    whole = assign(cut, dict.fromkeys(forward, 0), 1, backward)
    layered = assign(cut, layer_of, count, backward)
    source = stage_program(whole, 0, flows(whole))
    tables = []
    for mesh in meshes:
        there = _placement(mesh, where, range(mesh.devices))
        plan = plan_stage(source, replace(there, is_abstract=True), request, {}, f"a stage on {mesh}")
        tables.append(_of_layers(layered, source, plan, count))
    costs = _costs(tables, _transfers(cut, forward, layer_of, count, request, where))
    found = plan_stages(
        costs, meshes, where.size, cut.count, limit_bytes=limit, in_flight=_in_flight(options.schedule),
    )  # fmt: skip
    taken = [meshes[o] for o in found.options]
    ranks = assign_devices(taken, nodes, per_node)
    places = [_placement(mesh, where, own) for mesh, own in zip(taken, ranks, strict=True)]
    stage_of = {k: next(s for s, (a, b) in enumerate(found.ranges) if a <= layer < b) for k, layer in layer_of.items()}
    note = (
        f"stages chosen among ranges of {count} layers on {', '.join(map(str, meshes))} devices: "
        f"{', '.join(found.labels)}; {found.note} by the sums of layers' seconds"
    )
    return Found(stage_of, places, by_name(options.schedule, len(places), cut.count), note)


def _layers(
    cut: Microbatches, factors: Sequence[Factors], forward: Sequence[int], count: int
) -> tuple[dict[int, int], int]:
    """By forward op its layer, and how many there are."""
    while True:
        found = cuts.even(cut, factors, forward, count)
        used = sorted(set(found.values()))
        if len(used) == count or count == 1:
            return {k: used.index(layer) for k, layer in found.items()}, len(used)
        count = len(used)


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


def _of_layers(layered: Phases, source: StageProgram, plan: PlanData, count: int) -> np.ndarray:
    """By layer: seconds of a micro-batch, seconds once, bytes kept, bytes of a micro-batch in flight."""
    table = np.zeros((4, count))
    cut = layered.cut
    shared: list[Spent] = []
    for item in spent(layered, source, plan):
        layer = item.stage
        if layer < 0:
            shared.append(item)
            continue
        if item.part == "once":
            table[1, layer] += item.seconds
        else:
            table[0, layer] += item.seconds / cut.count
        table[3, layer] += item.held_bytes
    table[1] += sum(x.seconds for x in shared) / count
    for port, leaf in zip(source.takes, plan.inputs, strict=True):
        if port.kind == "argument":
            table[2, layered.home.get(port.key, 0)] += _stored(leaf.shape, leaf.signature, plan, leaf.dtype)
    loop = loop_of(source.program)
    if loop is not None:
        unit_of = {n.index: k for k, u in enumerate(cut.units) for n in nodes_of(u)}
        units = [unit_of.get(o, -1) for o in source.origin]
        layer_of = [layered.stage[k] if k >= 0 else 0 for k in units]
        for op in loop.roles["carry"]:
            v = op.outs[1]
            layer = max((layer_of[n.index] for n in source.program.nodes if v in n.reads), default=0)
            signature = plan.strategies[plan.nodes[op.index]][1][1]
            table[2, max(layer, 0)] += _stored(v.shape, signature, plan, str(v.dtype))
    return table


def _stored(shape: Sequence[int], signature: object, plan: PlanData, dtype: str) -> float:
    try:
        itemsize = np.dtype(dtype).itemsize
    except TypeError:  # keys, and types of JAX's own
        itemsize = 2 if "16" in dtype else 1 if "8" in dtype else 8
    return float(np.prod(stored_shape(tuple(shape), signature, plan.placement.shape))) * itemsize  # pyright: ignore


def _transfers(
    cut: Microbatches, forward: Sequence[int], layer_of: dict[int, int], count: int, request: Request, where: Placement
) -> np.ndarray:
    """Before every layer the seconds to send what crosses there, and its gradient back, were it one device's."""
    between = cuts.crossing_bytes(cut, forward)
    found = np.zeros(count)
    for k in range(1, len(forward)):
        layer = layer_of[forward[k]]
        if layer != layer_of[forward[k - 1]] and where.size > 1:
            found[layer] = 2 * request.cluster.collective_seconds("permute", float(between[k - 1]), (where.size,), (0,))
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
