"""What a device holds over a step: the peak of a plan, and the peak as costs that the search can weigh.

A value is held from where it is made to its last use; what a loop reads is held through the loop; arguments that
are not donated, and results, are held to the end. Values that only run through a chain of element-wise ops are
fused by XLA and never held. Temporary buffers of boxing are not counted, copies that several consumers share are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..rules.widen import Code
from ..trace import Graph, Op, Program, Structured, Value
from .cells import Folded
from .cost import CostModel
from .problem import Problem


@dataclass(frozen=True, slots=True)
class Held:
    """One value that takes memory, from position ``start`` to ``end`` of the program's nodes."""

    value: Value
    start: int
    end: int


def held_values(program: Program, folded: Folded) -> list[Held]:
    """Every value that takes memory, with its life."""
    last = len(program.nodes) - 1
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    values: dict[int, Value] = {}

    def make(v: Value, at: int) -> None:
        values[v.id] = v
        start[v.id] = min(start.get(v.id, at), at)
        end[v.id] = max(end.get(v.id, at), at)

    def use(x: object, at: int) -> None:
        if isinstance(x, Value):
            for i in folded.leaves.get(x.id, (x.id,)):  # what is fused is made again from what is not
                end[i] = max(end.get(i, at), at)

    def walk(graph: Graph) -> None:
        for op in graph.ops:
            if isinstance(op, Op):
                for v in op.outs:
                    make(v, op.index)
                for x in op.ins:
                    use(x, op.index)
                continue
            first, final = _span(op)
            for link in op.links:
                for v in link.outs:
                    make(v, first)
                    use(v, final)
                for x in link.ins:
                    use(x, final)
            for body in op.bodies:
                walk(body)

    donated = {i for i, _ in program.donated}
    for i, op in enumerate(program.input_ops):
        make(op.outs[0], op.index)
        if i not in donated:
            use(op.outs[0], last)
    walk(program.graph)
    for op in program.output_ops:
        use(op.ins[0], last)
    nowhere = folded.free | folded.fused
    return [Held(v, start[i], end[i]) for i, v in values.items() if i not in nowhere and v.shape]


def _span(op: Structured) -> tuple[int, int]:
    indices = [link.index for link in op.links]
    for body in op.bodies:
        indices += [n.index for n in body.nodes()]
    return min(indices), max(indices)


def profile(held: Sequence[Held], codes: dict[int, list[Code]], model: CostModel, n_nodes: int) -> np.ndarray:
    """Bytes a device holds at each node, given the codes in which each value exists (made, and boxed for many)."""
    change = np.zeros(n_nodes + 1)
    for h in held:
        size = sum(model.local_bytes(h.value, c) for c in codes.get(h.value.id, ()))
        change[h.start] += size
        change[h.end + 1] -= size
    return np.cumsum(change[:-1])


class Footprint:
    """What choices hold, as tables: the bytes over the program's nodes of any choice without spelling out its plan."""

    def __init__(
        self, problem: Problem, held: Sequence[Held], folded: Folded, groups: Sequence[int], model: CostModel,
        n_nodes: int,
    ) -> None:  # fmt: skip
        self.problem, self.n_nodes = problem, n_nodes
        hub_of = {key: hub for hub, key in problem.hub_source.items()}
        # Where a value comes from: its class, and which of the results there, or which of the values inside it.
        places = {v.id: (groups[c.index], "result", k) for c in folded.cells for k, v in enumerate(c.outs)}
        for cell in folded.cells:
            inner = [v for op in cell.ops for v in op.outs] if cell.root is not None else []
            for k, v in enumerate(inner):
                places.setdefault(v.id, (groups[cell.index], "inside", k))
        kinds: dict[tuple[int, str, int], int] = {}
        known = [(kinds.setdefault(places[h.value.id], len(kinds)), h) for h in held if h.value.id in places]
        self.kind = np.array([kind for kind, _ in known], np.int64)
        self.start, self.end = np.array([(h.start, h.end) for _, h in known], np.int64).reshape(-1, 2).T
        # Of each kind of value: its class, bytes by the choice there; its hub, bytes of the copy by both choices.
        self.makers: list[tuple[int, np.ndarray, int | None, np.ndarray]] = []
        for group, side, k in kinds:
            cell = problem.representative[group]
            if side == "result":
                value, made = cell.outs[k], [s.outs[k] for s in cell.strategies]
            else:
                value = [v for op in cell.ops for v in op.outs][k]
                made = [cell.follow(s.ins[0])(value) or () for s in cell.strategies]
            own = np.array([model.local_bytes(value, c) for c in made])
            hub = hub_of.get((group, k)) if side == "result" else None
            codes = problem.codes[hub] if hub is not None else ()
            copies = np.array([[0.0 if m == c else model.local_bytes(value, c) for c in codes] for m in made])
            self.makers.append((group, own, hub, copies))

    def over_time(self, choice: Sequence[int]) -> np.ndarray:
        """Bytes a device holds at each node."""
        sizes = np.array([
            own[choice[group]] + (copies[choice[group], choice[hub]] if hub is not None else 0.0)
            for group, own, hub, copies in self.makers
        ])  # fmt: skip
        change = np.zeros(self.n_nodes + 1)
        if len(self.kind):
            np.add.at(change, self.start, sizes[self.kind])
            np.add.at(change, self.end + 1, -sizes[self.kind])
        return np.rint(np.cumsum(change[:-1]))  # bytes are whole; sums of large ones are not quite

    def at(self, point: int) -> Problem:
        """A problem whose total is the bytes held at one node instead of seconds: same nodes, same choices."""
        base = self.problem
        nodes = [np.zeros(len(c)) for c in base.nodes]
        result = Problem(nodes, {}, base.n_classes, base.representative, base.count)
        alive = self.kind[(self.start <= point) & (point <= self.end)]
        for kind, n in enumerate(np.bincount(alive, minlength=len(self.makers))):
            if n:
                group, own, hub, copies = self.makers[kind]
                result.nodes[group] = result.nodes[group] + n * own
                if hub is not None:
                    result.connect(group, hub, n * copies)
        return result


def penalised(problem: Problem, weights: Sequence[tuple[float, Problem]]) -> Problem:
    """Seconds plus weighted bytes."""
    nodes = [c.copy() for c in problem.nodes]
    total = Problem(
        nodes, dict(problem.edges), problem.n_classes, problem.representative, problem.count, problem.codes,
        problem.hub_source,
    )  # fmt: skip
    for price, bytes_at in weights:
        if price:
            total.nodes = [a + price * b for a, b in zip(total.nodes, bytes_at.nodes, strict=True)]
            for (a, b), m in bytes_at.edges.items():
                total.connect(a, b, price * m)
    return total
