"""What a device holds over a step, for any choice: arguments, gradients, optimizer state, activations, boxed copies.

A value in memory takes its piece's bytes from where it is made to its last reader (``lives``). Where it is boxed,
source and copy are held together at that moment: a copy smaller than its source is made at once, which frees the
source; a larger one when it is first read. Several readers share the copy that the hub of the value stands for;
what one of them needs beyond that is held for it alone. Arguments are held over the step, replacements of donated
ones are written in their place; results that replace nothing are held to the end.

All of it is tables by choice, or by two choices, each with where it counts: the search weighs them at any point,
and the plan that is chosen is measured by the same tables.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..rules.widen import Code
from ..trace import Program, Value
from .cells import Cell, Folded
from .cost import CostModel
from .lives import Life, lives
from .problem import Problem

# By kind of processor, what random bits take while they are made, in results: XLA for CPUs makes them in a loop
# over copies of its state, compilers for accelerators in one kernel.
_RANDOM_BITS = {"cpu": 4.0}


@dataclass(slots=True)
class _Table:
    """Bytes by the choice at ``a`` (and at ``b``, where that is not -1), from ``start`` to ``end`` of each instance."""

    a: int
    b: int
    bytes: np.ndarray
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)


class Footprint:
    """The bytes over the program's nodes of any choice, without spelling out its plan."""

    def __init__(
        self, problem: Problem, program: Program, folded: Folded, groups: Sequence[int], model: CostModel,
    ) -> None:  # fmt: skip
        self.problem, self.program, self.model = problem, program, model
        self.n_nodes = len(program.nodes)
        found = lives(program, folded.factors)
        self.tables = list(_Tables(problem, program, folded, groups, model, found).run())
        counts = [len(t.start) for t in self.tables]
        self._table = np.repeat(np.arange(len(self.tables)), counts)
        self._start = np.array([x for t in self.tables for x in t.start], np.int64)
        self._end = np.array([x for t in self.tables for x in t.end], np.int64)

    def _sizes(self, choice: Sequence[int]) -> np.ndarray:
        return np.array([t.bytes[choice[t.a]] if t.b < 0 else t.bytes[choice[t.a], choice[t.b]] for t in self.tables])

    def over_time(self, choice: Sequence[int]) -> np.ndarray:
        """Bytes a device holds at each node."""
        change = np.zeros(self.n_nodes + 1)
        if len(self._table):
            sizes = self._sizes(choice)[self._table]
            np.add.at(change, self._start, sizes)
            np.add.at(change, self._end + 1, -sizes)
        return np.rint(np.cumsum(change[:-1]))  # bytes are whole; sums of large ones are not quite

    def at(self, point: int) -> Problem:
        """A problem whose total is the bytes held at one node instead of seconds: same nodes, same choices."""
        base = self.problem
        result = Problem([np.zeros(len(c)) for c in base.nodes], {}, base.n_classes, base.representative, base.count)
        alive = self._table[(self._start <= point) & (point <= self._end)]
        for k, n in enumerate(np.bincount(alive, minlength=len(self.tables)).tolist()):
            t = self.tables[k]
            if n and t.b < 0:
                result.nodes[t.a] = result.nodes[t.a] + n * t.bytes
            elif n:
                result.connect(t.a, t.b, n * t.bytes)
        return result

    def held(self, choice: Sequence[int], point: int) -> list[tuple[Value, float]]:
        """What is held at one node, and its bytes."""
        sizes = self._sizes(choice)
        return [
            (v, float(sizes[k]))
            for k, t in enumerate(self.tables)
            if sizes[k]
            for v, start, end in zip(t.values, t.start, t.end, strict=True)
            if start <= point <= end
        ]


