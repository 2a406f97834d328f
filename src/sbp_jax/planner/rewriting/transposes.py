"""Transposes: two as one or none, moved through element-wise ops, taken into products of matrices.

Jia et al., "TASO", SOSP 2019, table 2 (transpose is its own inverse, distributes over element-wise ops, and exchanges
the operands of a product).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax import lax

from ...trace import Lit, Op, Value
from .labels import labels_of, natural_order, operands_may_swap, product
from .products import reads_values
from .random_shapes import array, dtype_of, lengths
from .substitution import Change, Instance, RandomInstance, Scope, Site, Substitution, register

# Element-wise ops whose parameters say nothing of shapes.
ELEMENT_WISE = (
    "add", "add_any", "sub", "mul", "div", "max", "min", "pow", "neg", "sign", "abs", "exp", "exp2", "expm1", "log",
    "log1p", "tanh", "logistic", "erf", "sin", "cos", "sqrt", "rsqrt", "cbrt", "square", "integer_pow", "select_n",
    "convert_element_type", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "is_finite", "floor", "ceil",
)  # fmt: skip


def _order(op: Op) -> tuple[int, ...]:
    return tuple(op.params["permutation"])


def _find_transposes(scope: Scope) -> Iterator[Site]:
    for op in scope.named("transpose"):
        if (inner := scope.maker(op.ins[0])) is not None:
            yield op, inner


def _cancelled(scope: Scope, ops: Site) -> Change | None:
    """``x.T.T -> x``, or one transpose."""
    if len(ops) != 2 or any(op.name != "transpose" for op in ops) or scope.maker(ops[0].ins[0]) is not ops[1]:
        return None
    outer, inner = ops
    first = _order(inner)
    order = tuple(first[d] for d in _order(outer))

    def make(x: Any) -> list[Any]:
        return [x if order == tuple(range(len(order))) else lax.transpose(x, order)]

    return Change(tuple(inner.reads), outer.outs, make)


def _binds_alike(op: Op) -> bool:
    """Whether an element-wise op's operands are arrays of its result's shape, or scalars written in the program."""
    return len(op.outs) == 1 and bool(op.reads) and all(
        x.shape == op.outs[0].shape if isinstance(x, Value) else not x.shape for x in op.ins
    )  # fmt: skip


def _bound(op: Op, arrays: Sequence[Any]) -> Any:
    """An element-wise op on other arrays, in the place of those that it reads."""
    supply = iter(arrays)
    ins = [np.asarray(x.literal, x.dtype)[()] if isinstance(x, Lit) else next(supply) for x in op.ins]
    return op.primitive.bind(*ins, **op.params)


def _moved_before(scope: Scope, ops: Site) -> Change | None:
    """``f(x, y).T -> f(x.T, y.T)``."""
    if len(ops) != 2 or ops[0].name != "transpose" or ops[1].name not in ELEMENT_WISE:
        return None
    outer, inner = ops
    if scope.maker(outer.ins[0]) is not inner or not _binds_alike(inner):
        return None
    order = _order(outer)

    def make(*x: Any) -> list[Any]:
        return [_bound(inner, [lax.transpose(y, order) for y in x])]

    return Change(tuple(inner.reads), outer.outs, make)


def _find_element_wise(scope: Scope) -> Iterator[Site]:
    for op in scope.named(*ELEMENT_WISE):
        makers = [scope.maker(x, "transpose") for x in op.reads]
        if makers and all(m is not None for m in makers):
            yield (op, *dict.fromkeys(m for m in makers if m is not None))


def _moved_after(scope: Scope, ops: Site) -> Change | None:
    """``f(x.T, y.T) -> f(x, y).T``."""
    op, inner = ops[0], list(ops[1:])
    if not inner or op.name not in ELEMENT_WISE or not _binds_alike(op) or not reads_values(*inner):
        return None
    makers = [scope.maker(x, "transpose") for x in op.reads]
    orders = {_order(m) for m in makers if m is not None}
    if None in makers or len(orders) > 1 or list(dict.fromkeys(makers)) != inner:
        return None
    (order,) = orders

    def make(*x: Any) -> list[Any]:
        return [lax.transpose(_bound(op, x), order)]

    return Change(tuple(m.reads[0] for m in makers if m is not None), op.outs, make)


def _find_read(scope: Scope) -> Iterator[Site]:
    for op in scope.named("dot_general"):
        for x in op.ins:
            if (inner := scope.maker(x, "transpose")) is not None:
                yield op, inner


def _into_product(scope: Scope, ops: Site) -> Change | None:
    """``x.T a`` as a product that sums over another dim of ``x``, where the result's dims stay in their order."""
    if len(ops) != 2 or ops[0].name != "dot_general" or ops[1].name != "transpose" or not reads_values(*ops):
        return None
    op, inner = ops
    own = labels_of(op)
    labels, found = [own.left, own.right], False
    reads: list[Any] = list(op.ins)
    for k in (0, 1):
        if scope.maker(op.ins[k]) is inner:
            back = np.argsort(_order(inner))
            labels[k] = tuple(labels[k][int(d)] for d in back)
            reads[k], found = inner.ins[0], True
    left, right = labels
    if not found or natural_order(left, right, own.out) != list(own.out):
        return None
    return Change(tuple(reads), op.outs, lambda x, y: [product(x, left, y, right, own.out, op)])


