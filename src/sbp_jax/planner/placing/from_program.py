"""A traced program as a graph of ops: seconds by the library's cost model, on every device as if it were alone."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import PlanError
from ...rules import Factors
from ...rules.widen import B, Strategy
from ...signature import ReduceOp
from ...trace import Op, Program, Structured, Value
from ..costs.op_cost import CostModel
from ..graph.clusters import OpCluster, factor_maps, free_values
from ..graph.fusion import Fusion, fusion
from ..graph.partials import partial_kinds
from .coarsen import coarsened
from .devices import Devices
from .graph import OpGraph, Tensor

Step = Op | Structured


@dataclass(frozen=True, eq=False)
class Placeable:
    """A program's graph, and what its ops are.

    Attributes:
        graph: what is placed.
        steps: by op the parts of the program that it runs, in order; loops and conditionals are whole.
        free: parts that cost nothing (constants, broadcasts): made by every device that reads them.
    """

    graph: OpGraph
    steps: tuple[tuple[Step, ...], ...]
    free: tuple[Op, ...]

    @functools.cached_property
    def makers(self) -> dict[int, Op]:
        """The free parts by what they make."""
        return {v.id: op for op in self.free for v in op.outs}


def results_of(step: Step) -> tuple[Value, ...]:
    """The values that a part of a program makes."""
    return step.outs if isinstance(step, Op) else tuple(v for link in step.links for v in link.outs)


def sources(values: Iterable[Value], makers: Mapping[int, Op]) -> list[int]:
    """The ids of what values are made of, through free parts: arguments, and what steps make. Ascending."""
    found, seen, queue = set[int](), set[int](), list(values)
    while queue:
        x = queue.pop()
        if x.id not in seen:
            seen.add(x.id)
            if x.id in makers:
                queue += makers[x.id].reads
            else:
                found.add(x.id)
    return sorted(found)


@dataclass(frozen=True, eq=False)
class Steps:
    """The parts of a program that take time, and those that do not.

    Attributes:
        steps: ops, loops and conditionals, in the program's order.
        free: what costs nothing (constants, broadcasts).
        factors: by node of the program what can be cut.
        kinds: by value id the reductions that it can be a term of.
        seconds: (steps, devices), of one run of the program.
        fused: ids of values that never reach memory.
        scratch_bytes: (steps,), what loops and conditionals hold for themselves.
    """

    steps: tuple[Step, ...]
    free: tuple[Op, ...]
    factors: list[Factors]
    kinds: Mapping[int, set[ReduceOp]]
    seconds: np.ndarray
    fused: set[int]
    scratch_bytes: np.ndarray

    @functools.cached_property
    def makers(self) -> dict[int, Op]:
        """The free parts by what they make."""
        return {v.id: op for op in self.free for v in op.outs}


def steps_of(program: Program, devices: Devices, where: Mapping[int, int] | None = None) -> Steps:
    """A program's parts, with the seconds of each on each device.

    ``where``: by ``id`` of a step the one device that it can run on; no kernel spans two devices. ``PlanError`` for ops
    with effects.
    """
    for op in program.nodes:
        if op.runs_once or op.has_effect:
            raise PlanError(f"{op.name} has an effect or runs on the host: it has no place among devices; leave it out")
    factors = factor_maps(program)
    kinds = partial_kinds(program, factors)
    free = free_values(program, factors, kinds)
    found = fusion(program, factors, {op.index: op.index for op in program.nodes})
    is_free = [isinstance(x, Op) and bool(x.outs) and all(v.id in free for v in x.outs) for x in program.graph.ops]
    steps = tuple(x for x, no in zip(program.graph.ops, is_free, strict=True) if not no)
    left = tuple(x for x, yes in zip(program.graph.ops, is_free, strict=True) if yes and isinstance(x, Op))
    if where is not None:
        _end_at_devices(found, steps, where)
    costs = _Costs(program, factors, found.fused, found.reads)
    seconds = np.array([[costs.seconds(step, m) for m in _models(devices)] for step in steps]).reshape(-1, len(devices))
    if where is not None:
        elsewhere = np.array([where[id(step)] for step in steps], int)[:, None] != np.arange(len(devices))
        seconds = np.where(elsewhere, np.inf, seconds)
    scratch = np.array([costs.scratch_bytes(step) for step in steps], float)
    return Steps(steps, left, factors, kinds, seconds, found.fused, scratch)


def placeable(
    program: Program, devices: Devices, most: int, where: Mapping[int, int] | None = None
) -> Placeable:  # fmt: skip
    """The graph of a program, ops merged until at most ``most`` are left (``coarsen.py``).

    Ops that JAX's compiler fuses are one op. Arguments lie where they are read. ``where``: see ``steps_of``.
    ``PlanError`` for ops with effects.
    """
    found = steps_of(program, devices, where)
    steps, makers = found.steps, found.makers
    maker = {v.id: k for k, step in enumerate(steps) for v in results_of(step)}
    arguments = {op.outs[0].id: op.outs[0] for op in program.input_ops}
    values = {v.id: v for step in steps for v in results_of(step)} | arguments
    readers: dict[int, set[int]] = {i: set() for i in values}
    for k, step in enumerate(steps):
        for i in sources(step.reads, makers):
            if i in readers and maker.get(i) != k:
                readers[i].add(k)
    results = set(sources([x for op in program.output_ops for x in op.ins if isinstance(x, Value)], makers))
    tensors, together = [], []
    for i, v in values.items():
        if readers[i] or (i in results and i in maker):
            if i in found.fused:
                together.append(len(tensors))
            tensors.append(
                Tensor(maker.get(i, -1), v.size_bytes, tuple(sorted(readers[i])), i in results and i in maker)
            )
    each = tuple((k,) for k in range(len(steps)))
    graph = OpGraph(tuple(_names(steps)), found.seconds, tuple(tensors), found.scratch_bytes, each)
    graph = coarsened(graph, most, together)
    kept = tuple(tuple(steps[k] for k in members) for members in graph.members)
    return Placeable(graph, kept, found.free)


def _end_at_devices(found: Fusion, steps: Sequence[Step], where: Mapping[int, int]) -> None:
    """What another device reads is written, and read there."""
    maker = {v.id: where[id(step)] for step in steps for v in results_of(step)}
    for step in steps:
        for v in step.reads:
            if v.id in found.fused and maker.get(v.id, where[id(step)]) != where[id(step)]:
                found.fused.discard(v.id)
                if isinstance(step, Op):
                    found.reads[step.index, v.id] = 1


def _models(devices: Devices) -> list[CostModel]:
    return [CostModel(kind, (1,)) for kind in devices.kinds]


def _names(steps: Sequence[Step]) -> list[str]:
    count: dict[str, int] = {}
    found = []
    for step in steps:
        name = step.name if isinstance(step, Op) else step.kind
        count[name] = count.get(name, 0) + 1
        found.append(f"{name} {count[name]}")
    return found


class _Costs:
    def __init__(
        self, program: Program, factors: list[Factors], fused: set[int], reads: Mapping[tuple[int, int], int]
    ) -> None:
        self.program, self.factors, self.fused, self.reads = program, factors, fused, reads

    def seconds(self, step: Step, model: CostModel) -> float:
        """Of one run: a loop's iterations counted, of a conditional the branch that takes longest."""
        if isinstance(step, Op):
            return self._node(step, model)
        bodies = [sum(self._node(op, model) for op in body.nodes()) for body in step.bodies]
        links = sum(self._node(op, model) for op in step.links)
        return links + (max(bodies) if step.kind == "cond" else sum(bodies))

    def scratch_bytes(self, step: Step) -> float:
        """What a loop or a conditional holds for itself: its largest body's values, each once."""
        if isinstance(step, Op):
            return 0.0
        sizes = [
            sum(v.size_bytes for op in body.nodes() for v in op.outs if v.id not in self.fused) for body in step.bodies
        ]
        return float(max(sizes, default=0.0))

    def _node(self, op: Op, model: CostModel) -> float:
        if op.primitive is None:
            return 0.0
        ins = list({x.id: x for x in op.reads}.values())
        in_memory = (
            *(self.reads.get((op.index, v.id), 0) for v in ins),
            *(int(v.id not in self.fused) for v in op.outs),
        )
        way = Strategy(((B,),) * len(ins), ((B,),) * len(op.outs), 1.0)
        times = op.outs[0].times if op.outs else (ins[0].times if ins else 1.0)
        one = OpCluster(op.index, [op], ins, list(op.outs), (way,), (), self.factors[op.index].flops, times)
        return times * model.compute_seconds(replace(one, in_memory=in_memory), way)
