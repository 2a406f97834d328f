"""A program with substitutions applied: a new one, its ops in an order they can run in. The old one stays as it is."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ...errors import PlanError
from ...trace import Atom, Graph, Op, Program, Structured, Value, build, fingerprint
from ...trace.expand import remove_dead
from .substitution import Change, Scope, Substitution, lookup

# New ops of these primitives take the place of the same ones that are there already, and the other way round.
_SHARED = {"concatenate", "slice", "transpose", "reshape", "squeeze", "broadcast_in_dim"}


class NoMatch(PlanError):
    """A substitution does not fit where it is to be applied."""


@dataclass(frozen=True, slots=True)
class Move:
    """A substitution at one or several places, as nodes of the program that it is applied to."""

    substitution: str
    sites: tuple[tuple[int, ...], ...]


def apply(program: Program, substitution: Substitution, sites: Sequence[Sequence[int]]) -> tuple[Program, list[int]]:
    """The program with a substitution applied at ``sites`` (indices of nodes), which have no node in common.

    Also returns, for each node of the new program, the node of the old one that it is; -1 for new ones. Raises
    ``NoMatch`` where it does not fit, or where what it puts together cannot be computed together.
    """
    return _Writer(program, substitution, sites).run()


def replay(program: Program, moves: Sequence[Move], expected: str = "") -> tuple[Program, list[int]]:
    """The program after moves that a search took, and the origin of its nodes.

    ``expected``: the fingerprint that it must have then. ``PlanError`` where it has another one.
    """
    origin = list(range(len(program.nodes)))
    for move in moves:
        program, of = apply(program, lookup(move.substitution), move.sites)
        origin = [origin[o] if o >= 0 else -1 for o in of]
    if expected and fingerprint(program) != expected:
        raise PlanError(
            f"the plan's substitutions lead to another program ({fingerprint(program)}) than when it was made "
            f"({expected}): it was made by another version of sbp_jax or jax. Plan again"
        )
    return program, origin


class _Writer:
    def __init__(self, program: Program, substitution: Substitution, sites: Sequence[Sequence[int]]) -> None:
        self.program, self.substitution = program, substitution
        self.sites = [tuple(site) for site in sites]
        self.count = max((v.id for op in program.nodes for v in op.outs), default=0)
        self.renames: dict[int, Atom] = {}
        self.origin: dict[Op, int] = {}
        self.done = 0

    def run(self) -> tuple[Program, list[int]]:
        p = self.program
        if any(not 0 <= k < len(p.nodes) for site in self.sites for k in site):
            raise NoMatch(f"{self.substitution.name!r} is to be applied to nodes that the program does not have")
        touched = [k for site in self.sites for k in site]
        if len(touched) != len(set(touched)):
            raise NoMatch(f"{self.substitution.name!r} is to be applied to one node twice")
        inputs = [self.op(op) for op in p.input_ops]
        graph = self.graph(p.graph)
        if self.done < len(self.sites):
            raise NoMatch(f"{self.substitution.name!r} is to be applied to arguments, results or boundaries of loops")
        outputs = [self.op(op) for op in p.output_ops]
        names = {i: self.last(x) for i, x in self.renames.items()}
        for op in outputs:
            op.rename(names)
        _rename(graph, names)
        remove_dead(graph)
        new = Program(graph, inputs, outputs, p.constants)
        new.donated, new.weak_results, new.argument_names = list(p.donated), p.weak_results, p.argument_names
        return new, [self.origin.get(op, -1) for op in new.nodes]

    def last(self, x: Atom) -> Atom:
        """What a value is called in the end."""
        while isinstance(x, Value) and x.id in self.renames:
            x = self.renames[x.id]
        return x

    def op(self, op: Op) -> Op:
        new = Op(op.name, op.ins, op.outs, op.params, op.primitive, op.info, op.label, has_effect=op.has_effect)
        self.origin[new] = op.index
        return new

    def copy(self, op: Op | Structured) -> Op | Structured:
        if isinstance(op, Op):
            return self.op(op)
        roles = {role: [self.op(link) for link in links] for role, links in op.roles.items()}
        return Structured(op.kind, op.params, tuple(self.graph(b) for b in op.bodies), roles, op.info)

    def graph(self, graph: Graph) -> Graph:
        """A graph and its bodies, with what is to be changed in it."""
        here = {op.index for op in graph.ops if isinstance(op, Op)}
        sites = [site for site in self.sites if site[0] in here]
        ops = [(k, self.copy(op)) for k, op in enumerate(graph.ops)]
        self.done += len(sites)
        if sites:
            ops = self.changed(graph, sites, ops)
        return Graph(list(graph.inputs), list(graph.outputs), [op for _, op in ops], graph.times)

    def changed(
        self, graph: Graph, sites: Sequence[tuple[int, ...]], ops: list[tuple[int, Op | Structured]]
    ) -> list[tuple[int, Op | Structured]]:
        scope, nodes = Scope(graph), self.program.nodes
        given: dict[int, tuple[int, list[Op]]] = {}
        for site in sites:
            change = self.substitution.change(scope, tuple(nodes[k] for k in site))
            if change is None:
                raise NoMatch(f"{self.substitution.name!r} does not fit at node(s) {', '.join(map(str, site))}")
            first = min(site)
            new = self.new_ops(change, nodes[first].info, graph.times)
            for v in change.gives:
                if v.id in given:
                    raise NoMatch(f"{self.substitution.name!r} is to make {v} twice")
                given[v.id] = (first, new)
        ordered: list[tuple[int, Op | Structured]] = []
        written: set[int] = set()
        for k, op in ops:
            replaced = [given[v.id] for v in op.outs if v.id in given] if isinstance(op, Op) else []
            for _, new in replaced:
                if id(new) not in written:
                    written.add(id(new))
                    ordered += [(k, x) for x in new]
            if not replaced:
                ordered.append((k, op))
            elif isinstance(op, Op) and len(replaced) != len(op.outs):
                raise NoMatch(f"{self.substitution.name!r} replaces only some of the results of {op.name}")
        names = {i: self.last(x) for i, x in self.renames.items()}
        for _, op in ordered:
            op.rename(names)
        return self.shared(_in_order(ordered))

    def new_ops(self, change: Change, info: Any, times: float) -> list[Op]:
        """The ops of a change; values that are merely others already get their names."""
        shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in change.reads]
        made = build(jax.make_jaxpr(lambda *x: tuple(change.make(*x)))(*shapes))
        known: dict[int, Atom] = {op.outs[0].id: v for op, v in zip(made.input_ops, change.reads, strict=False)}
        results = [op.ins[0] for op in made.output_ops]
        if made.constants or len(results) != len(change.gives):
            raise NoMatch(f"{self.substitution.name!r} makes {len(results)} values for {len(change.gives)}")
        inner = {v.id for op in made.graph.ops if isinstance(op, Op) for v in op.outs}
        for x, v in zip(results, change.gives, strict=True):
            if x.shape != v.shape or x.dtype != v.dtype:
                raise NoMatch(f"{self.substitution.name!r} makes {x} for {v}")
            if isinstance(x, Value) and x.id in inner and x.id not in known:
                known[x.id] = v
            else:
                source = known[x.id] if isinstance(x, Value) else x
                if source.weak != v.weak:
                    raise NoMatch(f"{self.substitution.name!r} makes a value of another weak type than {v}")
                self.renames[v.id] = source
        new = []
        for op in made.graph.ops:
            if not isinstance(op, Op):
                raise NoMatch(f"{self.substitution.name!r} makes control flow")
            for v in op.outs:
                if v.id not in known:
                    self.count += 1
                    known[v.id] = Value(self.count, v.shape, v.dtype, times, weak=v.weak)
            outs: Any = tuple(known[v.id] for v in op.outs)
            new.append(Op(op.name, op.ins, outs, op.params, op.primitive, info))
            new[-1].rename(known)
        return new

    def shared(self, ops: list[tuple[int, Op | Structured]]) -> list[tuple[int, Op | Structured]]:
        """Of equal ops that only move elements the first one alone."""
        seen: dict[Any, Op] = {}
        kept = []
        own: dict[int, Atom] = {}
        for k, op in ops:
            op.rename(own)
            if isinstance(op, Op) and op.name in _SHARED:
                key = _key(op)
                first = seen.setdefault(key, op)
                if first is not op and all(a.weak == b.weak for a, b in zip(first.outs, op.outs, strict=True)):
                    own |= {v.id: w for v, w in zip(op.outs, first.outs, strict=True)}
                    continue
            kept.append((k, op))
        self.renames |= own
        return kept


def _key(op: Op) -> Any:
    ins = tuple(x.id if isinstance(x, Value) else (str(x.dtype), np.asarray(x.literal).tobytes()) for x in op.ins)
    return op.name, ins, tuple(sorted((k, str(v)) for k, v in op.params.items())), str(op.outs[0].dtype)


def _rename(graph: Graph, names: Mapping[int, Atom]) -> None:
    """Other values in a graph and its bodies."""
    graph.outputs[:] = [names.get(x.id, x) if isinstance(x, Value) else x for x in graph.outputs]
    for op in graph.ops:
        op.rename(names)
        if isinstance(op, Structured):
            for body in op.bodies:
                _rename(body, names)


def _in_order(ops: list[tuple[int, Op | Structured]]) -> list[tuple[int, Op | Structured]]:
    """Ops after what they read, otherwise in the order given; those with effects stay in theirs.

    Raises ``NoMatch`` where ops wait for each other.
    """
    maker = {v.id: j for j, (_, op) in enumerate(ops) for v in _made(op)}
    waiting: list[int] = []
    readers: list[list[int]] = [[] for _ in ops]
    effect: int | None = None
    for j, (_, op) in enumerate(ops):
        before = {maker[x.id] for x in op.reads if x.id in maker}
        if _has_effect(op):
            before |= set() if effect is None else {effect}
            effect = j
        waiting.append(len(before))
        for b in before:
            readers[b].append(j)
    ready = [j for j, n in enumerate(waiting) if n == 0]
    found = []
    while ready:
        j = heapq.heappop(ready)
        found.append(ops[j])
        for r in readers[j]:
            waiting[r] -= 1
            if waiting[r] == 0:
                heapq.heappush(ready, r)
    if len(found) < len(ops):
        raise NoMatch("what is to be computed together depends on each other")
    return found


def _made(op: Op | Structured) -> Iterator[Value]:
    """The values that the scope around gets of an op: of control flow, those of its links."""
    if isinstance(op, Op):
        yield from op.outs
    else:
        for link in op.links:
            yield from link.outs


def _has_effect(op: Op | Structured) -> bool:
    if isinstance(op, Op):
        return op.has_effect
    return any(_has_effect(inner) for body in op.bodies for inner in body.ops)


def places(program: Program, substitution: Substitution) -> Iterator[tuple[Scope, tuple[Op, ...]]]:
    """Where a substitution fits, with the scope; the program itself before the bodies in it."""
    graphs = [program.graph]
    while graphs:
        graph = graphs.pop(0)
        scope = Scope(graph)
        for site in substitution.sites(scope):
            yield scope, site
        graphs += [body for op in graph.ops if isinstance(op, Structured) for body in op.bodies]
