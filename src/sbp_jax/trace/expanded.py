"""What takes far more than what it is made of, and is made once more for each large op that reads it.

A one-hot dispatch of tokens to experts is made of a few indices, and read by a product of the forward part and by one
of the backward part. Plans count it while a product reads it; XLA makes both in their layouts as soon as the indices
are there (a mixture of experts: 1.11 times the plan's memory; 1.01 so). So the later reader makes it of what goes
through an optimization barrier with another of its operands.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .graph import Graph, Op, Value
from .order import SMALL, is_large

# Computed again by every reader. Everything else with several readers is computed once (XLA: ``IsExpensive``), but on
# GPUs: there whatever is element-wise is computed again, by reductions too, since that moves less (XLA:
# ``PriorityFusion``; with that the transformers of ``benchmarks/gpu_compile.py`` take 0.93 to 1.11 of what XLA says,
# before 1.13 to 1.49).
CHEAP = frozenset("""
    abs add add_any and bitcast_convert_type broadcast_in_dim ceil clamp concatenate convert_element_type copy
    dynamic_slice eq expand_dims floor ge gt iota is_finite le lt max min mul ne neg not one_minus_square or pad
    reduce_precision reshape rev round select_n shift_left shift_right_arithmetic shift_right_logical sign slice split
    square squeeze sub transpose xor stop_gradient real imag integer_pow sbp.pin sbp.unstack
""".split())  # fmt: skip
_FORMS = frozenset(("transpose", "reshape", "squeeze"))


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
    origin: dict[int, int] = {}  # by value: what it is another form of
    reader: dict[int, int] = {}  # by that: how many large ops there were before the last one that reads it
    found: dict[int, list[Expanded]] = {}
    count = 0
    for k, op in enumerate(graph.ops):
        if not isinstance(op, Op):
            continue
        if is_large(op):
            for x in dict.fromkeys(op.reads):
                through = next((y for y in op.reads if y is not x), None)
                if reader.get(origin.get(x.id, x.id), count) < count - 1 and through is not None:
                    if (way := _way(x, maker, is_free)) is not None and through not in way[1]:
                        found.setdefault(k, []).append(Expanded(x, *way, through))
                reader[origin.get(x.id, x.id)] = count
            count += 1
        elif op.name in _FORMS and op.reads:
            origin[op.outs[0].id] = origin.get(op.reads[0].id, op.reads[0].id)
        maker.update((v.id, op) for v in op.outs)
    return found


def _way(
    x: Value, maker: Mapping[int, Op], is_free: Callable[[Op], bool]
) -> tuple[tuple[Op, ...], tuple[Value, ...]] | None:
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
        elif op is None or op.name not in CHEAP or is_free(op) or op.primitive is None:
            return None
        elif op.index not in ops:
            ops[op.index] = op
            pending += op.reads
    if not made_of or SMALL * sum(y.size_bytes for y in made_of.values()) > x.size_bytes:
        return None
    return tuple(ops[k] for k in sorted(ops)), tuple(made_of.values())
