"""Which ops XLA makes one kernel of, and which kernels compute again: facts about its compilers, by name of op."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...trace import CHEAP, Lit, Op, Program, Value

# Data moved but not computed: fused like element-wise ops.
MOVES = frozenset("broadcast_in_dim concatenate dynamic_slice iota pad rev slice split tile transpose copy".split())
# Other names for their operand's buffer.
ALIASES = frozenset("""
    reshape squeeze expand_dims stop_gradient copy_p optimization_barrier sbp.pin sbp.barrier sbp.enter
""".split())  # fmt: skip
# Of one element as many as are wanted, and other names for that.
REPEATING = frozenset("broadcast_in_dim convert_element_type sbp.pin sbp.enter".split())
# Those of them that a kernel may end with.
RENAMES = frozenset("reshape squeeze expand_dims sbp.pin".split())
# Written over their first operand where it dies there.
IN_PLACE = frozenset(
    "dynamic_update_slice sort scatter scatter-add scatter_add scatter_mul scatter_min scatter_max".split()
)
# On GPUs calls of cuBLAS and cuDNN, of which XLA takes one element of a tuple, the other being their work space: only
# what an op itself has made is written over, and no buffer that two values share already (``HeapSimulator``). So it is
# once kernels are tried, if not always: XLA may take a product of its own, whose result can be.
OF_LIBRARIES = frozenset(("conv_general_dilated", "dot_general", "ragged_dot_general"))
REDUCTIONS = frozenset("reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor".split())
# Kernels of their own that compute what they read, where nothing else reads it.
COMPUTES = REDUCTIONS | frozenset(("argmax", "argmin", "gather"))
# On CPUs a library does these reductions of floating-point numbers, with these ops of what they read (``ynn_fusion``,
# measured op by op, jaxlib 0.10.2; since 0.11 sines and cosines, too); what else reductions read lies in memory.
_FLOATS = frozenset(("float32", "bfloat16"))
_OF_LIBRARY = frozenset(("reduce_sum", "reduce_max", "reduce_min"))
_IN_LIBRARY = frozenset("""
    abs add add_any broadcast_in_dim ceil convert_element_type div erf exp expm1 floor integer_pow iota log log1p
    logistic max min mul neg pad pow round rsqrt sign sqrt square sub tanh
""".split())  # fmt: skip
# Boundaries that hand on what they read.
REPEATED = frozenset(("sbp.unstack", "sbp.barrier", "sbp.enter"))
# So often may a kernel compute an op for one element of its result (XLA: ``FusionNodeIndexingEvaluation``).
MOST_COPIES = 15
# Once, where computing it takes a branch (XLA: ``ElementalIrEmitter::OpInvalidatesCache``).
BRANCHES = frozenset(("concatenate", "pad"))
# So many ops are looked at for whether one hangs on another.
_LOOKED_AT = 500
# Element-wise by their rule, but long: never computed again.
LONG = frozenset(("threefry2x32", "erf_inv", "digamma", "lgamma", "igamma"))


def is_gpu(device: str) -> bool:
    """Whether a cluster's device, by its name, is compiled for by XLA for GPUs."""
    return device != "cpu" and not device.startswith("tpu")


def is_cheap(op: Op, maker: Mapping[int, Op]) -> bool:
    """Whether every reader computes it again. Integers are divided by a power of two with shifts and masks, what else
    is divided by a number is a product (XLA: ``AlgebraicSimplifier``)."""
    if op.name not in ("div", "rem"):
        return op.name in CHEAP
    by = op.ins[1]
    made = maker[by.id] if isinstance(by, Value) else None
    if not np.issubdtype(op.outs[0].dtype, np.integer):
        number = made is None or (made.name == "broadcast_in_dim" and isinstance(made.ins[0], Lit))
        return op.name == "div" and number
    # As ``jnp.remainder`` has it: 1 where the divisor is 0.
    ways = [by] if made is None else made.ins[1:] if made.name == "select_n" else []
    return bool(ways) and all([isinstance(x, Lit) and int(x.literal).bit_count() == 1 for x in ways])


