"""A program written anew in pieces: each part once for each side that runs it, on its own lengths.

A value is held as pieces along a dim, as whole copies, or as terms of a reduction; what a side reads and does not hold
is cut out where it is, sent, and put together or added up where it is read. Arguments are cut before the program
begins. Nothing is a collective and nothing is padded, so that pieces may have any lengths.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax

from ...pieces import identity
from ...rules import Local, lookup
from ...rules.widen import PARTIAL, B
from ...signature import ReduceOp
from ...trace import Atom, Lit, Op, Program, Structured, Value, copied, writer
from ..placing import results_of
from .layouts import FIRST, SECOND, is_terms
from .problem import Problem, Way, ways_of

Box = tuple[tuple[int, int], ...]
Group = tuple[int, ...]
_KIND: dict[int, ReduceOp] = {code: kind for kind, code in PARTIAL.items()}
_COMBINE: dict[ReduceOp, Callable[[Any, Any], Any]] = {"sum": lax.add, "max": lax.max, "min": lax.min}


@dataclass(frozen=True, eq=False)
class Pieces:
    """A program of pieces.

    Attributes:
        program: its arguments are pieces of another program's, its results that program's.
        groups: by ``id`` of a step the devices that share it.
        boxes: by argument the number of the other program's argument, and its first and last index along each dim.
    """

    program: Program
    groups: dict[int, Group]
    boxes: tuple[tuple[int, Box], ...]

    @classmethod
    def whole(cls, program: Program, group: Group) -> "Pieces":
        """A program as it is, shared by a group of devices."""
        boxes = [(k, _whole(op.outs[0])) for k, op in enumerate(program.input_ops[: _arguments(program)])]
        return cls(program, {id(step): group for step in program.graph.ops}, tuple(boxes))

    def arguments(self, given: Sequence[Any]) -> list[Any]:
        """The pieces of another program's arguments, cut where they lie."""
        return [_cut_out(given[k], box) for k, box in self.boxes]


def _arguments(program: Program) -> int:
    return len(program.input_ops) - len(program.constants)


def _whole(x: Atom) -> Box:
    return tuple((0, n) for n in x.shape)


def _cut_out(x: Any, box: Box) -> Any:
    if all((a, b) == (0, n) for (a, b), n in zip(box, np.shape(x), strict=True)):
        return x
    return x[tuple(slice(a, b) for a, b in box)]


@dataclass(slots=True)
class _Part(Local):
    """One side's part of an op: of the factor that is cut the elements from ``start`` to ``stop``, of ``length``."""

    side: int = 0
    start_at: int = 0
    stop_at: int = 1
    of: int = 1

    def index(self, axis: int) -> Any:
        """Which side it is."""
        return self.side

    def span(self, code: Sequence[int], whole: int, dim: int) -> tuple[Any, Any]:
        """First index and length of the part along ``dim``."""
        if dim not in code:
            return 0, whole
        return self.start_at * whole // self.of, (self.stop_at - self.start_at) * whole // self.of

    def is_padded(self, operand: int, shape: Sequence[int]) -> bool:
        """Never: every piece has its own length."""
        return False


@dataclass(slots=True)
class _Held:
    """Where a value is: pieces or copies by group with their boxes; with ``kind`` each is a term of the whole."""

    pieces: list[tuple[Group, Box, Atom]] = field(default_factory=list)
    kind: ReduceOp | None = None


def in_pieces(before: Pieces, problem: Problem, ways: Sequence[Way], ratio: Mapping[int, float]) -> Pieces:
    """The program with the parts of ``problem.mine`` in pieces. ``ratio``: by place, of each part that is cut."""
    return _Pieces(before, problem, ways, ratio).run()


