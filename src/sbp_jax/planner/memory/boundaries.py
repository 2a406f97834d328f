"""What lies in one buffer on both sides of a boundary: what a loop hands on, what branches of a conditional change.

XLA's loops and conditionals work in the buffers that they are given. What a body makes last of what is carried is in
the buffer that it is carried in; what a branch makes of an operand which another branch hands through is in the buffer
of that operand, if nothing reads it after the conditional (XLA copies results and removes copies that nothing stands
in the way of: ``CopyInsertion``). What a body makes of nothing that changes there is made once, before the loop. What
is written over in place, one change after the other, is in the buffer of the last, say a result's.
"""

from collections.abc import Mapping, Sequence

from ...trace import Graph, Op, Structured, Value
from .kernels import IN_PLACE
from .lifetime import Lifetime

# Not taken out of a loop for themselves (XLA: ``WhileLoopInvariantCodeMotion``).
_LEFT_INSIDE = frozenset("""
    broadcast_in_dim iota reshape squeeze expand_dims rev slice transpose stop_gradient copy copy_p optimization_barrier
    sbp.pin
""".split())  # fmt: skip


def spans(graph: Graph) -> dict[int, tuple[int, int]]:
    """By node at a boundary: the first and the last node of what it bounds."""
    found: dict[int, tuple[int, int]] = {}

    def last_of(graph: Graph) -> int:
        end = 0
        for op in graph.ops:
            if isinstance(op, Op):
                end = max(end, op.index)
                continue
            links = [link.index for link in op.links]
            whole = min(links), max([*links, *map(last_of, op.bodies)])
            found.update(dict.fromkeys(links, whole))
            end = max(end, whole[1])
        return end

    last_of(graph)
    return found


def join_in_place(
    graph: Graph, found: Mapping[int, Lifetime], spans: Mapping[int, tuple[int, int]],
    readers: Mapping[int, Sequence[tuple[Op, int]]],
) -> None:  # fmt: skip
    """Tell the lifetimes (``inside``) of what a boundary's other side has the buffer of."""
    for op in reversed(graph.ops):
        if isinstance(op, Op):
            if op.name in IN_PLACE and isinstance(x := op.ins[0], Value) and x.shape == op.outs[0].shape:
                old, new = found[x.id], found[op.outs[0].id]
                is_written_over = old.made <= old.kept == new.made - 1 and not (old.resident or old.named)
                old.inside |= is_written_over and (new.home or new.inside)
            continue
        if op.kind == "cond":
            _join(op, found, readers)
        elif op.kind in ("scan", "while"):
            _carry(op, found, spans, readers)
        for body in op.bodies:
            join_in_place(body, found, spans, readers)


def hold_invariants(graph: Graph, found: Mapping[int, Lifetime], spans: Mapping[int, tuple[int, int]]) -> None:
    """What a loop's body computes of constants of the loop alone is held from the loop's begin to its end."""
    for op in graph.ops:
        if isinstance(op, Op):
            continue
        for body in op.bodies:
            if op.kind in ("scan", "while"):
                for v in _taken_out(op, body):
                    life = found[v.id]
                    begin, final = spans[op.links[0].index]
                    life.made = life.whole = begin
                    life.last, life.kept, life.fluid = max(life.last, final), max(life.kept, final), False
            hold_invariants(body, found, spans)


def _taken_out(loop: Structured, body: Graph) -> Sequence[Value]:
    """What is computed before the loop, and read in it."""
    constant = {link.outs[0].id for role, links in loop.roles.items() if role.endswith("enter") for link in links}
    out: dict[int, Value] = {}
    read: set[int] = set()
    for op in body.ops:
        reads = [x.id for x in op.reads]
        if not isinstance(op, Op) or op.primitive is None or not constant.issuperset(reads):
            read.update(reads)
            continue
        constant.update(v.id for v in op.outs)
        if op.name not in _LEFT_INSIDE:
            out.update((v.id, v) for v in op.outs if v.shape)
    read.update(x.id for link in loop.links for x in link.reads)
    return [v for i, v in out.items() if i in read]


def _carry(
    op: Structured, found: Mapping[int, Lifetime], spans: Mapping[int, tuple[int, int]],
    readers: Mapping[int, Sequence[tuple[Op, int]]],
) -> None:  # fmt: skip
    """What is made where a loop ends is counted as its result; what its condition reads, as what its body does."""
    for carry in op.roles["carry"]:
        new = carry.ins[1]
        for v in carry.outs[2:]:
            mine, body = found[v.id], found[carry.outs[0].id]
            mine.inside = True
            body.kept, body.last = max(body.kept, mine.kept), max(body.last, mine.kept)
        if isinstance(new, Value) and len(readers.get(new.id, ())) == 1:
            life, read = found[new.id], found[carry.outs[0].id].last
            at_the_end = life.made == life.kept == spans[carry.index][1]
            over_it = life.kept >= life.made > read or (life.kept >= life.made == read and life.fluid)
            if (at_the_end or over_it) and not life.named:
                life.inside = True


def _join(op: Structured, found: Mapping[int, Lifetime], readers: Mapping[int, Sequence[tuple[Op, int]]]) -> None:
    """What branches make of an operand that another branch hands through."""
    entered = {e.outs[0].id: e for role, es in op.roles.items() if role.startswith("enter") for e in es}
    taken: set[int] = set()
    for join in op.roles["join"]:
        handed = [e.ins[0] for x in join.ins if isinstance(x, Value) and (e := entered.get(x.id)) is not None]
        passed = {x.id for x in handed if isinstance(x, Value)}
        for i in passed - taken:
            source = found[i]
            after = [u for u, _ in readers.get(i, ()) if u not in entered.values()]
            if after or source.resident or source.value.shape != join.outs[0].shape:
                continue
            taken.add(i)
            for branch, x in enumerate(join.ins):
                if isinstance(x, Value) and x.id not in entered and _replaces(x, i, op, branch, found):
                    found[x.id].inside = True


def _replaces(x: Value, source: int, op: Structured, branch: int, found: Mapping[int, Lifetime]) -> bool:
    """Whether a branch's result is made when the branch is done with an operand, or written over it."""
    life = found[x.id]
    if life.named or life.kept < life.made:
        return False
    own = [e.outs[0].id for e in op.roles[f"enter{branch}"] if isinstance(e.ins[0], Value) and e.ins[0].id == source]
    last = max([found[i].last for i in own if i in found], default=-1)
    return last < life.made or (last == life.made and life.fluid)
