"""One stage of a pipeline as a program of its own: a loop over the micro-batches between what runs once and the update.

    before: what is made once of the arguments
    for each micro-batch: forward, backward; sums are added up
    after: the sums complete, then the update, with what other stages send of theirs

It is planned like any program: which weights are gathered before the loop, which sums stay partial in it, what is
boxed where. It is never run as a whole (but where it is the only stage): ``phases`` of other stages come between its
forward and its backward part. What comes from other stages is an argument, what goes to them a result; what comes and
goes with every micro-batch has a leading dim that counts them.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ...lower.emit import Scope
from ...lower.named import named_in
from ...rules.widen import B, signature_of
from ...trace import Program, Value, build, without_collecting
from ..cuts.phases import Phases
from ..microbatches.cut import Region
from ..microbatches.parts import WHOLE, PartEmitter, identity, is_of_the_loop, joined

# The name of the loop over the micro-batches.
LOOP = "sbp_microbatches"


@dataclass(frozen=True, slots=True)
class Port:
    """An argument or a result of a stage's program.

    ``kind``: "argument" (of the step), "constant" (an array written in the program), "number" (of the micro-batch),
    "part" (a value of every micro-batch), "late" (a value that is known after all of them), "result" (of the step).
    ``key`` is the number of the argument, constant or result, or the id of the value; ``stage`` the one that it comes
    from (of a result: whose is the step's, where several make it), ``level`` how often stages must have exchanged
    results before it is there.
    """

    kind: str
    key: int
    stage: int = -1
    level: int = 0


@dataclass(slots=True)
class StageProgram:
    """The program of one stage, with what its arguments and results are.

    ``origin`` is by node the node of the step that it stands for, -1 for none; ``sums`` are the reductions that the
    loop carries, as codes (``rules.widen``); ``again`` are the nodes that make values of the forward part once more for
    the backward one.
    """

    stage: int
    program: Program
    takes: list[Port]
    gives: list[Port]
    origin: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    again: frozenset[int] = frozenset()


@dataclass(slots=True)
class Flows:
    """What stages give each other: by stage what it reads of others', and what others read of its own."""

    parts_in: list[list[Value]]
    parts_out: list[list[Value]]
    late_in: list[list[Value]]
    late_out: list[list[Value]]
    results: list[list[int]]
    complete: list[list[Value]]
    """Values of the loop that are added up, or put together, after it."""


def owner(phases: Phases, value: Value) -> int:
    """The stage that makes a value; -1 for arguments, and what every stage makes for itself."""
    k = phases.made.get(value.id, -1)
    return -1 if k < 0 or phases.cut.regions[k] is Region.ONCE else phases.stage[k]


def flows(phases: Phases) -> Flows:
    """What every stage reads of others, in the order of the program."""
    cut, n = phases.cut, phases.count

    def lists() -> list[dict[int, Value]]:
        return [{} for _ in range(n)]

    parts_in, parts_out, late_in, late_out, complete = lists(), lists(), lists(), lists(), lists()
    results: list[list[int]] = [[] for _ in range(n)]
    values = {v.id: v for op in cut.program.nodes for v in op.outs}

    def late(x: Value, s: int) -> None:
        """Stage ``s`` needs a value after the micro-batches."""
        own = owner(phases, x)
        if is_of_the_loop(cut, x) and own >= 0:  # an argument comes as a whole
            complete[own][x.id] = x
        if own not in (-1, s):
            late_in[s][x.id] = x
            late_out[own][x.id] = x

    for k, unit in enumerate(cut.units):
        s = phases.stage[k]
        for x in map(values.__getitem__, dict.fromkeys(v.id for v in unit.reads)):
            if cut.regions[k] is Region.AFTER:
                late(x, s)
            elif cut.regions[k] is Region.LOOP and is_of_the_loop(cut, x) and owner(phases, x) not in (-1, s):
                parts_in[s][x.id] = x
                parts_out[owner(phases, x)][x.id] = x
    for o, op in enumerate(cut.program.output_ops):
        x = op.ins[0]
        s = result_stage(phases, o)
        results[s].append(o)
        if isinstance(x, Value):
            late(x, s)

    def listed(of: list[dict[int, Value]]) -> list[list[Value]]:
        return [list(d.values()) for d in of]

    return Flows(listed(parts_in), listed(parts_out), listed(late_in), listed(late_out), results, listed(complete))


def result_stage(phases: Phases, result: int) -> int:
    """The stage that gives a result of the step."""
    program = phases.cut.program
    x = program.output_ops[result].ins[0]
    s = owner(phases, x) if isinstance(x, Value) else -1
    if s >= 0:
        return s
    of = {o: i for i, o in program.donated}
    return phases.home.get(of.get(result, -1), 0)


def stage_program(phases: Phases, s: int, flow: Flows) -> StageProgram:
    """The program of stage ``s``."""
    return _Builder(phases, s, flow).build()


def arguments_of(phases: Phases, s: int, flow: Flows) -> list[int]:
    """The step's arguments that stage ``s`` takes as a whole, by number."""
    return _Builder(phases, s, flow).arguments


class _Builder:
    def __init__(self, phases: Phases, s: int, flow: Flows) -> None:
        self.phases, self.cut, self.s, self.flow = phases, phases.cut, s, flow
        cut, program = phases.cut, phases.cut.program
        self.loop = [k for k, r in enumerate(cut.regions) if r is Region.LOOP and phases.stage[k] == s]
        self.after = [k for k, r in enumerate(cut.regions) if r is Region.AFTER and phases.stage[k] == s]
        needed = [x for k in (*self.loop, *self.after) for x in cut.units[k].reads]
        needed += [x for o in flow.results[s] for x in program.output_ops[o].ins if isinstance(x, Value)]
        self.once = self.made_before(needed)
        needed += [x for k in self.once for x in cut.units[k].reads]
        read = {x.id for x in needed}
        positions, inputs = range(len(program.input_ops)), [op.outs[0] for op in program.input_ops]
        # A batch that something is made of before the micro-batches, or after them, comes as a whole, too.
        whole = {x.id for k in (*self.once, *self.after) for x in cut.units[k].reads}
        whole |= {x.id for o in flow.results[s] for x in program.output_ops[o].ins if isinstance(x, Value)}
        self.arguments = [
            i for i in positions if inputs[i].id in whole or (
                not is_of_the_loop(cut, inputs[i]) and (inputs[i].id in read or phases.home.get(i) == s))
        ]  # fmt: skip
        self.batches = [i for i in positions if is_of_the_loop(cut, inputs[i]) and inputs[i].id in read]
        self.complete = [x for x in flow.complete[s]]

    def made_before(self, needed: Sequence[Value]) -> list[int]:
        """The ops that run once, of those that values need."""
        found: set[int] = set()
        queue = [x.id for x in needed]
        while queue:
            k = self.phases.made.get(queue.pop(), -1)
            if k >= 0 and k not in found and self.cut.regions[k] is Region.ONCE:
                found.add(k)
                queue += [x.id for x in self.cut.units[k].reads]
        return sorted(found)

    def build(self) -> StageProgram:
        program, flow, s = self.cut.program, self.flow, self.s
        inputs = [op.outs[0] for op in program.input_ops]
        takes = [Port("argument", i) for i in self.arguments]
        if self.loop:
            takes += [Port("number", -1), *(Port("part", inputs[i].id) for i in self.batches)]
            takes += [Port("part", x.id, owner(self.phases, x)) for x in flow.parts_in[s]]
        takes += [Port("late", x.id, owner(self.phases, x), self.level_of(x)) for x in flow.late_in[s]]
        gives = [Port("part", x.id, s) for x in flow.parts_out[s]]
        gives += [Port("late", x.id, s, self.level_of(x)) for x in flow.late_out[s]]
        gives += [Port("result", o, result_stage(self.phases, o)) for o in flow.results[s]]
        values = {v.id: v for op in program.nodes for v in op.outs}
        shapes = [self.shape(port, values) for port in takes]
        with without_collecting():
            closed = jax.make_jaxpr(functools.partial(self.run, takes, gives))(*shapes)
            labels = [self.label(port, values) for port in takes]
            made = build(closed, labels)
        takes += [Port("constant", j) for j in range(len(made.constants))]
        for op, port in zip(made.output_ops, gives, strict=True):
            op.label = self.label(port, values)
        given = {port.key: o for o, port in enumerate(gives) if port.kind == "result"}
        numbers = {i: k for k, i in enumerate(self.arguments)}
        made.donated[:] = [(numbers[i], given[o]) for i, o in program.donated if i in numbers and o in given]
        made.argument_names = program.argument_names
        origin = [named_in(str(getattr(op.info, "name_stack", "")))[0] for op in made.nodes]
        for op, k in zip(made.nodes, origin, strict=True):
            if k >= 0:
                op.info = program.nodes[k].info
        sums = [c for x in self.complete if (c := self.cut.code[x.id]) < B] if self.loop else []
        return StageProgram(s, made, takes, gives, origin, sums)

    def level_of(self, x: Value) -> int:
        """How often stages have exchanged results when a value is there."""
        k = self.phases.made.get(x.id, -1)
        return 0 if k < 0 or self.cut.regions[k] is Region.LOOP else self.phases.level[k]

    def label(self, port: Port, values: dict[int, Value]) -> str:
        program = self.cut.program
        if port.kind == "argument":
            return program.input_ops[port.key].label
        if port.kind == "result":
            return program.output_ops[port.key].label
        if port.kind == "number":
            return "number of the micro-batch"
        by_id = {op.outs[0].id: op.label for op in program.input_ops}
        return by_id.get(port.key) or f"{values[port.key].name or f'%{port.key}'} of stage {port.stage}"

    def shape(self, port: Port, values: dict[int, Value]) -> jax.ShapeDtypeStruct:
        if port.kind == "argument":
            v = self.cut.program.input_ops[port.key].outs[0]
            return jax.ShapeDtypeStruct(v.shape, v.dtype, weak_type=v.weak)
        if port.kind == "number":
            return jax.ShapeDtypeStruct((self.cut.count,), jnp.int32)
        v = values[port.key]
        if port.kind == "late":
            return jax.ShapeDtypeStruct(v.shape, v.dtype)
        return jax.ShapeDtypeStruct((self.cut.count, *self.cut.piece_shape(v)), v.dtype)

    def run(self, takes: Sequence[Port], gives: Sequence[Port], *given: Any) -> list[Any]:
        """The stage, on whole values and stacks of parts."""
        cut, program = self.cut, self.cut.program
        emit = PartEmitter(cut)
        scope: Scope = {}
        number, parts = None, {}
        for port, x in zip(takes, given, strict=True):
            if port.kind == "argument":
                scope[program.input_ops[port.key].outs[0].id] = {WHOLE: x}
            elif port.kind == "late":
                scope[port.key] = {WHOLE: x}
            elif port.kind == "number":
                number = x
            else:
                parts[port.key] = x
        for k in self.once:
            emit.op(cut.units[k], scope)
        stacks: dict[int, Any] = {}
        if self.loop:
            sums = [x for x in self.complete if cut.code[x.id] < B]
            stacked = [x for x in self.complete if cut.code[x.id] >= B]
            leaving = [x for p in gives if p.kind == "part" for x in (self.flow_value(p.key),)]
            body = functools.partial(self.micro_batch, emit, scope, sums, [*leaving, *stacked])
            start = [identity(cut.code[x.id], x.shape, x.dtype) for x in sums]
            with jax.named_scope(LOOP):
                final, collected = lax.scan(body, start, (number, parts), length=cut.count)
            for x, total in zip(sums, final, strict=True):
                scope[x.id] = {WHOLE: total}
            stacks = {x.id: y for x, y in zip(leaving, collected, strict=False)}
            for x, y in zip(stacked, collected[len(leaving) :], strict=True):
                scope[x.id] = {WHOLE: self.put_together(x, y)}
        for k in self.after:
            emit.op(cut.units[k], scope)
        found = []
        for port in gives:
            if port.kind == "part":
                found.append(stacks[port.key])
            elif port.kind == "late":
                found.append(scope[port.key][WHOLE])
            else:
                found.append(emit.read(scope, program.output_ops[port.key].ins[0], WHOLE))
        return found

    def flow_value(self, value_id: int) -> Value:
        return next(x for x in self.flow.parts_out[self.s] if x.id == value_id)

    def micro_batch(
        self, emit: PartEmitter, around: Scope, sums: Sequence[Value], collected: Sequence[Value], held: list[Any],
        given: tuple[Any, dict[int, Any]],
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        """One micro-batch: the sums with its terms, and what is collected of it."""
        emit.number, parts = given
        scope: Scope = {v: dict(known) for v, known in around.items()}
        for value_id, x in parts.items():
            scope[value_id] = {self.code(value_id): x}
        for k in self.loop:
            emit.op(self.cut.units[k], scope)
        new = [
            joined(self.cut.code[x.id], acc, emit.read(scope, x, self.code(x.id)))
            for x, acc in zip(sums, held, strict=True)
        ]
        return new, [emit.read(scope, x, self.code(x.id)) for x in collected]

    def code(self, value_id: int) -> Any:
        return signature_of((self.cut.code[value_id],))

    def put_together(self, x: Value, stack: Any) -> Any:
        """The whole of a value from its parts; of a statistic the mean; what is the same in all is the last one's."""
        d = self.cut.code[x.id]
        if d == B and x.id in self.cut.estimated and jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.mean(stack, 0)
        if d == B:
            return stack[-1]
        return jnp.moveaxis(stack, 0, d).reshape(x.shape)
