"""Which values can be partial at all, so that strategies nobody can use are never looked at."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...rules import Factors
from ...signature import Partial, ReduceOp, Signature
from ...trace import Op, Program, Value


def partial_kinds(program: Program, factors: Sequence[Factors]) -> dict[int, set[ReduceOp]]:
    """By value id: the reductions it can be partial in without being made so on purpose.

    A sum arises where a split factor is reduced, and passes where an op is linear. Strategies that take a
    partial operand that can only be whole gain nothing: the result could be made partial afterwards, for free.
    """
    kinds: dict[int, set[ReduceOp]] = {}
    # What a factor map reduces, once for all ops that share it.
    reduced: dict[int, frozenset[ReduceOp]] = {}
    gives: frozenset[ReduceOp] | None
    again = _has_loops(program)
    changed = True
    while changed:
        changed = False
        for op, f in zip(program.nodes, factors, strict=True):
            if not f.linear and not f.reduced:
                continue
            gives = reduced.get(id(f))
            if gives is None:
                gives = reduced[id(f)] = frozenset(kind for factor, kind in f.reduced if factor not in f.blocked)
            if f.linear:
                useful = useful_linear(op, f, kinds)
                gives = gives.union(item.gives for item, yes in zip(f.linear, useful, strict=True) if yes)
            if gives and op.name != "sbp.input":
                for v in op.outs:
                    if gives - kinds.setdefault(v.id, set()):
                        kinds[v.id] |= gives
                        changed = again
    return kinds


def _pinned_sums(params: Mapping[str, Any]) -> set[ReduceOp]:
    """The reductions that a pin asks its value to be partial in."""
    if "constraint" in params:
        return {"sum"} if params["constraint"].partial else set()
    pin = params["signature"]
    if isinstance(pin, Signature):
        return {c.op for c in pin if isinstance(c, Partial)}
    return {"sum"} if getattr(getattr(pin, "spec", pin), "unreduced", ()) else set()


def _has_loops(program: Program) -> bool:
    """Whether any node reads what a later one makes."""
    made: set[int] = set()
    for op in program.nodes:
        if any(isinstance(x, Value) and x.id not in made for x in op.ins):
            return True
        made.update([v.id for v in op.outs])
    return False


def useful_linear(op: Op, factors: Factors, kinds: dict[int, set[ReduceOp]]) -> tuple[bool, ...]:
    """Which linearities have at least one operand that can be partial in the reduction they take.

    A global tensor given or wanted partial is so in the ``kinds`` its node names; a pin says it in its signature.
    """

    if not factors.linear:
        return ()

    asked = op.params.get("kinds", ()) if op.primitive is None else ()
    if op.name == "sbp.pin":
        asked = _pinned_sums(op.params)
    partial: dict[int, set[ReduceOp]] = {}
    if kinds:
        for k, x in enumerate(op.ins):
            if isinstance(x, Value) and (found := kinds.get(x.id)):
                partial[k] = found
    if not partial and not asked:
        return tuple([not item.operands for item in factors.linear])  # what takes no terms makes them
    return tuple([
        not item.operands or item.takes in asked or any(item.takes in partial.get(i, ()) for i in item.operands)
        for item in factors.linear
    ])  # fmt: skip