def concatenates_rows(op: Op) -> bool:
    """Whether XLA for CPUs makes it a kernel of its own (``cpu_instruction_fusion.cc``)."""
    if op.name != "concatenate" or len(op.outs[0].shape) < 2:
        return op.name == "concatenate" and len(op.ins) > 8
    v = op.outs[0]
    along_rows = op.params["dimension"] == len(v.shape) - 1
    return len(op.ins) > 8 or (along_rows and v.shape[-1] * v.itemsize >= 64 and v.size_bytes >= 2048)


def reads_more(op: Op, maker: Mapping[int, Op]) -> bool:
    """Whether computing an op again reads more than its result: two operands as large as that, or more.

    A number broadcast to that shape is not read. ``maker``: what makes a value, by its id.
    """
    shape = op.outs[0].shape
    large = [maker[x.id] for x in op.ins if isinstance(x, Value) and x.shape == shape]
    return sum(m.name != "broadcast_in_dim" or m.ins[0].shape != () for m in large) > 1


def comes_back(
    op: Op, readers: Sequence[tuple[Op, int]], maker: Mapping[int, Op], fuses: Sequence[bool]
) -> bool:  # fmt: skip
    """Whether a reader of an op also reads what other kernels make of it, as a gradient does.

    XLA computes an op that reads more than its result once, then (``InstructionFusion::ComputeGloballyUnfusible``).
    ``fuses``: by op, whether it is computed in kernels of its readers. After some ops that is taken to be so.
    """
    for user, _ in readers:
        pending = [(maker[x.id], False) for x in user.reads if maker[x.id] is not op]
        seen: set[tuple[int, bool]] = set()
        while pending:
            made, crossed = pending.pop()
            if made is op and crossed:
                return True
            crossed = crossed or not fuses[made.index]
            if made.index > op.index and (made.index, crossed) not in seen:
                if len(seen) == _LOOKED_AT:
                    return True
                seen.add((made.index, crossed))
                pending += [(maker[x.id], crossed) for x in made.reads]
    return False


def moves_dims(op: Op) -> bool:
    """Whether a transposition moves any dim with more than one element."""
    order = [d for d in op.params["permutation"] if op.ins[0].shape[d] > 1]
    return order != sorted(order)


def is_reshaped(op: Op) -> bool:
    """Whether a matrix product is computed in another form than the program has it in (XLA: ``DotDecomposer``)."""
    if op.name != "dot_general":
        return False
    (left, right), (batch, _) = op.params["dimension_numbers"]
    free = [len(x.shape) - len(c) - len(batch) for x, c in zip(op.ins, (left, right), strict=True)]
    return max(free) > 1


def is_cut_apart(op: Op, readers: Mapping[int, Sequence[tuple[Op, int]]]) -> bool:
    """Whether readers slice an op's results in different ways: XLA makes one slice of that and of what the op takes.

    So it does of a reshaped result where only its own first dim is cut, or one element is picked (measured).
    """
    cuts: set[object] = set()
    for v in op.outs:
        pending = list(readers.get(v.id, ()))
        while pending:
            user, _ = pending.pop()
            made = user.outs[0] if user.outs else v
            if user.name == "slice":
                of = user.ins[0].shape
                by_rows = made.shape[1:] == of[1:] and of[:1] == v.shape[:1]
                merges = of == v.shape or by_rows or math.prod(made.shape) == 1
                cuts.add((made.shape, user.params["start_indices"]) if merges else ())
            elif user.name in RENAMES or (user.name == "tile" and made.shape == user.ins[0].shape):
                pending += readers.get(made.id, ())
            else:
                cuts.add(())
    return len(cuts) > 1


def in_reductions(program: Program, readers: Mapping[int, Sequence[tuple[Op, int]]]) -> list[bool]:
    """By op: whether a library computes it in a reduction, for which alone it is there (on CPUs)."""
    found = [False] * len(program.nodes)
    for op in reversed(program.nodes):
        users = [u for v in op.outs for u, _ in readers.get(v.id, ())]
        if op.name in _IN_LIBRARY and len(users) == 1 and op.outs[0].dtype_name in _FLOATS:
            (user,) = users
            found[op.index] = found[user.index] or user.name in _OF_LIBRARY
    return found


def is_of_library(op: Op) -> bool:
    """Whether it is a reduction that a library does (on CPUs)."""
    return op.name in _OF_LIBRARY and op.outs[0].dtype_name in _FLOATS
