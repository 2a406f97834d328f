"""A loop over layers as several loops over fewer layers, so that stages can be cut between them.

A model whose layers are one ``lax.scan`` over stacked weights is a single op, and its weights are single arrays. Here
the step is written anew with the layers in groups, one after the other, and every argument that is stacked layer by
layer in as many pieces: a group of layers is a device in space, whose position is its number. As for micro-batches,
the rule table says what runs group by group (``S``: an update element by element), and what needs all of them (``P``: a
norm of all gradients is a sum of theirs).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...lower.emit import Emitter, Scope
from ...lower.named import named_in
from ...placement import Placement
from ...planner.graph.dim_classes import DimClasses
from ...rules import Factors, Local
from ...rules.widen import PARTIAL, B, Strategy, signature_of, strategies
from ...signature import Signature
from ...trace import Atom, Graph, Lit, Op, Program, Structured, Value, build, without_collecting

_AXIS = "layers"
_WHOLE = signature_of((B,))
_JOIN = {PARTIAL["sum"]: jnp.sum, PARTIAL["max"]: jnp.max, PARTIAL["min"]: jnp.min}


@dataclass(slots=True)
class Layered:
    """What of a program is stacked layer by layer: its loops over layers, how many layers, by value id the dim."""

    program: Program
    factors: Sequence[Factors]
    loops: set[int] = field(default_factory=set)
    """Of the graph's ops, by number."""
    length: int = 0
    dims: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """An argument or result of the program in groups: the whole one's number, which of its pieces, cut along ``dim``
    (-1: it is the whole one)."""

    of: int
    group: int = 0
    dim: int = -1


@dataclass(slots=True)
class Grouped:
    """A program whose layers are in groups. ``origin`` is by node the node of the program it was made of, -1 for none;
    ``count`` the number of groups."""

    program: Program
    count: int
    arguments: list[Piece]
    results: list[Piece]
    origin: list[int]

    def pins(self, pins: Mapping[int, Any]) -> dict[int, Any]:
        """Pins by node of the program that it was made of, for its own nodes."""
        return {k: pins[o] for k, o in enumerate(self.origin) if o in pins}


def find_layers(program: Program, factors: Sequence[Factors], kept: set[int]) -> Layered:
    """The loops over layers of a step: those that take slices of what the step keeps (arguments ``kept``, by number).

    Where there are several of different lengths, those with the most layers.
    """
    units = program.graph.ops
    scans = {k: u for k, u in enumerate(units) if isinstance(u, Structured) and u.kind == "scan"}
    classes = DimClasses(program, factors) if scans else None
    found = Layered(program, factors)
    if classes is None:
        return found
    stacked = {c for i in kept for _, c in classes.classes_of(program.input_ops[i].outs[0])}
    lengths: dict[Any, int] = {}
    for unit in scans.values():
        for x in (op.ins[0] for op in unit.roles["unstack"]):
            if isinstance(x, Value) and unit.params["length"] > 1 and (c := classes.class_of(x, 0)) in stacked:
                lengths[c] = unit.params["length"]
    found.length = max(lengths.values(), default=0)
    chosen = {c for c, n in lengths.items() if n == found.length}
    grown = bool(chosen)
    while grown:  # what such a loop collects is stacked, too, and so are the loops that read it
        grown = False
        for k, unit in scans.items():
            slices = {classes.class_of(x, 0) for x in _slices(unit)}
            if k not in found.loops and unit.params["length"] == found.length and slices & chosen:
                found.loops.add(k)
                chosen |= slices
                grown = True
    for op in program.nodes:
        for v in op.outs:
            dims = [d for d, c in classes.classes_of(v) if c in chosen]
            if len(dims) > 1:  # compared with each other
                return Layered(program, factors)
            found.dims.update((v.id, d) for d in dims)
    return found


def _slices(unit: Structured) -> list[Value]:
    """What a scan takes, and collects, slice by slice."""
    given = [op.ins[0] for op in unit.roles["unstack"]]
    return [*(x for x in given if isinstance(x, Value)), *(op.outs[0] for op in unit.roles["stack"])]


