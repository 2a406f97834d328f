"""What a device holds over a step, for any choice: arguments, gradients, optimizer state, activations, boxed copies.

A value in memory takes its piece's bytes from where it is made to its last reader (``liveness.py``). Where it is boxed,
source and copy are held together at that moment: a copy smaller than its source is made at once, which frees the
source; a larger one when it is first read, as is a slice for a loop. Several readers share the copy that the hub of the
value stands for; what one of them needs beyond that is held for it alone. Arguments are held over the step,
replacements of donated ones are written in their place; results that replace nothing are held to the end.

All of it is tables by choice, or by two choices, each with where it counts: the search weighs them at any point,
and the plan that is chosen is measured by the same tables.
"""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from ...paths import named
from ...trace import user_line
from ..costs.assemble import Decisions
from ..costs.cost_graph import CostGraph
from .liveness import Liveness, lifetimes
from .protocol import MemoryTable
from .tables import Table, Tables


class Footprint:
    """The bytes over the program's nodes of any choice, without spelling out its plan."""

    def __init__(
        self, decisions: Decisions, graph: CostGraph, known: Liveness | None = None, is_ample: bool = False
    ) -> None:
        """``known``: when the program's values are held, where another footprint of it has found that.

        ``is_ample``: the first plan that is looked at will fit, so no other's bytes may be asked for.
        """
        self.program = decisions.program
        self.n_nodes = len(self.program.nodes)
        self.n_choices = [len(c) for c in graph.nodes]
        clustering, device = decisions.clustering, decisions.model.hardware.device.name
        self.liveness = known or lifetimes(self.program, clustering.factors, clustering.free, device)
        self._decisions = decisions
        self._is_ample = is_ample
        self._first: tuple[tuple[int, ...], _Instances] | None = None

    @functools.cached_property
    def _all(self) -> "_Instances":
        return _Instances(list(Tables(self._decisions, self.liveness).run()))

    @property
    def tables(self) -> list[Table]:
        """The bytes of all choices."""
        return self._all.tables

    def _instances(self, choice: Sequence[int]) -> "tuple[_Instances, Sequence[int]]":
        """Tables that know of a choice, and its numbers there: the first plan's own, where that will do."""
        if self._is_ample and "_all" not in self.__dict__:
            asked = tuple(map(int, choice))
            if self._first is None:
                self._first = asked, _Instances(list(Tables(self._decisions, self.liveness, asked).run()))
            first, known = self._first
            if first == asked:
                return known, [0] * len(asked)
        return self._all, choice

    def sizes(self, choice: Sequence[int]) -> np.ndarray:
        """Bytes of one instance of each table."""
        return self._all.sizes(choice)

    def over_time(self, choice: Sequence[int]) -> np.ndarray:
        """Bytes a device holds at each node."""
        known, numbers = self._instances(choice)
        return self._over_time(known, known.sizes(numbers)[known.table])

    @property
    def value_ids(self) -> list[int]:
        """By instance of a table, the value that it is of."""
        return [v.id for t in self.tables for v in t.values]

    def of_two(self, one: Sequence[int], other: Sequence[int], is_one: np.ndarray) -> np.ndarray:
        """Bytes at each node where some instances are held as by one choice, the rest as by another. What hangs on two
        decisions, of which one may be of the other choice, is only nearly right."""
        table = self._all.table
        return self._over_time(self._all, np.where(is_one, self.sizes(one)[table], self.sizes(other)[table]))

    def _over_time(self, known: "_Instances", sizes: np.ndarray) -> np.ndarray:
        change = np.zeros(self.n_nodes + 1)
        if len(sizes):
            np.add.at(change, known.start, sizes)
            np.add.at(change, known.end + 1, -sizes)
        return np.rint(np.cumsum(change[:-1]))  # bytes are whole; sums of large ones are not quite

    def at(self, point: int) -> CostGraph:
        """A graph whose total is the bytes held at one node instead of seconds: same nodes, same choices."""
        result = CostGraph([np.zeros(n) for n in self.n_choices], {})
        alive = self._all.table[(self._all.start <= point) & (point <= self._all.end)]
        for k, n in enumerate(np.bincount(alive, minlength=len(self.tables)).tolist()):
            t = self.tables[k]
            if n and t.b < 0:
                result.nodes[t.a] = result.nodes[t.a] + n * t.factor * t.parts
            elif n:
                result.connect(t.a, t.b, n * t.factor * t.parts)
        return result

    def by_interval(self) -> Iterator[MemoryTable]:
        """All bytes, by where in the step they are held."""
        for t in self.tables:
            held = t.factor * t.parts
            for start, end in zip(t.start, t.end, strict=True):
                yield MemoryTable(t.a, t.b, held, start, end + 1)

    def held(self, choice: Sequence[int], point: int) -> list[tuple[str, float]]:
        """What is held at one node, in words, and its bytes."""
        made = {v.id: op for op in self.program.nodes for v in op.outs}
        known, numbers = self._instances(choice)
        found = []
        for size, t in zip(known.sizes(numbers).tolist(), known.tables, strict=True):
            for v, start, end in zip(t.values, t.start, t.end, strict=True) if size else ():
                if start <= point <= end:
                    op = made[v.id]
                    line = user_line(op.info)
                    words = (
                        named(op.label, self.program.argument_names)
                        or f"{op.name.removeprefix('sbp.')} {v.dtype}{f' [{line}]' if line else ''}"
                    )
                    found.append((f"{t.words}{words}", size))
        return found


class _Instances:
    """Tables with the instances of all of them in a row: of which table, from which node to which."""

    def __init__(self, tables: list[Table]) -> None:
        self.tables = tables
        self.table = np.repeat(np.arange(len(tables)), [len(t.start) for t in tables])
        self.start = np.array([x for t in tables for x in t.start], np.int64)
        self.end = np.array([x for t in tables for x in t.end], np.int64)

    def sizes(self, choice: Sequence[int]) -> np.ndarray:
        """Bytes of one instance of each table."""
        return np.array([
            t.factor * (t.parts[choice[t.a]] if t.b < 0 else t.parts[choice[t.a], choice[t.b]]) for t in self.tables
        ])  # fmt: skip
