"""``dot_general`` as an einsum: numbers for dims, by which operands and results can be told apart and put in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from ...trace import Op


@dataclass(frozen=True, slots=True)
class Labels:
    """A product as an einsum: a number for every dim; numbers in both operands and not in the result are summed."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]


def labels_of(op: Op) -> Labels:
    """The dims of a ``dot_general``, numbered from 0."""
    (l_sum, r_sum), (l_batch, r_batch) = op.params["dimension_numbers"]
    left = tuple(range(len(op.ins[0].shape)))
    right = [len(left) + d for d in range(len(op.ins[1].shape))]
    for i, j in (*zip(l_sum, r_sum, strict=True), *zip(l_batch, r_batch, strict=True)):
        right[j] = left[i]
    out = [left[i] for i in l_batch]
    out += [x for d, x in enumerate(left) if d not in (*l_sum, *l_batch)]
    out += [x for d, x in enumerate(right) if d not in (*r_sum, *r_batch)]
    return Labels(left, tuple(right), tuple(out))


def natural_order(left: Sequence[int], right: Sequence[int], out: Sequence[int]) -> list[int]:
    """The order in which ``dot_general`` itself gives the dims of a result: batch, left, right."""
    batch = [x for x in out if x in left and x in right]
    return [
        *batch,
        *(x for x in left if x in out and x not in batch),
        *(x for x in right if x in out and x not in batch),
    ]


def product(x: Any, left: Sequence[int], y: Any, right: Sequence[int], out: Sequence[int], like: Op) -> Any:
    """The product of two arrays whose dims have these labels, with the precision of another product."""
    batch = [i for i in out if i in left and i in right]
    summed = [i for i in left if i in right and i not in out]
    z = lax.dot_general(
        x, y,
        ((tuple(map(left.index, summed)), tuple(map(right.index, summed))),
         (tuple(map(left.index, batch)), tuple(map(right.index, batch)))),
        precision=like.params["precision"], preferred_element_type=like.params["preferred_element_type"],
    )  # fmt: skip
    order = natural_order(left, right, out)
    return z if order == list(out) else lax.transpose(z, [order.index(i) for i in out])


def operands_may_swap(precision: Any) -> bool:
    """Whether a product treats its left and right operand alike."""
    if isinstance(precision, lax.DotAlgorithm):
        left = precision.lhs_precision_type, precision.lhs_component_count
        return left == (precision.rhs_precision_type, precision.rhs_component_count)
    return not isinstance(precision, tuple) or precision[0] == precision[1]
