"""Donated arguments that something still reads when their replacements are there, and what keeps them from it.

XLA writes a replacement over its argument only if every kernel that reads the argument comes before it *by dependency*;
what order it will choose is not known yet when it decides (``CopyInsertion``, ``DependencyHloOrdering``). A weight's
gradient does not depend on the product that hands the cotangent on, which reads the weight, too: so XLA copies all
weights but the first layer's, and reads the copies. Where the gradient and that cotangent are passed through one
optimization barrier the replacement waits for the product, and nothing is copied (measured on CPUs, ``joined``).
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import or_

from .graph import Atom, Graph, Op, Program, Structured, Value
from .order import SMALL, is_kernel

Holds = Callable[[Op], bool]


@dataclass(frozen=True, slots=True)
class LateReads:
    """A donated argument, its replacement, and the reads of it that the replacement does not wait for.

    ``last``: the node of the last of them; ``kernels``: where they happen, by position among the graph's ops.
    """

    argument: Value
    replacement: Value
    last: int
    kernels: tuple[int, ...]


def late_reads(
    program: Program, is_kept: Holds, is_repeated: Holds, together: Mapping[int, tuple[Value, ...]]
) -> list[LateReads]:
    """What is read late, by argument.

    ``is_kept``: whether an op's results are written to memory; ``is_repeated``: whether readers compute it themselves.
    ``together``: by position, values that only go on when all of them are there (``joined``).
    Sets are integers here: of reads of arguments, and of the kernels that do the reading.
    """
    pairs = _pairs(program)
    number = {v.id: k for k, (v, _) in enumerate(pairs)}
    reads: list[tuple[int, int]] = []  # an argument by number, and the node
    readers: list[int] = []  # by read: the kernels
    inside: dict[int, int] = {}  # the reads that happen where a value is computed
    before: dict[int, int] = {}  # the kernels that a value waits for
    kernels: list[int] = []

    def read_by(op: Op) -> int:
        found = 0
        for x in op.reads:
            found |= inside.get(x.id, 0)
            if x.id in number:
                found |= 1 << len(reads)
                reads.append((number[x.id], op.index))
                readers.append(0)
        return found

    for position, op in enumerate(program.graph.ops):
        links = [op] if isinstance(op, Op) else op.links
        waits = 0
        for x in op.reads:
            waits |= before.get(x.id, 0)
        here = [read_by(link) for link in links]
        is_passed_on = not isinstance(op, Op) and op.kind == "barrier"
        if any(here) and not is_passed_on and (not isinstance(op, Op) or is_kept(op)):
            for found in here:
                for k in _members(found):
                    readers[k] |= 1 << len(kernels)
            waits |= 1 << len(kernels)
            kernels.append(position)
            if not isinstance(op, Op) or not is_repeated(op):
                here = [0] * len(here)
        for link, found in zip(links, here, strict=True):
            for v in link.outs:
                before[v.id], inside[v.id] = waits, found
        if values := together.get(position, ()):
            before.update(dict.fromkeys((v.id for v in values), functools.reduce(or_, (before[v.id] for v in values))))
    late: dict[int, tuple[int, int]] = {}
    for kernel, (k, at) in zip(readers, reads, strict=True):
        new = pairs[k][1]
        if isinstance(new, Value) and (missed := kernel & ~before.get(new.id, 0)):
            late[k] = at, late.get(k, (0, 0))[1] | missed
    return [
        LateReads(v, new, late[k][0], tuple(kernels[n] for n in _members(late[k][1])))
        for k, (v, new) in enumerate(pairs)
        if k in late and isinstance(new, Value) and new is not v
    ]


def joined(program: Program, is_free: Holds) -> dict[int, tuple[Value, ...]]:
    """By position among the graph's ops: values to pass through one barrier after it, for replacements' sake.

    One is what a replacement is made of, as large as its argument: a gradient. The others are what comes of the late
    readers, and is read after the barrier: a cotangent on its way to the layer before. Where there is no such value a
    barrier would hold what nobody needs, and where a gradient is larger than what it is made of it had better be made
    late: there the argument is copied, as arguments are that are small beside what they would wait for. ``is_free`` as
    in ``waits``.
    """
    late = late_reads(program, is_kernel, lambda op: False, {})
    found: dict[int, dict[int, Value]] = {}
    if late:
        wiring = _Wiring(program, is_free)
        for x in late:
            position, values = wiring.join(x)
            if values:
                found.setdefault(position, {}).update({v.id: v for v in values})
    return {position: tuple(values.values()) for position, values in found.items()}


@dataclass(frozen=True, slots=True)
class Arranged:
    """A program's graph with updates as early as they can be; by position, what is ``joined`` after it; the ids of the
    replacements that those make."""

    graph: Graph
    together: dict[int, tuple[Value, ...]]
    replacements: frozenset[int]


def arranged(program: Program, is_free: Holds) -> Arranged:
    """What only makes replacements runs as soon as what it reads is there, and no gradient is held until the end.

    Traced optimizers come last, and XLA may run them there, while the plan counts a gradient until its update can run.
    """
    together = joined(program, is_free)
    graph, is_update = program.graph, _updates(program)
    passed = {v.id: k for k, values in together.items() for v in values}
    there = {v.id: k for k, op in enumerate(graph.ops) if not is_update[k] for v in op.results} | passed
    runs: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    replaced = {new.id for _, new in _pairs(program) if isinstance(new, Value)}
    made: set[int] = set()
    for k, op in enumerate(graph.ops):
        if is_update[k]:
            at = runs[k] = max([there.get(x.id, -1) for x in op.reads], default=-1)
            there.update((v.id, max(at, passed.get(v.id, at))) for v in op.results)
            made.update(v.id for v in op.results if at >= 0 and v.shape)
            for x in op.reads:
                readers.setdefault(x.id, []).append(k)
    for k in sorted(runs, reverse=True):
        op = graph.ops[k]
        users = [u for v in op.results for u in readers.get(v.id, ())]
        is_wanted = any(v.id in replaced or v.id in passed for v in op.results)
        if runs[k] >= 0 and users and not is_wanted and len({x.id for x in op.reads}) == 1:
            runs[k] = max(runs[k], min(runs[u] for u in users))  # what waits for a part of a gradient may come before
    early: dict[int, list[Op | Structured]] = {}
    for k, at in runs.items():
        early.setdefault(at, []).append(graph.ops[k])
    ops = early.get(-1, [])
    after: dict[int, tuple[Value, ...]] = {}
    for k, op in enumerate(graph.ops):
        if not is_update[k]:
            ops.append(op)
            if k in together:
                after[len(ops) - 1] = together[k]
            ops += early.get(k, ())
    return Arranged(Graph(graph.inputs, graph.outputs, ops, graph.times), after, frozenset(made & replaced))


def _updates(program: Program) -> list[bool]:
    """By position: whether only replacements of donated arguments are made of an op's results."""
    ops = program.graph.ops
    readers: dict[int, list[int]] = {}
    for k, op in enumerate(ops):
        for x in op.reads:
            readers.setdefault(x.id, []).append(k)
    replacing = {program.output_ops[o].index for _, o in program.donated}
    given = {x.id for op in program.output_ops if op.index not in replacing for x in op.reads}
    replaced = {new.id for _, new in _pairs(program) if isinstance(new, Value)}
    found = [False] * len(ops)
    for k in range(len(ops) - 1, -1, -1):
        op = ops[k]
        if isinstance(op, Op) and op.primitive is not None and not is_kernel(op) and not op.has_effect and op.outs:
            found[k] = all(
                v.id not in given
                and (v.id in replaced or v.id in readers)
                and all(found[u] for u in readers.get(v.id, ()))
                for v in op.outs
            )
    return found