class _Pieces:
    def __init__(self, before: Pieces, problem: Problem, ways: Sequence[Way], ratio: Mapping[int, float]) -> None:
        self.before, self.problem, self.ways, self.ratio = before, problem, ways, ratio
        p = self.program = before.program
        self.sides = problem.sides.groups
        self.t = writer(max((v.id for op in p.nodes for v in op.outs), default=0))
        self.groups: list[Group] = []
        self.held: dict[int, _Held] = {}
        self.there: dict[tuple[int, Group, Box], Atom] = {}
        self.arguments = {op.outs[0].id: k for k, op in enumerate(p.input_ops)}
        self.inputs: list[tuple[int, Box, Value]] = []

    def run(self) -> Pieces:
        p, places = self.program, self.problem.number
        numbers = {id(step): k for k, step in enumerate(self.problem.found.steps)}
        for step in p.graph.ops:
            k = numbers.get(id(step))
            if k is None:
                continue  # free: made where it is read
            if k not in places:
                self.elsewhere(step, self.before.groups[id(step)])
            elif isinstance(step, Op):
                self.shared(step, places[k])
            else:
                way = self.ways[places[k]]
                self.elsewhere(step, self.sides[int(SECOND in (*way.ins, *way.outs))])
        outputs = [Op(op.name, (self.result(op.ins[0]),), (), label=op.label) for op in p.output_ops]
        return self.finished(outputs)

    def finished(self, outputs: list[Op]) -> Pieces:
        p, most = self.program, _arguments(self.program)
        given = [x for x in self.inputs if x[0] < most]
        fixed = [x for x in self.inputs if x[0] >= most]
        constants = [_cut_out(p.constants[k - most], box) for k, box, _ in fixed] + self.t.shared.constants
        values = [*(v for _, _, v in (*given, *fixed)), *self.t.shared.constant_values]
        graph = self.t.finish(values, [op.ins[0] for op in outputs])
        inputs = [Op("sbp.input", (), (v,), label=v.name) for v in values]
        program = Program(graph, inputs, outputs, constants, weak_results=p.weak_results)
        boxes = []
        for k, box, _ in given:  # the argument is a piece itself
            first, outer = self.before.boxes[k]
            boxes.append((first, tuple((a + o, b + o) for (a, b), (o, _) in zip(box, outer, strict=True))))
        return Pieces(program, dict(zip(map(id, graph.ops), self.groups, strict=True)), tuple(boxes))

    def result(self, x: Atom) -> Atom:
        """Whole, where most of it is already."""
        if isinstance(x, Lit):
            return x
        group = self.sides[0]
        if x.id in self.held:
            group = max(self.held[x.id].pieces, key=lambda piece: _size(piece[1]))[0]
        return self.fetch(x, group, _whole(x))

    def elsewhere(self, step: Op | Structured, group: Group) -> None:
        """A part that runs whole, on one group."""
        names = {x.id: self.fetch(x, group, _whole(x)) for x in step.reads}
        new = copied(step, names)
        self.add(new, group)
        for v in results_of(step):
            self.held[v.id] = _Held([(group, _whole(v), v)])

    def shared(self, op: Op, place: int) -> None:
        """A part of both sides."""
        way = self.ways[place]
        if way.factor < 0 and {FIRST, SECOND} & {*way.ins, *way.outs}:
            self.elsewhere(op, self.sides[int(SECOND in (*way.ins, *way.outs))])
            return
        at = max(1, min(way.length - 1, round(self.ratio[place] * way.length))) if way.factor >= 0 else 0
        for side in range(2):
            part = ((0, at), (at, way.length))[side] if way.factor >= 0 else None
            for v, c, (box, y) in zip(op.outs, way.outs, self.part(op, way, side, part), strict=True):
                held = self.held.setdefault(v.id, _Held())
                held.pieces.append((self.sides[side], box, y))
                held.kind = _KIND[c] if is_terms(c) else None

    def part(
        self, op: Op, way: Way, side: int, part: tuple[int, int] | None, group: Group | None = None
    ) -> list[tuple[Box, Atom]]:
        """One side's part of an op: boxes and values of its results. ``part``: of the cut factor; None: all."""
        group = self.sides[side] if group is None else group
        (start, stop), length = part or (0, 1), way.length if part else 1

        def box(x: Atom, layout: int) -> Box:
            return tuple((start * n // length, stop * n // length) if d == layout else (0, n)
                         for d, n in enumerate(x.shape))  # fmt: skip

        operands = [self.term(x, side, _KIND[c]) if is_terms(c) else self.fetch(x, group, box(x, c))
                    for x, c in zip(op.ins, way.ins, strict=True)]  # fmt: skip
        boxes = [box(v, c) for v, c in zip(op.outs, way.outs, strict=True)]
        shapes = [tuple(b - a for a, b in x) for x in boxes]
        rule = lookup(op.name)
        compute = None if rule is None else rule.local
        if part is None or compute is None:
            return list(zip(boxes, self.bind(op, operands, shapes, group), strict=True))
        codes = [tuple((max(c, B),) for c in side) for side in (way.ins, way.outs)]
        local = _Part(("side",), (2,), tuple(codes[0]), tuple(codes[1]), tuple(x.shape for x in operands),
                      tuple(shapes), (), side, start, stop, length)  # fmt: skip

        def piece(*xs: Any) -> Any:
            y = compute(op, local, *xs)
            return list(y) if isinstance(y, list | tuple) else [y]

        return list(zip(boxes, self.write(piece, operands, group), strict=True))

    def bind(self, op: Op, operands: Sequence[Atom], shapes: Sequence[tuple[int, ...]], group: Group) -> list[Value]:
        """The op itself, on other operands."""
        outs = tuple(self.value(v, shape) for v, shape in zip(op.outs, shapes, strict=True))
        self.add(Op(op.name, tuple(operands), outs, op.params, op.primitive, op.info, op.label), group)
        return list(outs)

    def value(self, like: Value, shape: tuple[int, ...]) -> Value:
        return self.t.like(like, shape, like.name)

    def add(self, step: Op | Structured, group: Group) -> None:
        self.t.ops.append(step)
        self.groups.append(group)

    def write(self, fn: Callable[..., Any], operands: Sequence[Atom], group: Group) -> list[Atom]:
        """A function of arrays, on a group."""
        avals = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak) for x in operands]
        closed = jax.make_jaxpr(fn)(*avals)
        found = self.t.inline(closed.jaxpr, closed.consts, operands)
        self.groups += [group] * (len(self.t.ops) - len(self.groups))
        return found

    def fetch(self, x: Atom, group: Group, box: Box) -> Atom:
        """A part of a value, on a group."""
        if isinstance(x, Lit):
            return x
        key = x.id, group, box
        if key not in self.there:
            self.there[key] = self.found(x, group, box)
        return self.there[key]

    def found(self, x: Value, group: Group, box: Box) -> Atom:
        if x.id in self.arguments:
            v = self.value(x, tuple(b - a for a, b in box))
            self.inputs.append((self.arguments[x.id], box, v))
            return v
        if x.id in self.problem.found.makers:
            return self.made(self.problem.found.makers[x.id], x, group, box)
        held = self.held[x.id]
        if held.kind is not None:
            terms = [self.slice(x, piece, box) for piece in held.pieces]
            return self.write(_COMBINE[held.kind], terms, group)[0]
        around = [p for p in held.pieces if all(a <= c and d <= b for (a, b), (c, d) in zip(p[1], box, strict=True))]
        if around:
            here = [p for p in around if p[0] == group]
            return self.slice(x, (here or around)[0], box)
        dim = next(d for d, n in enumerate(x.shape) if held.pieces[0][1][d] != (0, n))
        parts = []
        for piece in held.pieces:
            low, high = max(piece[1][dim][0], box[dim][0]), min(piece[1][dim][1], box[dim][1])
            if low < high:
                parts.append(self.slice(x, piece, (*box[:dim], (low, high), *box[dim + 1 :])))
        return self.write(lambda *xs: lax.concatenate(xs, dim), parts, group)[0]

    def slice(self, x: Value, piece: tuple[Group, Box, Atom], box: Box) -> Atom:
        """A part of a piece, cut out where it is."""
        group, outer, y = piece
        if box == outer:
            return y
        start = [a - o for (a, _), (o, _) in zip(box, outer, strict=True)]
        stop = [b - o for (_, b), (o, _) in zip(box, outer, strict=True)]
        key = y.id if isinstance(y, Value) else -1, group, box
        if key not in self.there:
            self.there[key] = self.write(lambda a: lax.slice(a, start, stop), [y], group)[0]
        return self.there[key]

    def term(self, x: Atom, side: int, kind: ReduceOp) -> Atom:
        """One side's term of a value; of one that is whole itself, or what changes nothing."""
        group = self.sides[side]
        if isinstance(x, Value) and x.id in self.held and self.held[x.id].kind == kind:
            return next(y for g, _, y in self.held[x.id].pieces if g == group)
        owner = 0
        if isinstance(x, Value) and x.id in self.held and all(g == self.sides[1] for g, _, _ in self.held[x.id].pieces):
            owner = 1
        if side == owner:
            return self.fetch(x, group, _whole(x))
        nothing = functools.partial(lax.full, x.shape, identity(kind, x.dtype), x.dtype)
        return self.write(nothing, [], group)[0]

    def made(self, op: Op, x: Value, group: Group, box: Box) -> Atom:
        """What is free, made where it is read: the part alone where its rule allows that."""
        cut = [(d, n) for d, n in enumerate(x.shape) if box[d] != (0, n)]
        if not cut:
            return self.bind_free(op, x, group)
        if len(cut) == 1:
            (d, n), k = cut[0], op.outs.index(x)
            ways = ways_of(op, self.problem.found.factors[op.index], {})
            way = next((w for w in ways if w.factor >= 0 and w.outs[k] == d), None)
            a, b = box[d]
            if way is not None and a * way.length % n == 0 and b * way.length % n == 0:
                part = a * way.length // n, b * way.length // n
                return self.part(op, way, 0, part, group)[k][1]
        return self.slice(x, (group, _whole(x), self.fetch(x, group, _whole(x))), box)

    def bind_free(self, op: Op, x: Value, group: Group) -> Atom:
        operands = [self.fetch(y, group, _whole(y)) for y in op.ins]
        return self.bind(op, operands, [v.shape for v in op.outs], group)[op.outs.index(x)]


def _size(box: Box) -> int:
    return int(np.prod([b - a for a, b in box], dtype=np.int64))
