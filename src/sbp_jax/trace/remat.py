"""Rematerialisation as a change of the graph: what is made before a point is made again where it is read after it.

A step's *turn* is the point where its forward part ends: what that part left for the backward one is held there. The
nodes to recompute are not held over it: a reader beyond the turn gets a copy of the node, made just before it from
what is held, behind an optimisation barrier as ``jax.checkpoint``'s (XLA would otherwise see the same computation
twice and keep the first). Where one scan collects what another reads slice by slice, the copy is made inside the
second one's body, and the slices are not collected.

Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", arXiv:1604.06174.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from .copies import Renamed, copied, copied_op
from .expand import remove_dead
from .graph import Atom, Graph, Op, Program, Structured, Value

# What is so small a part of what is made of it goes through every barrier: copies wait for it, and it costs nothing.
_LITTLE = 0.01


def recompute(program: Program, turn: int, nodes: Collection[int]) -> tuple[Program, list[int]]:
    """The program in which ``nodes`` (indices up to ``turn``) are made again for their readers beyond it.

    Whatever the nodes, an argument that ops on both sides compute with is another value beyond the turn, an equal one:
    its copy in another signature (a parameter gathered for its layer) is not held from one side to the other.

    Also returns, for each node of the new program, the node of the old one that it is, or is a copy of; -1 for
    barriers and new links of scans.
    """
    return _Rewriter(program, turn, nodes).run()


def read_anew(program: Program, turn: int) -> list[Value]:
    """What ``recompute`` makes another value beyond the turn, whatever the nodes: arguments read on both sides."""
    found: dict[int, Value] = {}
    graphs = [program.graph]
    while graphs:
        graph = graphs.pop()
        twice = _read_early(graph, turn)
        for op in graph.ops:
            first, last = op.span
            if isinstance(op, Op) and first > turn:
                found.update((x.id, x) for x in _computed_with(op, op.reads, twice))
            if first <= turn < last and isinstance(op, Structured):
                graphs += op.bodies
    return list(found.values())


def _read_early(graph: Graph, turn: int) -> set[int]:
    """Arguments of a graph, scalars aside, that ops up to the turn read."""
    arguments = {v.id for v in graph.inputs if v.shape}
    return arguments & {x.id for op in graph.ops if op.span[1] <= turn for x in op.reads}


def _computed_with(op: Op, reads: Sequence[Value], some: Collection[int]) -> list[Value]:
    """Which of ``some`` an op reads to make something else of them; an update reads them as they are."""
    return [x for x in reads if x.id in some and all(v.shape != x.shape for v in op.outs)]


class _Rewriter:
    """Copies a program, and nodes in it once more where they are read late. The old program stays as it is."""

    def __init__(self, program: Program, turn: int, nodes: Collection[int]) -> None:
        self.program, self.turn = program, turn
        early = [op for op in program.nodes if op.index <= turn]
        self.dropped = {v.id: op for op in early if op.index in nodes for v in op.outs}
        self.early = {v.id for op in early for v in op.outs}
        self.count = max((v.id for op in program.nodes for v in op.outs), default=0)
        self.origin: dict[Op, int] = {}
        self.arguments = {v.id for op in program.input_ops for v in op.outs}
        self.behind: dict[int, Value] = {}  # what late readers read behind a barrier, by the value before it

    def run(self) -> tuple[Program, list[int]]:
        p = self.program
        inputs = [self.op(op, {}) for op in p.input_ops]
        graph = self.region(p.graph)
        remove_dead(graph)
        new = Program(graph, inputs, [self.op(op, {}) for op in p.output_ops], p.constants)
        new.donated, new.weak_results, new.argument_names = list(p.donated), p.weak_results, p.argument_names
        return new, [self.origin.get(op, -1) for op in new.nodes]

    def region(self, graph: Graph) -> Graph:
        """A graph with the turn in it: ops before it as they are, ops after it reading what is made again."""
        ops: list[Op | Structured] = []
        renamed: dict[int, Atom] = {}
        collected: dict[int, tuple[Structured, Op]] = {}
        twice = _read_early(graph, self.turn)
        for op in graph.ops:
            first, last = op.span
            if last <= self.turn:
                ops.append(new := self.copy(op, {}))
                if isinstance(new, Structured) and new.kind == "scan":
                    collected.update((link.outs[0].id, (new, link)) for link in new.roles["stack"])
            elif first > self.turn:
                pair = _Pair.between(self, collected, op, graph.times)
                reads = [x for x in op.reads if pair is None or x.id not in pair.slices]
                ops += self.again(reads, renamed, graph.times)
                if isinstance(op, Op):
                    ops += self.anew(_computed_with(op, reads, twice), reads, renamed, graph.times)
                ops.append(new := self.copy(op, renamed))
                if pair is not None and isinstance(new, Structured):
                    pair.rewrite(new)
            else:  # a loop around both, over micro-batches say
                ops.append(self.copy(op, {}, self.region))
        return Graph(list(graph.inputs), list(graph.outputs), ops, graph.times)

    def again(self, reads: Sequence[Value], renamed: dict[int, Atom], times: float) -> list[Op | Structured]:
        """What of ``reads`` is dropped, made again behind a barrier; ``renamed`` learns it.

        One of ``reads`` that is made late goes through the barrier too: the copies wait until it is there, those of
        little, as random bits of a key, included. Whoever reads later what they are made of reads it behind the
        barrier, but for arguments: one array is held so. In front of it XLA would hold another one for those readers,
        say a query turned for the products of the forward part, which those of the backward part want in the same form.
        """
        order = self.closure(reads, renamed)
        if not order:
            return []
        own = {v.id for op in order for v in op.outs}
        little = _LITTLE * max(v.size_bytes for op in order for v in op.outs)
        held = {x.id: x for op in order for x in op.ins if isinstance(x, Value) and x.id not in own}
        held = {i: x for i, x in held.items() if i not in renamed or i in self.behind or x.size_bytes <= little}
        late = self.late(reads, renamed)
        now = [self.behind.get(i, renamed.get(i, x)) for i, x in held.items()]
        links = [self.link("sbp.barrier", x, times, order[0]) for x in now if isinstance(x, Value)]
        waiting = dict(zip(held, [link.outs[0] for link in links], strict=True))
        inside = {**renamed, **waiting}
        large = {i: v for i, v in waiting.items() if held[i].size_bytes > little}
        self.behind |= {i: v for i, v in large.items() if i not in self.arguments}
        renamed.update((i, self.behind[i]) for i in large if i in self.behind)
        if late is not None:
            links.append(self.link("sbp.barrier", late[1], times, order[0]))
            renamed[late[0]] = inside[late[0]] = links[-1].outs[0]
        ops: list[Op | Structured] = [Structured("barrier", {}, (), {"barrier": links}, order[0].info)] if links else []
        for op in order:
            ops.append(self.clone(op, inside, times))
            renamed.update((v.id, inside[v.id]) for v in op.outs)
        return ops

    def anew(
        self, inputs: Sequence[Value], reads: Sequence[Value], renamed: dict[int, Atom], times: float
    ) -> list[Op | Structured]:
        """Arguments as values of their own from here on, when something that their reader waits for is there."""
        new = {x.id: x for x in inputs if x.id not in renamed}
        late = self.late(reads, renamed)
        if not new or late is None:
            return []
        cause = Op("sbp.barrier", (), ())
        links = [self.link("sbp.barrier", x, times, cause) for x in [*new.values(), late[1]]]
        renamed.update((i, link.outs[0]) for i, link in zip([*new, late[0]], links, strict=True))
        return [Structured("barrier", {}, (), {"barrier": links})]

    def late(self, reads: Sequence[Value], renamed: Mapping[int, Atom]) -> tuple[int, Value] | None:
        """One of ``reads`` that is made late, by its id, and as it is read now: through no barrier yet, if there is."""
        found = [x for x in reads if x.id not in self.early and x.shape]
        found = [x for x in found if x.id not in renamed] or found
        now = renamed.get(found[-1].id, found[-1]) if found else None
        return (found[-1].id, now) if isinstance(now, Value) else None

    def closure(self, reads: Iterable[Atom], known: Collection[int]) -> list[Op]:
        """The dropped nodes that must run for ``reads``, in program order."""
        found: dict[int, Op] = {}
        pending = list(reads)
        while pending:
            x = pending.pop()
            if not isinstance(x, Value) or x.id in known or x.id not in self.dropped:
                continue
            op = self.dropped[x.id]
            if op.index not in found:
                found[op.index] = op
                pending += op.ins
        return [found[k] for k in sorted(found)]

    def value(self, like: Value, times: float, shape: tuple[int, ...] | None = None) -> Value:
        """A new value that looks like another."""
        self.count += 1
        return Value(self.count, like.shape if shape is None else shape, like.dtype, times, like.name, weak=like.weak)

    def link(self, name: str, x: Value, times: float, cause: Op, shape: tuple[int, ...] | None = None) -> Op:
        """A new boundary op from ``x`` to a value like it."""
        return Op(name, (x,), (self.value(x, times, shape),), info=cause.info)

    def clone(self, op: Op, inside: dict[int, Atom], times: float) -> Op:
        """An op once more, with results of its own, which ``inside`` learns."""
        new = self.op(op, inside)
        new.outs = tuple(self.value(v, times) for v in op.outs)
        inside.update((v.id, w) for v, w in zip(op.outs, new.outs, strict=True))
        return new

    def op(self, op: Op, renamed: Renamed) -> Op:
        """The op with renamed operands."""
        new = copied_op(op, renamed)
        self.note(new, op)
        return new

    def note(self, new: Op, old: Op) -> None:
        self.origin[new] = old.index

    def copy(
        self, op: Op | Structured, renamed: Renamed, body: Callable[[Graph], Graph] | None = None
    ) -> Op | Structured:
        """An op, or control flow with its links and bodies; ``renamed`` are values of the scope around it."""
        return copied(op, renamed, self.note, body)


class _Pair:
    """An early scan that collects, and the late one that reads it slice by slice.

    ``slices`` are the collected arrays that are not to be: by id, the early scan's result in its body. ``times`` is how
    often a step runs the scope that both are in.
    """

    def __init__(self, rewriter: _Rewriter, early: Structured, slices: dict[int, Value], times: float) -> None:
        self.r, self.early, self.slices, self.times = rewriter, early, slices, times

    @classmethod
    def between(
        cls, rewriter: _Rewriter, collected: Mapping[int, tuple[Structured, Op]], late: Op | Structured, times: float
    ) -> "_Pair | None":
        """The pair of a late scan with the early one that it reads dropped slices of, where there is one."""
        if not isinstance(late, Structured) or late.kind != "scan":
            return None
        found: dict[int, tuple[Structured, dict[int, Value]]] = {}
        for link in late.roles["unstack"]:
            stacked = link.ins[0]
            if not isinstance(stacked, Value) or stacked.id not in collected:
                continue
            early, source = collected[stacked.id]
            inner = source.ins[0]
            if isinstance(inner, Value) and inner.id in rewriter.dropped:
                if early.params["length"] == late.params["length"]:
                    found.setdefault(id(early), (early, {}))[1][stacked.id] = inner
        if not found:
            return None
        early, slices = max(found.values(), key=lambda pair: len(pair[1]))
        return cls(rewriter, early, slices, times)

    def rewrite(self, late: Structured) -> None:
        """The late scan's body makes the slices itself, from what it can read of the early scan's."""
        body, roles = late.bodies[0], late.roles
        wanted = {
            link.outs[0].id: self.slices[x.id]
            for link in roles["unstack"]
            if isinstance(x := link.ins[0], Value) and x.id in self.slices
        }
        roles["unstack"] = [link for link in roles["unstack"] if link.outs[0].id not in wanted]
        known: dict[int, Atom] = {}
        ops: list[Op | Structured] = []
        for op in body.ops:
            ops += self.again(op, wanted, known, late)
            ops.append(op)
        for link in (*roles["carry"], *roles["stack"]):  # a slice may go straight out of the body
            ops += self.again(link, wanted, known, late)
        body.ops[:] = ops

    def again(
        self, reader: Op | Structured, wanted: Mapping[int, Value], known: dict[int, Atom], late: Structured
    ) -> list[Op]:
        """The copies that a reader in the late body needs; it reads them from now on."""
        slices = {x.id: wanted[x.id] for x in reader.reads if x.id in wanted}
        ops = []
        for op in self.r.closure(slices.values(), known):
            for x in op.ins:
                if isinstance(x, Value) and x.id not in known:
                    known[x.id] = self.bring(x, late, op)
            ops.append(self.r.clone(op, known, late.bodies[0].times))
        reader.rename({i: known[inner.id] for i, inner in slices.items()})
        return ops

    def bring(self, x: Value, late: Structured, cause: Op) -> Atom:
        """A value of the early scan's body in the late one's: entered, or sliced, as it is there."""
        for role in ("enter", "unstack"):
            for link in self.early.roles[role]:
                if link.outs[0].id == x.id and isinstance(link.ins[0], Value):
                    return self.read(role, link.ins[0], x, late, cause)
        for link in self.early.roles["stack"]:
            if link.ins[0] is x:
                return self.read("unstack", link.outs[0], x, late, cause)
        length = self.early.params["length"]
        stack = self.r.link("sbp.stack", x, self.times, cause, (length, *x.shape))
        self.early.roles["stack"].append(stack)
        return self.read("unstack", stack.outs[0], x, late, cause)

    def read(self, role: str, outer: Value, like: Value, late: Structured, cause: Op) -> Atom:
        """The late body's value of an outer one, by a link that is there already or a new one."""
        for link in late.roles[role]:
            if link.ins[0] is outer:
                return link.outs[0]
        body = late.bodies[0]
        link = Op(f"sbp.{role}", (outer,), (self.r.value(like, body.times),), info=cause.info)
        late.roles[role].append(link)
        body.inputs.append(link.outs[0])
        return link.outs[0]
