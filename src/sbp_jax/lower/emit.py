"""plan + program -> a function of local pieces, run in one ``shard_map`` that is manual on every mesh axis.

Each op computes on the device's own pieces, a partial value is simply the device's term, and every change of
signature is an explicit collective under a name scope of its own. XLA's partitioner has nothing left to decide
(docs/decisions/0001-manual-lowering.md).
"""

import copy
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from .. import boxing
from ..boxing import Step
from ..errors import PlanError
from ..pieces import is_even, stored_shape
from ..plan import Boxing, PlanData
from ..rules import Local, is_padded, lookup, mask_reduced, whole
from ..rules.widen import B, Code, signature_of, strategies
from ..signature import Partial, Signature, Split, broadcast
from ..trace import Atom, Early, Expanded, Graph, Lit, Op, Program, Structured, Value, Wait, arranged, expanded, waits
from .control import CONTROL, Scope
from .turns import Turns, loops_that_talk


def local_function(program: Program, plan: PlanData) -> Callable[..., list[Any]]:
    """The program on local pieces: flat local arguments (constants last) to flat local results.

    Valid inside ``jax.shard_map`` manual on all axes of the plan's placement.
    """
    check_program(program, plan)
    return Emitter(program, plan).run


def check_program(program: Program, plan: PlanData) -> None:
    """Raise ``PlanError`` for a plan of another program."""
    if len(plan.nodes) != len(program.nodes):
        raise PlanError(
            f"the plan is for another program: it has {len(plan.nodes)} nodes, this one {len(program.nodes)}"
        )


