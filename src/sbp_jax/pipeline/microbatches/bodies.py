"""How control flow runs on parts of the batch: what enters a body, what a loop carries, what branches join."""

from collections.abc import Sequence
from typing import Protocol

from ...rules.widen import B
from ...trace import Atom, Op, Structured
from .units import Unit, nodes_of


class Cutter(Protocol):
    """What cuts a step, as bodies need it: ``code`` has the signatures in time that are known, by value id."""

    code: dict[int, int]

    def link(self, op: Op, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Say how an op runs: the signatures of its operands and of its results."""

    def of(self, x: Atom) -> int:
        """The signature of an operand."""
        ...

    def body(self, graph_ops: Sequence[Unit]) -> bool:
        """Choose how the ops of a body run, if they can."""
        ...


def whole(c: Cutter, unit: Unit) -> None:
    """An op of a body that depends on no part of the batch: whole, like all in it."""
    for node in nodes_of(unit):
        c.link(node, (B,) * len(node.ins), (B,) * len(node.outs))


def _scan(c: Cutter, unit: Structured) -> bool:
    enter, carry, unstack, stack = (unit.roles[r] for r in ("enter", "carry", "unstack", "stack"))
    for op in enter:
        c.link(op, (c.of(op.ins[0]),), (c.of(op.ins[0]),))
    for op in unstack:
        d = c.of(op.ins[0])
        if d == 0:
            return False
        c.link(op, (d,), (d - 1 if d > 0 else d,))
    if not _carried(c, carry, unit.bodies[0].ops):
        return False
    for op in stack:
        d = c.of(op.ins[0])
        c.link(op, (d,), (d + 1 if d >= 0 else d,))
    return True


def _carried(c: Cutter, carry: Sequence[Op], ops: Sequence[Unit]) -> bool:
    """Signatures of what a loop carries, that its body gives back as it takes them."""
    held = [c.of(op.ins[0]) for op in carry]
    for _ in range(len(carry) + 1):
        for op, code in zip(carry, held, strict=True):
            c.code.update((v.id, code) for v in op.outs)
        if not c.body(ops):
            return False
        given = [c.of(op.ins[1]) for op in carry]
        if given == held:
            for op, code in zip(carry, held, strict=True):
                c.link(op, (code,) * len(op.ins), (code,) * len(op.outs))
            return True
        # What begins whole can be cut, or be a term of a sum; what is cut or a sum stays so.
        wider = [b if a == B else a for a, b in zip(held, given, strict=True)]
        if wider == held:
            return False
        held = wider
    return False


def _while(c: Cutter, unit: Structured) -> bool:
    for role in ("cond_enter", "body_enter"):
        for op in unit.roles[role]:
            c.link(op, (c.of(op.ins[0]),), (c.of(op.ins[0]),))
    cond, loop = unit.bodies
    if not _carried(c, unit.roles["carry"], loop.ops) or not c.body(cond.ops):
        return False
    (predicate,) = unit.roles["predicate"]
    c.link(predicate, (B,), ())
    return c.of(predicate.ins[0]) == B


def _cond(c: Cutter, unit: Structured) -> bool:
    (predicate,) = unit.roles["predicate"]
    if c.of(predicate.ins[0]) != B:
        return False
    c.link(predicate, (B,), ())
    for k, body in enumerate(unit.bodies):
        for op in unit.roles[f"enter{k}"]:
            c.link(op, (c.of(op.ins[0]),), (c.of(op.ins[0]),))
        if not c.body(body.ops):
            return False
    for op in unit.roles["join"]:
        codes = {c.of(x) for x in op.ins}
        code = max(codes) if max(codes) >= 0 else min(codes)
        if len(codes - {B}) > 1:
            return False
        c.link(op, (code,) * len(op.ins), (code,))
    return True


def _barrier(c: Cutter, unit: Structured) -> bool:
    for op in unit.links:
        c.link(op, (c.of(op.ins[0]),), (c.of(op.ins[0]),))
    return True


BODIES = {"scan": _scan, "while": _while, "cond": _cond, "barrier": _barrier}
