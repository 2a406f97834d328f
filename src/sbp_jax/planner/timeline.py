"""When things happen: the positions of values in loops, the nodes that cost time, the bytes held, as plan data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..rules.widen import Strategy
from ..timeline import Cost, Loop, Timeline
from ..trace import Graph, Op, Program, Structured, user_line
from .cells import Cell, Folded
from .cost import CostModel

# A label names at most so many primitives of a fused chain.
_NAMES = 4


@dataclass(frozen=True, slots=True)
class _Place:
    """A structured op's nodes, and the values that live directly in its bodies."""

    first: int
    last: int
    inner: frozenset[int]


class Positions:
    """Where in the order of nodes a value is there, and where it is needed; and in which loop it lives."""

    def __init__(self, program: Program) -> None:
        self.loops: list[Loop] = []
        self._loop_of: dict[int, int] = {}
        self._place: dict[int, _Place] = {}
        for op in program.input_ops:
            self._own(op.outs, -1)
        self._walk(program.graph, -1)

    def loop(self, value: int) -> int:
        """The index of the innermost loop a value lives in; -1 outside of all."""
        return self._loop_of.get(value, -1)

    def made(self, op: Op, value: int) -> int:
        """The node after which a result of ``op`` is there: for what a loop hands out, its last."""
        place = self._place.get(op.index)
        if place is None:
            return op.index
        return place.first if value in place.inner else place.last

    def needed(self, op: Op, value: int) -> int:
        """The node before which ``op`` needs an operand: for what a body hands to its loop, the one past its last."""
        place = self._place.get(op.index)
        if place is None:
            return op.index
        return place.last + 1 if value in place.inner else place.first

    def _own(self, values: Sequence[object], loop: int) -> None:
        for v in values:
            self._loop_of.setdefault(v.id, loop)  # pyright: ignore[reportAttributeAccessIssue]

    def _walk(self, graph: Graph, loop: int) -> None:
        self._own(graph.inputs, loop)
        for op in graph.ops:
            if isinstance(op, Op):
                self._own(op.outs, loop)
                continue
            if op.bodies:
                self._structured(op, graph, loop)
            for link in op.links:
                self._own(link.outs, loop)

    def _structured(self, op: Structured, graph: Graph, loop: int) -> None:
        indices = [n.index for body in op.bodies for n in body.nodes()] + [link.index for link in op.links]
        inner = {v.id for body in op.bodies for v in body.inputs}
        for body in op.bodies:
            for x in body.ops:
                inner.update(v.id for y in ([x] if isinstance(x, Op) else x.links) for v in y.outs)
        place = _Place(min(indices), max(indices), frozenset(inner))
        self._place.update((link.index, place) for link in op.links)
        within = loop
        if op.kind in ("scan", "while"):
            trips = op.bodies[-1].times / graph.times
            line = user_line(op.info)
            self.loops.append(Loop(place.first, place.last, trips, f"{op.kind} {line}".strip(), loop))
            within = len(self.loops) - 1
        for body in op.bodies:
            self._walk(body, within)


def timeline(
    program: Program, folded: Folded, groups: Sequence[int], chosen: Sequence[Strategy], model: CostModel,
    positions: Positions, memory: np.ndarray,
) -> Timeline:  # fmt: skip
    """The timeline of chosen strategies. Seconds are the hardware's, whatever ratio the search weighed them by."""
    model = replace(model, computation_ratio=None)
    by_group: dict[int, float] = {}
    costs: dict[Cost, int] = {}
    lines: dict[int, str] = {}
    runs: list[tuple[int, int]] = []
    for cell in folded.cells:
        if not cell.flops:
            continue
        way = chosen[cell.index]
        if groups[cell.index] not in by_group:
            by_group[groups[cell.index]] = model.compute_seconds(cell, way)
        cost = Cost(_label(cell, lines), by_group[groups[cell.index]], cell.flops * way.share)
        if cost.seconds:
            runs.append((cell.ops[0].index, costs.setdefault(cost, len(costs))))
    steps = np.flatnonzero(np.diff(memory, prepend=-1.0))
    return Timeline(
        tuple(costs), tuple(sorted(runs)), tuple(positions.loops), tuple((int(k), float(memory[k])) for k in steps)
    )


def _label(cell: Cell, lines: dict[int, str]) -> str:
    names = list(dict.fromkeys(op.name for op in cell.ops))
    text = "+".join(names[:_NAMES]) + ("+…" if len(names) > _NAMES else "")
    info = cell.ops[0].info
    traceback = id(getattr(info, "traceback", None))
    if traceback not in lines:
        lines[traceback] = user_line(info)
    return f"{text} {lines[traceback]}".strip()
