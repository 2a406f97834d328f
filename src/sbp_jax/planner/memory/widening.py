"""Matrix products and convolutions of 16-bit floats, which XLA for CPUs computes in float32.

Operands are converted, each once for all products that read it, and the result is float32 until it is read (measured,
jaxlib 0.10.2; XLA: ``ChangeOpDataType``, ``FloatNormalization``). What makes an operand element by element is computed
in its conversion, and what reads the result element by element converts it; what a barrier holds is in memory as it
is. A loop's operands are converted before it, a stack of them whole, and stay that until the last loop that reads them.
Scatters are computed in float32, too. (The last two up to JAX 0.11: 0.12 leaves bfloat16 as it is where it can.)
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..._compat import multiplies_bfloat16
from ...trace import Op, Program, Value
from .scratch import Scratch, matrix_form

_NARROW = frozenset(("bfloat16", "float16"))
_PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
_INTO_LOOPS = frozenset(("sbp.enter", "sbp.unstack"))

_Copy = tuple[int, int, object]  # of which value, after how many barriers, in which order


@dataclass(slots=True)
class Widening:
    """``products``: those computed in float32, by index. ``passed``: by value id when it goes through barriers; what is
    read after one is converted anew. ``converted``: when an operand's float32 copy is made, and when it is last read.
    ``before``: when a loop's operand is converted, by the value and the node through which the loop reads it, where the
    loop only multiplies it. ``scratch``: what operands take, by node.
    """

    passed: Mapping[int, Sequence[float]]
    products: set[int] = field(default_factory=set)
    converted: dict[_Copy, tuple[int, int]] = field(default_factory=dict)
    before: dict[tuple[int, int], int] = field(default_factory=dict)
    scratch: dict[int, list[Scratch]] = field(default_factory=dict)

    def converted_at(self, v: Value, op: Op, position: int) -> int | None:
        """When an operand is converted for a product; None where it is read as it is."""
        if op.index not in self.products or not is_narrow(v):
            return None
        return self.converted[self.copy_of(v, op, position)][0]

    def copy_of(self, v: Value, op: Op, position: int) -> _Copy:
        """The float32 copy of an operand that a product reads."""
        barriers = sum([t < op.index for t in self.passed.get(v.id, ())])
        return v.id, barriers, _order(op, position)


def is_narrow(v: Value) -> bool:
    """Whether a value's elements are floats of 16 bits."""
    return v.dtype_name in _NARROW


def widened(
    program: Program, device: str, when: Sequence[int], spans: Mapping[int, tuple[int, int]],
    readers: Mapping[int, Sequence[tuple[Op, int]]], passed: Mapping[int, Sequence[float]],
) -> Widening:  # fmt: skip
    """What is computed in float32. ``when``: when each node runs; ``spans``: of a loop's boundary, the whole loop;
    ``passed``: as in ``Widening``."""
    found = Widening(passed)
    if device != "cpu":
        return found
    is_normalized = not multiplies_bfloat16()
    first: dict[_Copy, tuple[int, int]] = {}  # the first product that reads it, as which operand
    read: set[int] = set()
    for op in program.nodes:
        if is_normalized and op.name.startswith("scatter") and is_narrow(op.outs[0]):
            found.scratch.setdefault(op.index, []).append(Scratch("out", 0, 2.0 * op.outs[0].size_bytes))
        if is_widened(op, device):
            found.products.add(op.index)
            for k, x in enumerate(op.ins):
                if isinstance(x, Value) and is_narrow(x):
                    copy = found.copy_of(x, op, k)
                    read.add(x.id)
                    first.setdefault(copy, (op.index, k))
                    start, end = found.converted.get(copy, (when[op.index],) * 2)
                    found.converted[copy] = min(start, when[op.index]), max(end, when[op.index])
    for op in reversed(program.nodes):  # a barrier is passed in float32, too
        if is_normalized and op.name == "sbp.barrier" and op.outs[0].id in read:
            read.update(x.id for x in op.reads)
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
            if not isinstance(x, Value) or not x.shape:
                continue
            if _is_multiplied(program.nodes[at].outs[0], found.products, readers):
                found.before[x.id, at] = loops[0][0][0]
            if end >= after:
                span = after or start, end
                found.scratch.setdefault(at, []).append(Scratch("in", 0, 2.0 * x.size_bytes, span=span))
                after = end + 1
    return found


def _is_multiplied(v: Value, products: Collection[int], readers: Mapping[int, Sequence[tuple[Op, int]]]) -> bool:
    """Whether products alone read a value, whatever barriers it comes through."""
    return all([
        op.index in products or (op.name == "sbp.barrier" and _is_multiplied(op.outs[0], products, readers))
        for op, _ in readers.get(v.id, ())
    ])  # fmt: skip


def is_turned_once(v: Value, readers: Mapping[int, Sequence[tuple[Op, int]]]) -> bool:
    """Whether a product's result is turned for several readers, as a gradient is: it is converted back for all of them.

    Others read it in float32 (XLA drops the two conversions where they are next to each other).
    """
    is_turned = False
    while len(users := readers.get(v.id, ())) == 1:
        op = users[0][0]
        if op.name not in ("transpose", "convert_element_type"):
            return False
        is_turned = is_turned or op.name == "transpose"
        v = op.outs[0]
    return is_turned and len(users) > 1


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
        return op.name, op.params["dimension_numbers"][position]
    x = op.ins[position]
    form = matrix_form(op, position)
    long = [d for d in form[0] if x.shape[d] > 1] if form else []
    if long != sorted(long):
        return form
    contracted, batch = (tuple(side[position]) for side in op.params["dimension_numbers"])
    free = tuple([d for d in range(len(x.shape)) if d not in contracted and d not in batch])
    return batch, frozenset((contracted, free))
