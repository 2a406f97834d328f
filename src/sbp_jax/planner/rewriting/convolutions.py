"""Convolutions: parallel ones as one along output features, sums of them as one along input features.

Jia et al., "TASO", SOSP 2019, section 2 and table 2 (convolution is linear in images and in kernels).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax import lax

from ...trace import Op
from .products import alike, find_sums, is_sum, pieces, reads_values, shared_operand, sharing
from .random_shapes import array, dtype_of, lengths
from .substitution import Change, Instance, RandomInstance, Scope, Site, Substitution, register

_CONV = "conv_general_dilated"


def _convolved(x: Any, kernel: Any, like: Op) -> Any:
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers", "precision",
             "preferred_element_type")  # fmt: skip
    return lax.conv_general_dilated(x, kernel, **{name: like.params[name] for name in names})


def _is_plain(op: Op) -> bool:
    """Whether a convolution has no groups."""
    return op.name == _CONV and op.params["feature_group_count"] == op.params["batch_group_count"] == 1


def _differ(ops: Sequence[Op], k: int) -> list[int]:
    """The dims in which operands differ."""
    return [d for d in range(len(ops[0].ins[k].shape)) if len({op.ins[k].shape[d] for op in ops}) > 1]


def _side_by_side(scope: Scope, ops: Site) -> Change | None:
    """``x * k, x * l -> x * (k, l)``, cut into its parts; windows, strides and padding are the same."""
    if len(ops) < 2 or not all(map(_is_plain, ops)) or not reads_values(*ops) or not alike(ops):
        return None
    numbers = ops[0].params["dimension_numbers"]
    dim, at = numbers.rhs_spec[0], numbers.out_spec[1]
    if shared_operand(ops) != 0 or not set(_differ(ops, 1)) <= {dim}:
        return None
    kernels = [op.ins[1] for op in ops]
    features = [x.shape[dim] for x in kernels]

    def make(x: Any, *parts: Any) -> list[Any]:
        return pieces(_convolved(x, lax.concatenate(parts, dim), ops[0]), at, features)

    return Change((ops[0].ins[0], *kernels), tuple(op.outs[0] for op in ops), make)  # pyright: ignore[reportArgumentType]


def _find_parallel(scope: Scope) -> Iterator[Site]:
    yield from sharing(
        (op for op in scope.named(_CONV) if _is_plain(op)), lambda ops: _side_by_side(scope, ops) is not None
    )


def _sum_as_one(scope: Scope, ops: Site) -> Change | None:
    """``x * k + y * l -> (x, y) * (k, l)``, side by side along input features."""
    if not is_sum(scope, ops, _CONV) or not all(map(_is_plain, ops[1:])):
        return None
    total, a, b = ops
    numbers = a.params["dimension_numbers"]
    left, right = numbers.lhs_spec[1], numbers.rhs_spec[1]
    if not (set(_differ((a, b), 0)) <= {left} and set(_differ((a, b), 1)) <= {right}):
        return None

    def make(x: Any, k: Any, y: Any, m: Any) -> list[Any]:
        return [_convolved(lax.concatenate([x, y], left), lax.concatenate([k, m], right), a)]

    return Change((*a.reads, *b.reads), total.outs, make)


def _instance(is_sum: bool) -> RandomInstance:
    def instance(random: np.random.Generator) -> Instance:
        """Two or three convolutions with random windows, strides, padding, dilation and layouts."""
        rank, dtype = int(random.integers(1, 3)), dtype_of(random)
        image, window = random.integers(3, 6, size=rank), random.integers(1, 4, size=rank)
        n, c, count = *lengths(random, 2), 2 if is_sum else int(random.integers(2, 4))
        strides = [int(x) for x in random.integers(1, 3, size=rank)]
        padding = [(int(random.integers(3)), int(random.integers(3))) for _ in range(rank)]
        space = "HW"[:rank]
        last = bool(random.integers(2))
        layout = (f"N{space}C", f"{space}IO", f"N{space}C") if last else (f"NC{space}", f"OI{space}", f"NC{space}")
        dilation = [1 + int(w == 1 and random.integers(2)) for w in window]

        def shape(letters: str, sizes: dict[str, int], spatial: Any) -> list[int]:
            return [sizes[x] if x in sizes else int(spatial[space.index(x)]) for x in letters]

        def conv(x: Any, k: Any) -> Any:
            return lax.conv_general_dilated(x, k, strides, padding, rhs_dilation=dilation, dimension_numbers=layout)

        features = lengths(random, count)
        if is_sum:
            shapes = [s for i in (c, features[0]) for s in (
                shape(layout[0], {"N": n, "C": i}, image), shape(layout[1], {"I": i, "O": features[1]}, window)
            )]  # fmt: skip
            return lambda x, k, y, m: conv(x, k) + conv(y, m), [array(s, dtype) for s in shapes]
        shapes = [shape(layout[0], {"N": n, "C": c}, image)]
        shapes += [shape(layout[1], {"I": c, "O": o}, window) for o in features]
        return lambda x, *ks: [conv(x, k) for k in ks], [array(s, dtype) for s in shapes]

    return instance


parallel = register(Substitution("parallel convolutions", _find_parallel, _side_by_side, _instance(False)))
sums = register(Substitution("sum of convolutions", find_sums(_CONV), _sum_as_one, _instance(True)))
