"""Matrix products and convolutions of 16-bit floats, which XLA for CPUs computes in float32.

Operands are converted, each once for all products that read it, and the result is float32 until it is read (measured,
jaxlib 0.10.2; XLA: ``ChangeOpDataType``, ``FloatNormalization``). What makes an operand element by element is computed
in its conversion, and what reads the result element by element converts it. A loop's weights are converted before it, a
stack of them whole, and stay that until the last loop that reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..._compat import multiplies_bfloat16
from ...trace import Op, Program, Value
from .scratch import Scratch, matrix_form

_NARROW = frozenset(("bfloat16", "float16"))
_PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
_INTO_LOOPS = frozenset(("sbp.enter", "sbp.unstack"))

_Copy = tuple[int, object]  # of which value, in which order


@dataclass(slots=True)
class Widening:
    """``products``: those computed in float32, by index. ``converted``: when an operand's float32 copy is made, and
    when it is last read, by value id and order of dims. ``scratch``: what operands take, by node.
    """

    products: set[int] = field(default_factory=set)
    converted: dict[_Copy, tuple[int, int]] = field(default_factory=dict)
    scratch: dict[int, list[Scratch]] = field(default_factory=dict)

    def converted_at(self, v: Value, op: Op, position: int) -> int | None:
        """When an operand is converted for a product; None where it is read as it is."""
        if op.index not in self.products or not is_narrow(v):
            return None
        return self.converted[v.id, _order(op, position)][0]


def is_narrow(v: Value) -> bool:
    """Whether a value's elements are floats of 16 bits."""
    return v.dtype_name in _NARROW


def widened(
    program: Program, device: str, when: Sequence[int], spans: Mapping[int, tuple[int, int]],
    readers: Mapping[int, Sequence[tuple[Op, int]]],
) -> Widening:  # fmt: skip
    """What is computed in float32. ``when``: when each node runs; ``spans``: of a loop's boundary, the whole loop."""
    found = Widening()
    if device != "cpu":
        return found
    first: dict[_Copy, tuple[int, int]] = {}  # the first product that reads it, as which operand
    read: set[int] = set()
    for op in program.nodes:
        if is_widened(op, device):
            found.products.add(op.index)
            for k, x in enumerate(op.ins):
                if isinstance(x, Value) and is_narrow(x):
                    copy = x.id, _order(op, k)
                    read.add(x.id)
                    first.setdefault(copy, (op.index, k))
                    start, end = found.converted.get(copy, (when[op.index],) * 2)
                    found.converted[copy] = min(start, when[op.index]), max(end, when[op.index])
    hoisted: set[int] = set()
    entered: set[int] = set()
    for op in program.nodes:
        if op.name in _INTO_LOOPS and op.outs[0].id in read and isinstance(op.ins[0], Value):
            hoisted.add(op.ins[0].id)
            if op.name == "sbp.enter":
                entered.add(op.outs[0].id)
    for copy, (at, k) in first.items():
        if copy[0] in entered:  # read as it was converted before the loop
            continue
        start, end = found.converted[copy]
        x = program.nodes[at].ins[k]
        size = 2.0 * x.size_bytes if isinstance(x, Value) else 0.0
        found.scratch.setdefault(at, []).append(Scratch("in", k, size, early=True, span=(start, end)))
    for value_id in sorted(hoisted):
        loops = sorted([(spans[op.index], op.index) for op, _ in readers[value_id] if op.name in _INTO_LOOPS])
        after = 0
        for (start, end), at in loops:  # each as it reads the stack, from the end of the one before
            x = program.nodes[at].ins[0]
            if isinstance(x, Value) and x.shape and end >= after:
                span = after or start, end
                found.scratch.setdefault(at, []).append(Scratch("in", 0, 2.0 * x.size_bytes, span=span))
                after = end + 1
    return found


def is_widened(op: Op, device: str) -> bool:
    """Whether a product is computed in float32.

    Since 0.12 matrices of bfloat16 are multiplied as they are, if they lie in the usual order.
    """
    if device != "cpu" or op.name not in _PRODUCTS or not is_narrow(op.outs[0]):
        return False
    if op.name != "dot_general" or not multiplies_bfloat16() or op.outs[0].dtype_name != "bfloat16":
        return True
    (left, right), (left_batch, right_batch) = op.params["dimension_numbers"]
    a, b = (len(x.shape) for x in op.ins)
    usual = tuple(left) == (a - 1,) and tuple(right) == (len(right_batch),) and tuple(left_batch) == tuple(right_batch)
    return not usual or a - len(left_batch) < 2 or b - len(right_batch) < 2


def _order(op: Op, position: int) -> object:
    """The order of dims in which a product reads an operand: rows and columns, whichever of them comes first."""
    if op.name != "dot_general":
        return op.name, position
    x = op.ins[position]
    form = matrix_form(op, position)
    long = [d for d in form[0] if x.shape[d] > 1] if form else []
    if long != sorted(long):
        return form
    contracted, batch = (tuple(side[position]) for side in op.params["dimension_numbers"])
    free = tuple([d for d in range(len(x.shape)) if d not in contracted and d not in batch])
    return batch, frozenset((contracted, free))
