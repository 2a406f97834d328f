"""What an op takes while it runs, beside its operands and results: copies in another layout, tables, work space.

XLA counts it among the temporaries of a step.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...trace import Op, Value
from .kernels import is_cut_apart

LAPACK = frozenset("""
    cholesky eig eigh geqrf geqp3 hessenberg householder_product lu qr schur svd triangular_solve tridiagonal
""".split())  # fmt: skip

Form = tuple[tuple[int, ...], int]  # an order of dims, and how many make one


@dataclass(slots=True)
class Scratch:
    """``size_bytes`` for the whole of an operand or a result (``side`` "in" or "out", ``position``), split like that.

    ``early``: it is done with before the op's results are written. ``place``: a result of the program in whose buffer
    it is held as far as it fits (``Lifetime``). ``span``: the first and last node, where that is not the op alone.
    ``pairs``: it is of each pair of what is split, so that a piece of a half of it takes a quarter.
    ``after``: a result that waits for its readers, unless it is partial: that is reduced at once.
    """

    side: str
    position: int
    size_bytes: float
    early: bool = False
    place: Value | None = None
    span: tuple[int, int] | None = None
    pairs: bool = False
    after: bool = False


@dataclass(frozen=True, slots=True)
class Around:
    """``is_apart``: whether an op's operand lies in memory in a layout of its own, so that another is a copy of it.
    ``is_computed``: whether a product's kernel that puts an operand in form computes it, too.
    ``readers``: of each value, by id.
    ``is_result``: whether a value is written to the buffer of one of the program's results.
    """

    device: str
    is_apart: Callable[[Value, Op], bool]
    is_computed: Callable[[Value, Op, int], bool]
    readers: Mapping[int, Sequence[tuple[Op, int]]]
    is_result: Callable[[Value], bool]


def scratch(op: Op, around: Around) -> Iterator[Scratch]:
    """What an op takes while it runs."""
    name = op.name
    if name == "threefry2x32" and around.device == "cpu":
        # XLA for CPUs makes random bits in a loop over copies of its state (4 arrays for 2 results, measured),
        # compilers for accelerators in one kernel.
        for _ in range(2):
            yield Scratch("out", 0, float(op.outs[0].size_bytes))
    elif name in ("random_split", "random_fold_in") and around.device == "cpu":  # the same loop, within one op
        yield Scratch("out", 0, op.outs[0].size_bytes / 2)
        if isinstance(keys := op.ins[0], Value) and keys.shape:
            yield Scratch("in", 0, float(keys.size_bytes))
    elif name == "random_gamma" and around.device == "cpu":
        # Rejection sampling in a loop for all elements, each with keys of its own (27 to 30 arrays, measured).
        yield Scratch("out", 0, 28.0 * op.outs[0].size_bytes)
    elif name.startswith("select_and_scatter"):
        # The gradient of max pooling: an operand, if it is to be padded, and the maxima; for every dimension the
        # position of each element and of each maximum, 4 bytes each (XLA: ``SelectAndScatterExpander``).
        out, source = op.outs[0], op.ins[0]
        maxima, elements = math.prod(source.shape), math.prod(out.shape)
        padded = math.prod(n + a + b for n, (a, b) in zip(out.shape, op.params["padding"], strict=True))
        copies = maxima + (padded if padded > elements else 0)
        positions = 4.0 * len(out.shape) * (padded + maxima)
        # The result is written where positions were.
        yield Scratch("out", 0, copies * out.itemsize + positions - out.size_bytes, early=True)
    elif name.startswith("scatter") and has_batch_dims(op):
        yield from _indices(op, around)
    elif name == "conv_general_dilated":
        yield from _convolution(op, around)
    elif name == "dot_general" and around.device == "cpu":
        yield from _product(op, around)
    elif name == "ragged_dot_general" and not around.device.startswith("tpu"):
        yield from _ragged_product(op)
    elif name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        yield from _running(op, around)
    elif name == "top_k" and around.device == "cpu":
        yield from _largest(op, around)
    elif name in LAPACK:
        yield from _linear_algebra(op, around)


def has_batch_dims(op: Op) -> bool:
    """Whether a gather or a scatter has indices for some dims, and others in which it goes along with its operand.

    XLA makes indices of all (``BatchedGatherScatterNormalizer``), in a kernel that computes those of the program.
    """
    numbers = op.params.get("dimension_numbers") if op.name == "gather" or op.name.startswith("scatter") else None
    return bool(getattr(numbers, "operand_batching_dims", ()))


def _indices(op: Op, around: Around) -> Iterator[Scratch]:
    """Indices of all dims. They take the place of what they are made of, where that is in memory for them alone."""
    x = op.ins[1]
    if isinstance(x, Value):
        depth, more = x.shape[-1], len(op.params["dimension_numbers"].operand_batching_dims)
        replaced = around.is_apart(x, op) and len(around.readers[x.id]) == 1
        yield Scratch("in", 1, x.size_bytes * (more + (0 if replaced else depth)) / depth)


def reorders(op: Op, position: int) -> bool:
    """Whether a convolution wants an operand in another order than the program has it in.

    Kernels want batch, spatial dims, features; spatial dims, input features, output features. The gradient of a
    convolution's kernel is a convolution of transposed operands.
    """
    if op.name != "conv_general_dilated":
        return False
    numbers = op.params["dimension_numbers"]
    n = len(numbers.lhs_spec)
    last = (0, n - 1, *range(1, n - 1))
    specs = ((numbers.lhs_spec, last), (numbers.rhs_spec, (n - 1, n - 2, *range(n - 2))), (numbers.out_spec, last))
    spec, wanted = specs[position]
    return tuple(spec) != wanted


def _convolution(op: Op, around: Around) -> Iterator[Scratch]:
    """What does not lie as the kernels want it is copied (XLA: ``ConvCanonicalization``).

    On CPUs each group of a batch, of which a kernel's gradient has as many as its convolution has groups of features,
    is convolved with all of the kernel. Then what belongs to another group is set to zero, and groups are added up
    (``ConvolutionGroupConverter``).
    """
    for k, x in enumerate(op.ins):
        if isinstance(x, Value) and reorders(op, k) and (around.is_apart(x, op) or around.is_computed(x, op, k)):
            yield Scratch("in", k, float(x.size_bytes))
    at, groups = op.index, op.params["batch_group_count"] if around.device == "cpu" else 1
    result = float(op.outs[0].size_bytes)
    if groups == 1:
        if reorders(op, 2):
            yield Scratch("out", 0, result)
        return
    yield Scratch("out", 0, groups * result, span=(at, at + 1), pairs=True)
    if reorders(op, 2):  # operands are gone when that is put in order
        yield Scratch("out", 0, groups * result, span=(at + 1, at + 1), pairs=True)


def _product(op: Op, around: Around) -> Iterator[Scratch]:
    """XLA for CPUs makes matrices of what has more dims: batch, free, contracted ones; batch, contracted, free ones.

    What lies otherwise is copied (``DotDecomposer``): of a weight's gradient the operand on the left. Matrices, and
    batches of matrices, are read in either order.
    """
    for k, x in enumerate(op.ins):
        form = matrix_form(op, k)
        if form is None or not isinstance(x, Value):
            continue
        long = [d for d in form[0] if x.shape[d] > 1]
        if around.is_computed(x, op, k) or (long != sorted(long) and around.is_apart(x, op)):
            yield Scratch("in", k, float(x.size_bytes))


def matrix_form(op: Op, position: int) -> Form | None:
    """The order of dims in which a product makes a matrix of an operand, and how many are its rows, batch included.

    None for what is one, or a batch of them, already.
    """
    if op.name != "dot_general":
        return None
    batch, rows, columns = _sides(op, position)
    return ((*batch, *rows, *columns), len(batch) + len(rows)) if max(len(rows), len(columns)) > 1 else None


def _sides(op: Op, position: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """A product's operand's dims as a matrix has them: of the batch, of rows, of columns."""
    contracted, batch = (side[position] for side in op.params["dimension_numbers"])
    free = [d for d in range(len(op.ins[position].shape)) if d not in contracted and d not in batch]
    return (batch, contracted, free) if position else (batch, free, contracted)


def turns(op: Op, position: int) -> bool:
    """Whether what computes an operand of a product of batches, for that alone, writes each matrix turned (on CPUs)."""
    if op.name != "dot_general":
        return False
    batch, rows, columns = _sides(op, position)
    order = [d for d in (*batch, *rows, *columns) if op.ins[position].shape[d] > 1]
    return bool(batch) and order != sorted(order)


def wanted_form(op: Op, position: int) -> Form | None:
    """The form in which a product or a convolution wants an operand, where it is another than the program's."""
    if reorders(op, position):
        numbers = op.params["dimension_numbers"]
        return tuple(numbers.rhs_spec if position else numbers.lhs_spec), position
    return matrix_form(op, position)