class _Wiring:
    """What is made and read where, by position among the graph's ops."""

    def __init__(self, program: Program, is_free: Holds) -> None:
        self.ops = program.graph.ops
        self.made = {v.id: k for k, op in enumerate(self.ops) for v in op.results}
        self.reads: dict[int, list[int]] = {}
        for k, op in enumerate(self.ops):
            for x in op.reads:
                self.reads.setdefault(x.id, []).append(k)
        self.apart = [not isinstance(op, Op) or is_kernel(op) for op in self.ops]
        self.free = [isinstance(op, Op) and is_free(op) for op in self.ops]

    def join(self, late: LateReads) -> tuple[int, list[Value]]:
        """After which op these values are to go through one barrier; no values where there are none for it."""
        elements = math.prod(late.argument.shape)
        way = self._made_of(late.replacement)
        gradients = [x for x in way if self.apart[self.made[x.id]] and math.prod(x.shape) >= elements]
        if not gradients or any(self._is_better_late(x) for x in gradients):
            return 0, []
        position = max([*late.kernels, *(self.made[x.id] for x in gradients)])
        most = max([x.size_bytes for x in gradients])
        comes_of = {x.id for x in gradients}
        gradient = None
        for x in sorted(way, key=lambda x: self.made[x.id]):  # what gradients have become until then
            k = self.made[x.id]
            if x.id not in comes_of and comes_of.isdisjoint(y.id for y in self.ops[k].reads):
                continue
            comes_of.add(x.id)
            if math.prod(x.shape) >= elements and x.size_bytes <= most and self._is_read_later(x, position):
                gradient = x
        others = [x for k in late.kernels if (x := self._later(k, position)) is not None]
        if gradient is None or len(others) < len(late.kernels):
            return 0, []
        is_small = any(SMALL * late.argument.size_bytes < x.size_bytes for x in others)
        return position, [] if is_small else [gradient, *others]

    def _is_better_late(self, x: Value) -> bool:
        """Whether what it is made of takes less than it, as for wide layers of a small batch."""
        return sum(y.size_bytes for y in self.ops[self.made[x.id]].reads) < x.size_bytes

    def _made_of(self, value: Value) -> list[Value]:
        """What a value is made of, and itself, back to what kernels make."""
        found: dict[int, Value] = {}
        pending = [value]
        while pending:
            x = pending.pop()
            if x.id in found or x.id not in self.made:
                continue
            found[x.id] = x
            k = self.made[x.id]
            if not self.apart[k]:
                pending += self.ops[k].reads
        return list(found.values())

    def _later(self, kernel: int, position: int) -> Value | None:
        """What comes of a kernel's results that is there at a position, and is read after it."""
        pending, seen = list(self.ops[kernel].results), set[int]()
        while pending:
            x = pending.pop(0)
            if self._is_read_later(x, position):
                return x
            for k in self.reads.get(x.id, ()):
                if not self.apart[k] and k not in seen:
                    seen.add(k)
                    pending += self.ops[k].results
        return None

    def _is_read_later(self, x: Value, position: int) -> bool:
        k = self.made[x.id]
        return k <= position < max(self.reads.get(x.id, (-1,))) and not self.free[k]


def _pairs(program: Program) -> list[tuple[Value, Atom]]:
    """Donated arguments, and what replaces them."""
    return [(program.input_ops[i].outs[0], program.output_ops[o].ins[0]) for i, o in program.donated]


def _members(numbers: int) -> list[int]:
    found = []
    while numbers:
        found.append((numbers & -numbers).bit_length() - 1)
        numbers &= numbers - 1
    return found
