"""Where XLA's kernels are others than the ops' names say: what is no other name, what an op is merged into."""

from collections.abc import Iterator, Mapping, MutableSequence, Sequence

from ...trace import Op, Program, Value
from .kernels import MOVES, RENAMES, is_of_library, moves_dims
from .widening import is_widened
from .zeros import is_zero


def name_apart(
    program: Program, fusible: MutableSequence[bool], alias: MutableSequence[bool],
    readers: Mapping[int, Sequence[tuple[Op, int]]], maker: Mapping[int, Op], device: str,
) -> None:  # fmt: skip
    """What a kernel computes for a reshape alone, it writes in the reshape's form: that is no other name then.

    A transposition for the caller is a copy of its own where there are several results (measured): kernels keep to
    the order of what they read, in a layout in which the transposition is none, and XLA copies that at its end.
    """
    outputs = {op.index for op in program.output_ops}
    for op in program.nodes:
        x = op.ins[0] if op.ins else None
        if not isinstance(x, Value) or op.primitive is None:
            continue
        k = maker[x.id].index
        fused = fusible[k] and not alias[k] and program.nodes[k].primitive is not None
        fused = fused or is_widened(program.nodes[k], device)
        if op.name in RENAMES:
            if fused and len(readers[x.id]) == 1:
                alias[op.index] = False
        elif op.name == "transpose" and fused and program.nodes[k].name not in MOVES and moves_dims(op):
            users = readers.get(op.outs[0].id, ())
            if len(outputs) > 1 and users and all([user.index in outputs for user, _ in users]):
                fusible[op.index] = False


def merge_scatters(program: Program, fusible: MutableSequence[bool], maker: Mapping[int, Op]) -> set[int]:
    """The sums that XLA makes of a scatter into zeros: it adds the elements in what those would be added to.

    (``AlgebraicSimplifier``, where nothing else reads them, as in the gradient of a loss of one class per example.)
    The scatter is no kernel then, and the sum is one, over its other operand.
    """
    found: set[int] = set()
    for op in program.nodes:
        if op.name not in ("scatter-add", "scatter_add") or not is_zero(op.ins[0], maker):
            continue
        users = program.consumers().get(op.outs[0].id, ())
        if len(users) != 1 or users[0][0].name not in ("add", "add_any"):
            continue
        ((total, _),) = users
        if total.index not in found and all(isinstance(x, Value) and x.shape == op.outs[0].shape for x in total.ins):
            found.add(total.index)
            fusible[op.index], fusible[total.index] = True, False
    return found


def gathers_copied(
    program: Program, readers: Mapping[int, Sequence[tuple[Op, int]]], absorbed: Sequence[bool]
) -> Iterator[tuple[Op, Op]]:
    """Gathers of rows, each with what reads it in a reduction of a library: that reads a copy, if something else reads
    the rows, too (measured on CPUs). ``absorbed``: by op, whether a library computes it in a reduction.

    XLA gathers with all dims of a row, and what puts those in the order that is wanted is fused into other kernels.
    """
    for op in program.nodes:
        if op.name == "gather" and op.params["dimension_numbers"].offset_dims:
            users = readers.get(op.outs[0].id, ())
            yield from ((op, u) for u, _ in users if len(users) > 1 and (absorbed[u.index] or is_of_library(u)))
