"""The plan that moves nothing, where there is one.

Where only movement costs (eager ops), a choice in which every value is made as all its readers want it costs zero,
and nothing costs less: it needs no search, no clusters, no prices. Most eager ops are such.
"""

from collections.abc import Callable, Sequence

from ...rules import Factors
from ...rules.widen import B, Code, Strategy, strategies
from ...signature import ReduceOp
from ...trace import Op, Program, Value
from ..graph.clusters import free_values
from ..graph.partials import useful_linear


def unmoved(
    program: Program, factors: Sequence[Factors], kinds: dict[int, set[ReduceOp]], axis_sizes: tuple[int, ...],
    uneven: bool, allowed: Callable[[Op, Sequence[Strategy]], tuple[Strategy, ...]],
) -> list[Strategy | None] | None:  # fmt: skip
    """By node its strategy, found by following the operands; None for those made where needed. Or None in all."""
    free = free_values(program, factors, kinds)
    codes: dict[int, Code] = {}
    found: list[Strategy | None] = []
    for op, f in zip(program.nodes, factors, strict=True):
        if op.outs and all(v.id in free for v in op.outs):
            found.append(None)
            continue
        # An operand that moves nothing is in the signature it has; literals and free values are in any.
        given = [codes.get(x.id) if isinstance(x, Value) and x.id not in free else _ANY for x in op.ins]
        if None in given:
            return None  # a loop's carry, which is not made yet
        fitting: list[Strategy] = []
        for s in allowed(op, strategies(f, axis_sizes, useful_linear(op, f, kinds), uneven)):
            for g, c in zip(given, s.ins, strict=True):
                if g is not _ANY and g != c:
                    break
            else:
                fitting.append(s)
        if not fitting:
            return None
        way = fitting[0] if len(fitting) == 1 else min(fitting, key=_not_whole)
        found.append(way)
        codes.update((v.id, c) for v, c in zip(op.outs, way.outs, strict=True))
    return found


_ANY: Code = ()


def _not_whole(way: Strategy) -> int:
    """Of ways with the same operands, the one whose results are whole is what a user expects."""
    return sum(c != B for code in (*way.outs, *way.ins) for c in code)