def _ragged_product(op: Op) -> Iterator[Scratch]:
    """The rows of other groups are set to zero, a whole copy for each group (XLA: ``RaggedDotRewriter``, not on TPUs).

    Where the ragged dim is contracted so are both operands; where groups choose a matrix, matrices are turned. Which
    rows, a byte for each element, is known to all products by the same groups.
    """
    groups = op.ins[2].shape[-1]
    chooses = bool(op.params["ragged_dot_dimension_numbers"].rhs_group_dimensions)
    for k, x in enumerate(op.ins[:2]):
        if isinstance(x, Value):
            masked = groups * (x.size_bytes + math.prod(x.shape))
            yield Scratch("in", k, float(x.size_bytes if k and chooses else masked))


def _largest(op: Op, around: Around) -> Iterator[Scratch]:
    """Sorted whole with the positions, 4 bytes each.

    XLA for CPUs has a function of its own for float32 alone, if all that reads the result reads the same part (XLA:
    ``TopkRewriter``), and sorts bfloat16 as float32 (measured). What is cut from sorted float32 is cut by its readers.
    """
    x = op.ins[0]
    if not isinstance(x, Value):
        return
    if str(x.dtype) == "float32":
        if is_cut_apart(op, around.readers):
            for v in op.outs:
                size = 4.0 * math.prod(x.shape) - (0 if around.is_result(v) else v.size_bytes)
                yield Scratch("in", 0, size)
        return
    each = 4.0 if str(x.dtype) == "bfloat16" else float(x.itemsize) if around.is_apart(x, op) else 0.0
    yield Scratch("in", 0, (each + 4.0) * math.prod(x.shape))