class Emitter:
    """Walks a program; ``gspmd.py`` overrides where a value is kept and how an op or a boxing is run.

    ``local`` tells an op where its piece lies. ``is_whole``: whether what it writes is one step, not to be cut.
    ``takes_turns``: whether loops and collectives beside them do (``turns.py``).
    """

    local: Callable[..., Local] = Local
    is_whole = True
    takes_turns = False
    turns = Turns(())
    replacements: Collection[int] = ()  # values that are written over donated arguments early

    def __init__(self, program: Program, plan: PlanData) -> None:
        self.program, self.placement = program, plan.placement
        self.decision = [plan.strategies[k] if k >= 0 else None for k in plan.nodes]
        self.boxings = {(b.value_id, b.dst): b for b in plan.boxing_list}
        self.boxed: dict[int, list[Boxing]] = {}
        for b in plan.boxing_list:
            self.boxed.setdefault(b.value_id, []).append(b)
        self.producer = {v.id: op for op in program.nodes for v in op.outs}
        self.takes_turns = self.is_whole and plan.placement.type == "cpu"

    def run(self, *arguments: Any) -> list[Any]:
        """The program on local pieces. Each walk has turns of its own: one that an error ends leaves nothing behind."""
        return copy.copy(self).walk(arguments)

    def walk(self, arguments: Sequence[Any]) -> list[Any]:
        scope: Scope = {}
        for op, x in zip(self.program.input_ops, arguments, strict=True):
            self.define(scope, op.outs[0], self.outs(op)[0], x)
        self.turns = self.turns_in(self.program.graph)
        self.graph(self.program.graph, scope)
        return [self.read(scope, op.ins[0], self.ins(op)[0]) for op in self.program.output_ops]

    def turns_in(self, graph: Graph) -> Turns:
        """Of a graph's loops and the collectives beside them."""
        return Turns(loops_that_talk(graph, self.boxed) if self.takes_turns else ())

    def ins(self, op: Op) -> Sequence[Signature]:
        return self.decide(op)[0]

    def outs(self, op: Op) -> Sequence[Signature]:
        return self.decide(op)[1]

    def decide(self, op: Op) -> tuple[tuple[Signature, ...], tuple[Signature, ...]]:
        """The plan's signatures for a node's operands and results."""
        found = self.decision[op.index]
        if found is None:
            raise PlanError(f"the plan says nothing about {op}: it was made for another program")
        return found

    def define(self, scope: Scope, value: Value, signature: Signature, x: Any) -> None:
        scope[value.id] = {signature: x}

    def read(self, scope: Scope, atom: Atom, signature: Signature) -> Any:
        """The local piece of a value in a signature; boxed, once a scope, when it is not there in it yet."""
        if isinstance(atom, Lit):
            x = np.asarray(atom.literal, atom.dtype)  # a constant, not an op
            return x if not signature.has_partial else self.make_partial(x, atom, _whole(signature), signature)
        known = scope.setdefault(atom.id, {})
        if signature in known:
            return known[signature]
        planned = self.boxings.get((atom.id, signature))
        if planned is not None:
            x = self.read(scope, atom, planned.src)
            with jax.named_scope(planned.scope):
                known[signature] = self.box(planned, x)
        else:
            known[signature] = self.remake(scope, atom, signature)
        return known[signature]

    def remake(self, scope: Scope, value: Value, signature: Signature) -> Any:
        """A value that costs nothing to make: computed in the signature asked for (partial: whole, then kept)."""
        if signature.has_partial:
            plain = _whole(signature)
            return self.make_partial(self.read(scope, value, plain), value, plain, signature)
        op = self.producer[value.id]
        ins, outs = _way_to_make(op, op.outs.index(value), _code(signature), self.placement.shape)
        return self.compute(scope, op, ins, outs)[op.outs.index(value)]

    def box(self, planned: Boxing, x: Any) -> Any:
        """This device's piece in the signature that a boxing leads to."""
        turns = self.turns if any(m.is_collective for m in planned.moves) else Turns(())
        x = boxing.execute(self.steps(planned), turns.sent(x), self.placement.axis_names, planned.shape)
        return turns.given(x)

    def steps(self, planned: Boxing) -> list[Step]:
        """The plan's own steps, not found anew: the plan may have been priced for another cluster."""
        names, here, found = self.placement.axis_names, planned.src, []
        for m in planned.moves:
            found.append(Step(m.kind, tuple(names.index(a) for a in m.axes), here, m.dst, m.bytes, m.seconds))
            here = m.dst
        return found

    def make_partial(self, x: Any, atom: Atom, src: Signature, dst: Signature) -> Any:
        """A whole or split value as a partial one: a local copy, whatever the cluster."""
        route = boxing.route(src, dst, self.placement, atom.shape, str(atom.dtype))
        return boxing.apply(route, x, self.placement.axis_names)

    def graph(self, graph: Graph, scope: Scope) -> None:
        together: Mapping[int, Sequence[Value]] = {}
        is_cpu = self.placement.type == "cpu"  # elsewhere updates would wait for what is sent beside compute
        if graph is self.program.graph and is_cpu and self.is_whole:
            arrangement = arranged(self.program, self.is_free)
            graph, together, self.replacements = arrangement.graph, arrangement.together, arrangement.replacements
        found = waits(graph, self.is_free, self.placement.type != "gpu", self.replacements)
        again = expanded(graph, self.is_free) if is_cpu else {}
        for k, op in enumerate(graph.ops):
            if k in found:
                self.hold_back(scope, op, found[k])
            for x in again.get(k, ()):
                self.make_again(scope, op, x)
            if id(op) in self.turns.loops and isinstance(op, Structured):
                self.take_turn(scope, op)
            else:
                self.op(op, scope)
            if k in together:
                self.pass_together(scope, [(v.id, s) for v in together[k] for s in scope.get(v.id, {})])

    def is_free(self, op: Op) -> bool:
        """Whether the plan decides nothing for it: each reader makes its results where it needs them."""
        return self.decision[op.index] is None

    def op(self, op: Op | Structured, scope: Scope) -> None:
        """Run one op of a graph, control flow with its bodies."""
        if isinstance(op, Structured):
            CONTROL[op.kind](self, op, scope)
        elif not self.is_free(op):  # the others are made where they are needed
            results = self.compute(scope, op, self.ins(op), self.outs(op))
            for v, s, y in zip(op.outs, self.outs(op), results, strict=True):
                self.define(scope, v, s, y)

    def hold_back(self, scope: Scope, op: Op | Structured, wait: Wait) -> None:
        """Let an op wait for results that would hold more than they take, were they put off.

        Where collectives run beside compute it waits for what is computed, not for what is sent of it; elsewhere for
        what takes less of it, so that a gradient is not held whole for an optimizer that reads pieces of its sum.
        """
        beside = self.placement.type != "cpu"

        def size(value_id: int) -> int:
            return max([self.stored_bytes(x, s) for s, x in scope.get(value_id, {}).items()], default=0)

        def smaller(v: Value) -> dict[Signature, int]:
            pieces = {
                b.dst: math.prod(stored_shape(b.shape, b.dst, self.placement.shape)) * v.itemsize
                for b in (() if beside else self.boxed.get(v.id, ()))
            }
            return {s: n for s, n in pieces.items() if n < size(v.id)}

        def as_wanted(e: Early) -> Value:  # what is boxed before it is turned is waited for as it was computed
            is_boxed = e.value.id in self.boxed
            return e.value if e.turned is None or is_boxed or e.turned.id not in scope else e.turned

        keys: list[tuple[int, Signature]] = []
        met: set[int] = set()
        for e in reversed(wait.results):
            v = as_wanted(e)
            less = smaller(v)
            taken = 0 if v.id in self.replacements else min([size(v.id), *less.values()])
            if met.isdisjoint(e.within) and sum(map(size, e.holds)) > taken:
                for s in less:
                    self.read(scope, v, s)
                keys = [(v.id, s) for s in list(scope.get(v.id, {}))[: 1 if beside else None]] + keys
                met.add(e.value.id)
        if not keys:
            return
        self.pass_together(scope, [*keys, self.operand(scope, op, wait.through)])

    def operand(self, scope: Scope, op: Op | Structured, x: Value) -> tuple[int, Signature]:
        """Where the scope has an operand as the op reads it."""
        readers = [op] if isinstance(op, Op) else op.links
        signature = next(s for r in readers for y, s in zip(r.ins, self.ins(r), strict=True) if y is x)
        self.read(scope, x, signature)
        return x.id, signature

    def make_again(self, scope: Scope, op: Op | Structured, x: Expanded) -> None:
        """Compute an operand once more when another one is there, not before."""
        inner: Scope = {v.id: dict(scope.get(v.id, {})) for v in x.made_of}
        i, s = self.operand(scope, op, x.through)
        inner[i] = {s: scope[i][s]}
        self.pass_together(inner, [(v, form) for v, forms in inner.items() for form in forms])
        scope[i][s] = inner[i][s]
        for link in x.ops:
            self.op(link, inner)
        scope[x.value.id] = inner[x.value.id]

    def take_turn(self, scope: Scope, loop: Structured) -> None:
        """Run a loop with collectives after those before it, and before those after it."""
        read = [x for link in loop.links for x in link.ins[:1] if isinstance(x, Value) and x.id in scope]
        if (x := min(read, key=lambda x: x.size_bytes, default=None)) is not None:  # the smallest: it may be copied
            i, s = self.operand(scope, loop, x)
            scope[i][s] = self.turns.held_up(scope[i][s])
        self.op(loop, scope)
        self.turns.end([y for v in loop.results for y in scope.get(v.id, {}).values()])

    def pass_together(self, scope: Scope, keys: Sequence[tuple[int, Signature]]) -> None:
        """What reads one of these values from now on waits for all of them."""
        for (i, s), y in zip(keys, lax.optimization_barrier([scope[i][s] for i, s in keys]), strict=True):
            scope[i][s] = y

    def stored_bytes(self, x: Any, signature: Signature) -> int:
        """Bytes that a device stores of a value."""
        return x.size * x.dtype.itemsize

    def compute(self, scope: Scope, op: Op, ins: Sequence[Signature], outs: Sequence[Signature]) -> Sequence[Any]:
        """Run one op."""
        return self.on_pieces(op, ins, outs, [self.read(scope, x, s) for x, s in zip(op.ins, ins, strict=True)])

    def on_pieces(
        self, op: Op, ins: Sequence[Signature], outs: Sequence[Signature], arguments: Sequence[Any]
    ) -> Sequence[Any]:
        """Run one op on local pieces."""
        rule, p = lookup(op.name), self.placement
        codes, shapes = tuple([_code(s) for s in ins]), tuple([x.shape for x in arguments])
        padded = False
        for x, stored, code in zip(op.ins, shapes, codes, strict=True):
            padded = padded or is_padded(stored, x.shape, code, p.shape)
        if rule is not None and (padded or rule.local is not None):
            stored = tuple(stored_shape(v.shape, s, p.shape) for v, s in zip(op.outs, outs, strict=True))
            local = self.local(p.axis_names, p.shape, codes, tuple(map(_code, outs)), shapes, stored, p.flat_ranks)
            if padded:
                arguments = mask_reduced(op, rule.factors(op), local, arguments)
            if rule.local is not None:
                y = rule.local(op, local, *arguments)
                return y if isinstance(y, list | tuple) else [y]
        y = op.primitive.bind(*arguments, **op.params)
        return y if op.primitive.multiple_results else [y]

    def body(
        self, graph: Graph, arguments: Sequence[tuple[Value, Signature, Any]], results: Callable[[Scope], list[Any]]
    ) -> list[Any]:
        """Run a body in a scope of its own; the results are read there."""
        scope: Scope = {}
        for v, s, x in arguments:
            self.define(scope, v, s, x)
        before, self.turns = self.turns, self.turns_in(graph)
        self.graph(graph, scope)
        found, self.turns = results(scope), before
        return found

    def typed(self, scope: Scope, atom: Atom, signature: Signature, like: Any) -> Any:
        """A loop's result with exactly the dtype and weak type of what it replaces."""
        x = self.read(scope, atom, signature)
        return x if jax.typeof(x) == jax.typeof(like) else lax.convert_element_type(x, like.dtype)


def _whole(signature: Signature) -> Signature:
    return Signature(tuple(broadcast if isinstance(c, Partial) else c for c in signature))


@functools.lru_cache(maxsize=4096)
def _code(signature: Signature) -> Code:
    return tuple(c.dim if isinstance(c, Split) else B for c in signature)


def _way_to_make(
    op: Op, result: int, code: Code, axis_sizes: tuple[int, ...]
) -> tuple[tuple[Signature, ...], tuple[Signature, ...]]:
    """Operand and result signatures of an op without decision, given one result's."""
    rule = lookup(op.name)
    factors = rule.factors(op) if rule is not None else whole(op)
    uneven = not is_even(op.outs[result].shape, signature_of(code), axis_sizes)
    for s in strategies(factors, axis_sizes, (False,) * len(factors.linear), uneven):
        if s.outs[result] == code:
            return tuple(map(signature_of, s.ins)), tuple(map(signature_of, s.outs))
    raise PlanError(f"{op} cannot be made as ({signature_of(code)})")
