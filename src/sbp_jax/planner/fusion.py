"""Values that never reach memory: XLA computes an element-wise op inside the kernel of what reads its result."""

from collections.abc import Mapping, Sequence

from ..rules import Factors
from ..trace import Op, Program


def is_pointwise(op: Op, factors: Factors) -> bool:
    """Every result dim is one factor (or size 1) and operands repeat them in place; nothing is mixed."""
    if op.primitive is None or op.name == "sbp.pin" or not op.outs or factors.blocked or factors.reduced:
        return False
    dims = factors.outs[0]
    if any(len(d) > 1 for d in dims) or any(out != dims for out in factors.outs[1:]):
        return False
    return all(x == () or (len(x) == len(dims) and all(a in ((), b) for a, b in zip(x, dims, strict=True)))
               for x in factors.ins)  # fmt: skip


def fused_values(program: Program, factors: Sequence[Factors], cell_of: Mapping[int, int]) -> set[int]:
    """Ids of values made by an element-wise op and read inside their own cell only, or once, by an element-wise op or
    a reduction."""
    consumers = program.consumers()
    elementwise = {op.index: is_pointwise(op, f) for op, f in zip(program.nodes, factors, strict=True)}
    fused: set[int] = set()
    for op in program.nodes:
        if not elementwise[op.index]:
            continue
        for v in op.outs:
            users = [u for u, _ in consumers.get(v.id, ())]
            together = {cell_of.get(u.index) for u in users} == {cell_of.get(op.index)}
            once = len(users) == 1 and (elementwise[users[0].index] or users[0].name.startswith("reduce_"))
            if together or once:
                fused.add(v.id)
    return fused