def _running(op: Op, around: Around) -> Iterator[Scratch]:
    """Sums within blocks of 16, sums of blocks of these ... (XLA: ``ReduceWindowRewriter``), put together by readers.

    The operand is copied where its axis is not the last one.
    """
    x, v = op.ins[0], op.outs[0]
    axis = op.params["axis"]
    if v.shape[axis] <= 16:
        return
    if axis < len(v.shape) - 1 and isinstance(x, Value) and around.is_apart(x, op):
        yield Scratch("in", 0, float(x.size_bytes), early=True)
    yield Scratch("out", 0, v.size_bytes / 15)
    if around.is_result(v):
        yield Scratch("out", 0, float(v.size_bytes))


def _linear_algebra(op: Op, around: Around) -> Iterator[Scratch]:
    """LAPACK and cuSOLVER want columns one after the other: matrices are copied on their way in, and out to a result.

    Most of them write over one of their operands.
    """
    over = None if op.name in ("svd", "eig") else len(op.ins) - 1 if op.name == "triangular_solve" else 0
    for k, x in enumerate(op.ins):
        if k == over:
            if around.is_result(op.outs[0]):
                yield Scratch("out", 0, float(op.outs[0].size_bytes))
        elif isinstance(x, Value) and len(x.shape) > 1 and around.is_apart(x, op):
            yield Scratch("in", k, float(x.size_bytes), early=True)
    for k, v in enumerate(op.outs):
        if len(v.shape) > 1 and around.is_result(v) and (k or over is None):
            yield Scratch("out", k, float(v.size_bytes), early=True)
    if op.name == "svd" and not op.params["compute_uv"]:  # singular vectors are made all the same
        *batch, m, n = op.ins[0].shape
        size = float(min(m, n) * math.prod(batch) * op.outs[0].itemsize)
        yield Scratch("in", 0, size * m, early=True)
        yield Scratch("in", 0, size * n, early=True)
