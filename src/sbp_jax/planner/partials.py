"""Which values can be partial at all, so that strategies nobody can use are never looked at."""

from collections.abc import Sequence

from ..rules import Factors
from ..signature import Partial, ReduceOp
from ..trace import Op, Program, Value


def partial_kinds(program: Program, factors: Sequence[Factors]) -> dict[int, set[ReduceOp]]:
    """By value id: the reductions it can be partial in without being made so on purpose.

    A sum arises where a split factor is reduced, and passes where an op is linear. Strategies that take a
    partial operand that can only be whole gain nothing: the result could be made partial afterwards, for free.
    """
    kinds: dict[int, set[ReduceOp]] = {}
    changed = True
    while changed:
        changed = False
        for op, f in zip(program.nodes, factors, strict=True):
            gives: set[ReduceOp] = {kind for factor, kind in f.reduced if factor not in f.blocked}
            for item, useful in zip(f.linear, useful_linear(op, f, kinds), strict=True):
                if useful:
                    gives.add(item.gives)
            for v in op.outs:
                if op.name != "sbp.input" and gives - kinds.setdefault(v.id, set()):
                    kinds[v.id] |= gives
                    changed = True
    return kinds


def useful_linear(op: Op, factors: Factors, kinds: dict[int, set[ReduceOp]]) -> tuple[bool, ...]:
    """Which linearities have at least one operand that can be partial in the reduction they take.

    A global tensor given or wanted partial is so in the ``kinds`` its node names; a pin says it in its signature.
    """

    if not factors.linear:
        return ()

    def can(x: object, kind: ReduceOp) -> bool:
        return isinstance(x, Value) and kind in kinds.get(x.id, ())

    asked = op.params.get("kinds", ()) if op.primitive is None else ()
    if op.name == "sbp.pin":
        asked = {c.op for c in op.params["signature"] if isinstance(c, Partial)}
    return tuple(
        item.takes in asked or any(can(op.ins[i], item.takes) for i in item.operands) for item in factors.linear
    )
