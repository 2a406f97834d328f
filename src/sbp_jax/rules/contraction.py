"""Contractions: matrix products and convolutions, with any batch dimensions and groups."""

import math

from .base import Builder, Dims, Factors, Local, OpLike, register, sums, whole


@register("dot_general")
def dot_general(op: OpLike) -> Factors:
    """``b m k, b n k -> b m n`` with ``k`` summed (lax.dot_general's dimension numbers)."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = op.params["dimension_numbers"]
    lhs, rhs = op.ins
    b = Builder()
    l_dims: list[tuple[int, ...]] = [()] * len(lhs.shape)
    r_dims: list[tuple[int, ...]] = [()] * len(rhs.shape)
    out: list[tuple[int, ...]] = []
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        l_dims[i] = r_dims[j] = b.factor(lhs.shape[i])
        out.append(l_dims[i])
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        l_dims[i] = r_dims[j] = b.factor(lhs.shape[i], reduced="sum")
    for i in range(len(lhs.shape)):
        if i not in lhs_batch and i not in lhs_contract:
            l_dims[i] = b.factor(lhs.shape[i])
            out.append(l_dims[i])
    for j in range(len(rhs.shape)):
        if j not in rhs_batch and j not in rhs_contract:
            r_dims[j] = b.factor(rhs.shape[j])
            out.append(r_dims[j])
    return b.build([tuple(l_dims), tuple(r_dims)], [tuple(out)], [sums(0), sums(1)], flops=2.0 * math.prod(b.sizes))


@register("ragged_dot_general")
def ragged_dot_general(op: OpLike) -> Factors:
    """``m k, g k n, g -> m n``, ``m k, k n, g -> g m n``, ``b m k, b k n, g -> b m n``.

    Groups follow one another along the ragged dim, so it stays whole, and so do the groups.
    """
    numbers = op.params["ragged_dot_dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,), lhs, rhs = numbers.lhs_ragged_dimensions, op.ins[0], op.ins[1]
    if len(op.ins[2].shape) != 1 or op.params.get("group_offset") is not None:
        return whole(op)
    b = Builder()
    groups = b.factor(op.ins[2].shape[0], blocked=True)
    l_dims: list[tuple[int, ...]] = [()] * len(lhs.shape)
    r_dims: list[tuple[int, ...]] = [()] * len(rhs.shape)
    out: list[tuple[int, ...]] = [groups] if ragged in lhs_contract else []
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        l_dims[i] = r_dims[j] = b.factor(lhs.shape[i], blocked=i == ragged)
        out.append(l_dims[i])
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        l_dims[i] = r_dims[j] = b.factor(lhs.shape[i], blocked=i == ragged, reduced="sum")
    for i in range(len(lhs.shape)):
        if i not in lhs_batch and i not in lhs_contract:
            l_dims[i] = b.factor(lhs.shape[i], blocked=i == ragged)
            out.append(l_dims[i])
    for j in range(len(rhs.shape)):
        if j in numbers.rhs_group_dimensions:
            r_dims[j] = groups
        elif j not in rhs_batch and j not in rhs_contract:
            r_dims[j] = b.factor(rhs.shape[j])
            out.append(r_dims[j])
    flops = 2.0 * math.prod(n for f, n in enumerate(b.sizes) if (f,) != groups)
    return b.build([tuple(l_dims), tuple(r_dims), (groups,)], [tuple(out)], [sums(0), sums(1)], flops=flops)


def _conv_local(op: OpLike, local: Local, lhs, rhs):
    """Groups that are split leave each device its share of them."""
    numbers = op.params["dimension_numbers"]
    params = dict(op.params)
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    if groups > 1:
        params["feature_group_count"] = lhs.shape[numbers.lhs_spec[1]] // rhs.shape[numbers.rhs_spec[1]]
    if batches > 1:
        whole, piece = op.ins[0].shape[numbers.lhs_spec[0]], lhs.shape[numbers.lhs_spec[0]]
        params["batch_group_count"] = max(1, batches * piece // whole)
    return op.primitive.bind(lhs, rhs, **params)


@register("conv_general_dilated", local=_conv_local)
def conv_general_dilated(op: OpLike) -> Factors:
    """``n (g c) s, (g o) c w -> n (g o) t``: ``c`` summed, spatial dims whole (a split one needs a halo)."""
    numbers, groups = op.params["dimension_numbers"], op.params["feature_group_count"]
    batches = op.params["batch_group_count"]
    lhs, rhs = op.ins
    (l_n, l_c, *l_space), (r_o, r_i, *r_space) = numbers.lhs_spec, numbers.rhs_spec
    o_n, o_c, *o_space = numbers.out_spec
    b = Builder()
    g = b.factor(groups)
    bg = b.factor(batches)
    n = b.factor(lhs.shape[l_n] // batches)
    # With groups, fewer input features than one group's cannot be told apart by feature_group_count.
    c = b.factor(rhs.shape[r_i], reduced="sum", blocked=groups > 1)
    o = b.factor(rhs.shape[r_o] // (groups * batches))

    def place(ndim: int, roles: dict[int, tuple[int, ...]], space: list[int], shape: tuple[int, ...]) -> Dims:
        return tuple(roles[d] if d in roles else b.factor(shape[d], blocked=True) for d in range(ndim))

    result = place(len(lhs.shape), {o_n: n, o_c: g + bg + o}, o_space, op.outs[0].shape)
    filters = place(len(rhs.shape), {r_o: g + bg + o, r_i: c}, r_space, rhs.shape)
    image = place(len(lhs.shape), {l_n: bg + n, l_c: g + c}, l_space, lhs.shape)
    window = math.prod(rhs.shape[d] for d in r_space)
    flops = 2.0 * math.prod(op.outs[0].shape) * window * rhs.shape[r_i]
    return b.build([image, filters], [result], [sums(0), sums(1)], flops=flops)
