"""What takes far more than what it is made of, and is made once more for each large op that reads it.

A one-hot dispatch of tokens to experts is made of a few indices, and read by a product of the forward part and by one of
the backward part. Plans count it while a product reads it; XLA makes both in their layouts as soon as the indices are
there, and held eight times what a plan counted of such a layer. So the later reader makes it from what goes through an
optimization barrier with another of its operands.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .graph import Graph, Op, Value
from .order import SMALL, is_kernel, is_large


@dataclass(frozen=True, slots=True)
class Expanded:
    """A value, the ops that make it, in order, what they read, and the operand of the reader that they wait for."""

    value: Value
    ops: tuple[Op, ...]
    made_of: tuple[Value, ...]
    through: Value


def expanded(graph: Graph, is_free: Callable[[Op], bool]) -> dict[int, list[Expanded]]:
    """By position among the graph's ops: what to make once more for the op. ``is_free`` as in ``waits``."""
    maker: dict[int, Op] = {}
    reader: dict[int, int] = {}  # by value: how many large ops there were before the last one that reads it
    found: dict[int, list[Expanded]] = {}
    count = 0
    for k, op in enumerate(graph.ops):
        if not isinstance(op, Op):
            continue
        if is_large(op):
            for x in dict.fromkeys(op.reads):
                through = next((y for y in op.reads if y is not x), None)
                if reader.get(x.id, count) < count - 1 and through is not None:
                    if (way := _way(x, maker, is_free)) is not None and through not in way[1]:
                        found.setdefault(k, []).append(Expanded(x, *way, through))
                reader[x.id] = count
            count += 1
        maker.update((v.id, op) for v in op.outs)
    return found


def _way(x: Value, maker: dict[int, Op], is_free: Callable[[Op], bool]) -> tuple[tuple[Op, ...], tuple[Value, ...]] | None:
    """How a value is made of what is small beside it, where it is."""
    ops: dict[int, Op] = {}
    made_of: dict[int, Value] = {}
    pending = [x]
    while pending:
        y = pending.pop()
        op = maker.get(y.id)
        if y is not x and op is not None and is_free(op):
            continue
        if y is not x and SMALL * y.size_bytes <= x.size_bytes:
            made_of[y.id] = y
        elif op is None or is_kernel(op) or is_free(op) or op.has_effect or op.primitive is None:
            return None
        elif op.index not in ops:
            ops[op.index] = op
            pending += op.reads
    if not made_of or SMALL * sum(y.size_bytes for y in made_of.values()) > x.size_bytes:
        return None
    return tuple(ops[k] for k in sorted(ops)), tuple(made_of.values())