def in_groups(layered: Layered, count: int) -> Grouped:
    """The program with its layers in ``count`` groups of the same size; ``count`` divides the number of layers."""
    program = layered.program
    arguments, results = [], []
    for i, op in enumerate(program.input_ops):
        d = layered.dims.get(op.outs[0].id, -1)
        arguments += [Piece(i, g, d) for g in range(count)] if d >= 0 else [Piece(i)]
    for o, op in enumerate(program.output_ops):
        d = layered.dims.get(_id(op.ins[0]), -1)
        results += [Piece(o, g, d) for g in range(count)] if d >= 0 else [Piece(o)]
    writer = _Writer(layered, count)
    fixed = len(program.input_ops) - len(program.constants)
    shapes, labels = [], []
    for piece in arguments:
        v = program.input_ops[piece.of].outs[0]
        shape = tuple(n // count if d == piece.dim else n for d, n in enumerate(v.shape))
        shapes.append(jax.ShapeDtypeStruct(shape, v.dtype, weak_type=v.weak))
        labels.append(program.input_ops[piece.of].label)
    with without_collecting():
        closed = jax.make_jaxpr(lambda *given: writer.run_on(arguments, results, given))(*shapes)
        made = build(closed, labels)
    for op, piece in zip(made.output_ops, results, strict=True):
        op.label = program.output_ops[piece.of].label
    constants = [_cut(program.constants[p.of - fixed], p, count) for p in arguments if p.of >= fixed]
    made.constants[:0] = constants
    places = {(p.of, p.group): k for k, p in enumerate(arguments)}
    replaced = dict(program.donated)
    at = {(p.of, p.group): o for o, p in enumerate(results)}
    made.donated[:] = [(k, at[replaced[i], g]) for (i, g), k in places.items() if (replaced.get(i), g) in at]
    made.weak_results = tuple(program.weak_results[p.of] for p in results) if program.weak_results else ()
    made.argument_names = program.argument_names
    origin = [named_in(str(getattr(op.info, "name_stack", "")))[0] for op in made.nodes]
    for k, p in enumerate(arguments):
        origin[made.input_ops[k].index] = program.input_ops[p.of].index
    for k, p in enumerate(results):
        origin[made.output_ops[k].index] = program.output_ops[p.of].index
    for op, k in zip(made.nodes, origin, strict=True):
        if k >= 0:
            op.info = program.nodes[k].info
    return Grouped(made, count, arguments, results, origin)


def group_counts(layered: Layered) -> list[int]:
    """The numbers of groups that its layers can be in, in ascending order."""
    return [n for n in range(1, layered.length + 1) if layered.length % n == 0]


def _id(x: Atom) -> int:
    return x.id if isinstance(x, Value) else -1


def _cut(x: Any, piece: Piece, count: int) -> Any:
    if piece.dim < 0:
        return x
    length = x.shape[piece.dim] // count
    return lax.slice_in_dim(x, piece.group * length, (piece.group + 1) * length, axis=piece.dim)


class _Writer(Emitter):
    """Writes the program: a value is whole, or a list of pieces."""

    def __init__(self, layered: Layered, count: int) -> None:
        self.program, self.layered, self.count = layered.program, layered, count
        self.placement = Placement("cpu", (count,), tuple(range(count)), (_AXIS,), is_abstract=True)
        whole = [((_WHOLE,) * len(op.ins), (_WHOLE,) * len(op.outs)) for op in self.program.nodes]
        self.decision: Any = whole
        self.boxings, self.boxed = {}, {}
        self.producer = {v.id: op for op in self.program.nodes for v in op.outs}
        self.numbers = {id(u): k for k, u in enumerate(self.program.graph.ops)}
        self.pieces: dict[int, list[Any]] = {}
        self.group = 0
        self.local = self.part

    def part(self, *fields: Any) -> Local:
        return _Group(*fields, group=self.group)

    def run_on(self, arguments: Sequence[Piece], results: Sequence[Piece], given: Sequence[Any]) -> list[Any]:
        """The program on pieces."""
        scope: Scope = {}
        for piece, x in zip(arguments, given, strict=True):
            v = self.program.input_ops[piece.of].outs[0]
            if piece.dim < 0:
                scope[v.id] = {_WHOLE: x}
            else:
                self.pieces.setdefault(v.id, []).append(x)
        self.graph(self.program.graph, scope)
        found = []
        for piece in results:
            x = self.program.output_ops[piece.of].ins[0]
            found.append(self.read(scope, x, _WHOLE) if piece.dim < 0 else self.cut(scope, x)[piece.group])
        return found

    def graph(self, graph: Graph, scope: Scope) -> None:
        for op in graph.ops:
            self.op(op, scope)

    def op(self, op: Op | Structured, scope: Scope) -> None:
        k = self.numbers.get(id(op))
        if k is None:  # in a body
            super().op(op, scope)
        elif k in self.layered.loops:
            assert isinstance(op, Structured)
            self.loop(op, scope)
        elif isinstance(op, Structured):
            with jax.named_scope(f"node{op.links[0].index}"):
                super().op(op, scope)
        elif not self.by_groups(op, scope):
            super().op(op, scope)

    def compute(self, scope: Scope, op: Op, ins: Sequence[Signature], outs: Sequence[Signature]) -> Sequence[Any]:
        arguments = [self.read(scope, x, s) for x, s in zip(op.ins, ins, strict=True)]
        with jax.named_scope(f"node{op.index}"):
            return op.params["once"](*arguments) if op.runs_once else self.on_pieces(op, ins, outs, arguments)

    def read(self, scope: Scope, atom: Atom, signature: Signature) -> Any:
        if isinstance(atom, Lit):
            return np.asarray(atom.literal, atom.dtype)
        known = scope.setdefault(atom.id, {})
        if signature not in known:
            known[signature] = lax.concatenate(self.pieces[atom.id], self.layered.dims[atom.id])
        return known[signature]

    def cut(self, scope: Scope, x: Atom) -> list[Any]:
        """The pieces of a value that has layers."""
        assert isinstance(x, Value)
        if x.id not in self.pieces:
            whole, d = scope[x.id][_WHOLE], self.layered.dims[x.id]
            length = whole.shape[d] // self.count
            # Where a piece begins is an array, not a number: stages of layers alike are the same program.
            starts = [jnp.asarray([g * length], jnp.int32)[0] for g in range(self.count)]
            self.pieces[x.id] = [lax.dynamic_slice_in_dim(whole, at, length, d) for at in starts]
        return self.pieces[x.id]

    def loop(self, unit: Structured, scope: Scope) -> None:
        """A loop over layers: one loop for each group, in order; what they carry goes from one to the next."""
        enter, carry, unstack, stack = (unit.roles[r] for r in ("enter", "carry", "unstack", "stack"))
        (body,) = unit.bodies
        fixed = [(o.outs[0], self.read(scope, o.ins[0], _WHOLE)) for o in enter]
        held = [self.read(scope, o.ins[0], _WHOLE) for o in carry]
        sliced = [self.cut(scope, o.ins[0]) for o in unstack]
        collected: list[list[Any]] = [[None] * self.count for _ in stack]

        def step(held: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            values = [*fixed, *zip((o.outs[0] for o in carry), held, strict=True),
                      *zip((o.outs[0] for o in unstack), xs, strict=True)]  # fmt: skip

            def results(inner: Scope) -> list[Any]:
                new = [self.typed(inner, o.ins[1], _WHOLE, x) for o, x in zip(carry, held, strict=True)]
                return [*new, *(self.read(inner, o.ins[0], _WHOLE) for o in stack)]

            found = self.body(body, [(v, _WHOLE, x) for v, x in values], results)
            return found[: len(carry)], found[len(carry) :]

        p = unit.params
        node = (carry or unstack)[0].index
        for g in reversed(range(self.count)) if p["reverse"] else range(self.count):
            with jax.named_scope(f"node{node}"):
                held, slices = lax.scan(
                    step, held, [x[g] for x in sliced], length=p["length"] // self.count, reverse=p["reverse"],
                    unroll=p["unroll"],
                )  # fmt: skip
            for pieces, x in zip(collected, slices, strict=True):
                pieces[g] = x
        for o, x in zip(carry, held, strict=True):
            scope[o.outs[1].id] = {_WHOLE: x}
        self.pieces.update((o.outs[0].id, pieces) for o, pieces in zip(stack, collected, strict=True))

    def by_groups(self, op: Op, scope: Scope) -> bool:
        """Run an op group by group, where its rule allows; whether it did."""
        way = self.way(op)
        if way is None:
            return False
        ins, outs = tuple(signature_of(c) for c in way.ins), tuple(signature_of(c) for c in way.outs)
        operands = [
            self.cut(scope, x) if c[0] >= 0 else [self.read(scope, x, _WHOLE)] * self.count
            for x, c in zip(op.ins, way.ins, strict=True)
        ]
        parts: list[Sequence[Any]] = []
        for g in range(self.count):
            self.group = g
            with jax.named_scope(f"node{op.index}"):
                parts.append(self.on_pieces(op, ins, outs, [x[g] for x in operands]))
        for v, (c,), pieces in zip(op.outs, way.outs, zip(*parts, strict=True), strict=True):
            if c >= 0:
                self.pieces[v.id] = list(pieces)
            else:
                with jax.named_scope(f"node{op.index}"):
                    scope[v.id] = {_WHOLE: pieces[0] if c == B else _JOIN[c](jnp.stack(pieces), 0).astype(v.dtype)}
        return True

    def way(self, op: Op) -> Strategy | None:
        """The op's way to run on groups: what has layers is cut, what is made is cut, or a term of a sum."""
        dims = self.layered.dims
        if op.runs_once or op.has_effect or not any(_id(x) in dims for x in (*op.ins, *op.outs)):
            return None
        f = self.layered.factors[op.index]
        wanted = tuple((dims.get(_id(x), B),) for x in op.ins)
        for s in strategies(f, (self.count,), (False,) * len(f.linear)):
            if s.ins == wanted and all(
                c == dims.get(v.id, B) or c in _JOIN for v, (c,) in zip(op.outs, s.outs, strict=True)
            ):
                return s
        return None


@dataclass(slots=True)
class _Group(Local):
    """Where a group's piece lies."""

    group: int = 0

    def index(self, axis: int) -> Any:
        return self.group