def _of_product(scope: Scope, ops: Site) -> Change | None:
    """``(x a).T`` as ``a.T x.T`` without a transpose, where a product gives its dims in that order."""
    if len(ops) != 2 or ops[0].name != "transpose" or ops[1].name != "dot_general" or not reads_values(*ops):
        return None
    outer, op = ops
    if scope.maker(outer.ins[0]) is not op or not operands_may_swap(op.params["precision"]):
        return None
    own = labels_of(op)
    out = tuple(own.out[d] for d in _order(outer))
    if natural_order(own.left, own.right, out) == list(out):
        return Change(tuple(op.reads), outer.outs, lambda x, y: [product(x, own.left, y, own.right, out, op)])
    if natural_order(own.right, own.left, out) == list(out):
        return Change(tuple(op.reads), outer.outs, lambda x, y: [product(y, own.right, x, own.left, out, op)])
    return None


def _random_order(random: np.random.Generator, rank: int) -> tuple[int, ...]:
    order = list(range(rank))
    while rank > 1 and order == sorted(order):
        order = [int(d) for d in random.permutation(rank)]
    return tuple(order)


def _cancelled_instance(random: np.random.Generator) -> Instance:
    """Two transposes, one after the other, that may undo each other."""
    rank = int(random.integers(2, 5))
    first, second = _random_order(random, rank), _random_order(random, rank)
    if random.integers(2):
        second = tuple(int(d) for d in np.argsort(first))
    shape = [int(n) for n in random.integers(2, 5, size=rank)]
    return lambda x: lax.transpose(lax.transpose(x, first), second), [array(shape, dtype_of(random))]


_TABLE: tuple[Callable[..., Any], ...] = (
    lambda x, y: x + y, lambda x, y: lax.max(x, lax.neg(y)), lambda x, y: lax.tanh(x) * 2.0,
    lambda x, y: x / (1.5 + y * y),
    lambda x, y: lax.select(x > y, x, y), lambda x, y: lax.exp(x) - 1.0, lambda x, y: (x < y).astype(np.float32),
    lambda x, y: lax.integer_pow(x, 3), lambda x, y: lax.logistic(x) * y, lambda x, y: lax.rsqrt(x * x + 1.0),
)  # fmt: skip


def _element_wise_instance(before: bool) -> RandomInstance:
    def instance(random: np.random.Generator) -> Instance:
        """An element-wise function before or after a transpose."""
        rank = int(random.integers(2, 4))
        order, f = _random_order(random, rank), _TABLE[random.integers(len(_TABLE))]
        x = array([int(n) for n in random.integers(2, 5, size=rank)], dtype_of(random))
        if before:
            return lambda x, y: lax.transpose(f(x, y), order), [x, x]
        return lambda x, y: f(lax.transpose(x, order), lax.transpose(y, order)), [x, x]

    return instance


def _product_instance(inside: bool) -> RandomInstance:
    def instance(random: np.random.Generator) -> Instance:
        """A product of transposed matrices, or one that is transposed; batched or not."""
        m, k, n, b = (int(x) + 1 for x in lengths(random, 4))
        batch, dtype, side = [(), (b,)][int(random.integers(2))], dtype_of(random, np.int8), int(random.integers(2))
        shapes = [[*batch, m, k], [*batch, k, n]]
        last = (*range(len(batch)), len(batch) + 1, len(batch))
        if inside:
            shapes[side][-2:] = shapes[side][:-3:-1]

        def f(*given: Any) -> Any:
            x, y = (lax.transpose(v, last) if inside and d == side else v for d, v in enumerate(given))
            z = x @ y
            return z if inside else lax.transpose(z, last)

        return f, [array(s, dtype) for s in shapes]

    return instance


cancelled = register(Substitution("transpose of a transpose", _find_transposes, _cancelled, _cancelled_instance))
into_product = register(Substitution("transpose read by a product", _find_read, _into_product, _product_instance(True)))
of_product = register(Substitution("transpose of a product", _find_transposes, _of_product, _product_instance(False)))
moved_after = register(
    Substitution("transpose after element-wise", _find_element_wise, _moved_after, _element_wise_instance(False))
)
moved_before = register(
    Substitution("transpose before element-wise", _find_transposes, _moved_before, _element_wise_instance(True))
)