class _Tables:
    """Builds the tables; equal ones, of values that share their decisions, are one."""

    def __init__(
        self, problem: Problem, program: Program, folded: Folded, groups: Sequence[int], model: CostModel,
        found: dict[int, Life],
    ) -> None:  # fmt: skip
        self.problem, self.program, self.folded, self.groups = problem, program, folded, groups
        self.model, self.lives = model, found
        self.hub_of = {key: hub for hub, key in problem.hub_source.items()}
        self.tables: dict[object, _Table | None] = {}
        self.loops = _RANDOM_BITS.get(model.cluster.device.name, 0.0)
        self.program_end = len(program.nodes)
        self.readers: dict[int, list[tuple[int, int, int]]] = {}
        for cell in folded.cells:
            for position, v in enumerate(cell.ins):
                self.readers.setdefault(v.id, []).append((groups[cell.index], position, cell.index))

    def run(self) -> Iterator[_Table]:
        """Every table that is not zero everywhere."""
        for cell in self.folded.cells:
            group = self.groups[cell.index]
            leaving = set()
            for k, v in enumerate(cell.outs):
                leaving.add(v.id)
                if v.shape:
                    self._result(cell, group, k, v)
            if cell.root is not None:
                inner = [v for op in cell.ops for v in op.outs]
                for k, v in enumerate(inner):
                    life = self.lives[v.id]
                    if v.id not in leaving and v.shape and not life.named and life.kept >= life.made:
                        self._add((group, "inside", k), group, -1, life.made, life.kept, v)
        yield from (t for t in self.tables.values() if t is not None)

    def _add(self, key: tuple[object, ...], a: int, b: int, start: int, end: int, v: Value) -> None:
        """One more instance of a table, which is computed the first time."""
        if end < start:
            return
        if key not in self.tables:
            table = self._bytes(key)
            self.tables[key] = _Table(a, b, table) if table.any() else None
        table = self.tables[key]
        if table is not None:
            table.start.append(start)
            table.end.append(end)
            table.values.append(v)

    def _result(self, cell: Cell, group: int, k: int, v: Value) -> None:
        life = self.lives[v.id]
        made, first, last, kept = life.made, max(life.first, life.made), life.last, life.kept
        if self.loops and cell.ops[0].name == "threefry2x32":
            self._add((group, "loop", k), group, -1, made, made, v)
        readers = self.readers.get(v.id, ())
        hub = self.hub_of.get((group, k))
        if not readers or (hub is None and group == readers[0][0]):
            if not (life.named or life.home):
                self._add((group, "own", k), group, -1, made, kept, v)
            return
        other, position = (hub, -1) if hub is not None else readers[0][:2]
        where = (group, k, other, position)
        if life.resident:
            self._add((group, "own", k), group, -1, made, kept, v)
            self._add((*where, "smaller"), group, other, first, last, v)
            self._add((*where, "larger"), group, other, first, last, v)
        else:
            if not (life.named or life.home):
                self._add((*where, "same"), group, other, made, kept, v)
            if not life.named:
                self._add((*where, "source of smaller"), group, other, made, made, v)
                self._add((*where, "source of larger"), group, other, made, first, v)
            if not life.home:
                self._add((*where, "smaller"), group, other, made, last, v)
                self._add((*where, "larger"), group, other, first, last, v)
        if hub is not None:
            self._more(group, k, hub, v, life)

    def _more(self, group: int, k: int, hub: int, v: Value, life: Life) -> None:
        """Copies beyond the hub's. Readers that want the same one share it, so each adds the time after the last."""
        found = []
        for reader, at, index in self.readers[v.id]:
            times = [life.reads[op.index] for op in self.folded.cells[index].ops if op.index in life.reads]
            found.append((max(b for _, b in times), min(a for a, _ in times), reader, at))
        before = self.program_end
        for until, t, reader, at in sorted(found):
            start = max(min(t, before + 1), life.made)
            self._add((group, k, hub, reader, at, "more"), hub, reader, start, until, v)
            before = until if before == self.program_end else max(before, until)

    def _bytes(self, key: tuple[object, ...]) -> np.ndarray:
        """The bytes that a key stands for."""
        p, size = self.problem, self.model.local_bytes
        if key[-1] == "more":
            group, k, hub, reader, at = key[:5]  # pyright: ignore
            v = p.representative[group].outs[k]
            wanted = [s.ins[at] for s in p.representative[reader].strategies]
            return np.array([[0.0 if a == b else size(v, b) for b in wanted] for a in p.codes[hub]])
        group = key[0]
        cell = p.representative[group]  # pyright: ignore
        if key[1] == "inside":
            v = [v for op in cell.ops for v in op.outs][key[2]]  # pyright: ignore
            return np.array([size(v, cell.follow(s.ins[0])(v) or ()) for s in cell.strategies])
        if key[1] in ("own", "loop"):
            v = cell.outs[key[2]]  # pyright: ignore
            return np.array([size(v, s.outs[key[2]]) for s in cell.strategies]) * (
                self.loops if key[1] == "loop" else 1.0
            )
        _, k, other, position, what = key
        v, made = cell.outs[k], [s.outs[k] for s in cell.strategies]  # pyright: ignore
        codes: Sequence[Code] = (
            p.codes[other] if position == -1 else [s.ins[position] for s in p.representative[other].strategies]  # pyright: ignore
        )
        own = np.array([size(v, c) for c in made])[:, None]
        copy = np.array([size(v, c) for c in codes])[None, :]
        same = np.array([[a == b for b in codes] for a in made])
        smaller = ~same & (copy <= own)
        larger = ~same & (copy > own)
        return {
            "same": same * own, "source of smaller": smaller * own, "source of larger": larger * own,
            "smaller": smaller * copy, "larger": larger * copy,
        }[str(what)]  # fmt: skip


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
