"""Fused attention kernels (cuDNN), as ``jax.nn.dot_product_attention(implementation="cudnn")`` binds them."""

from .base import Builder, Dims, Factors, OpLike, register, size, whole

_BNTH = 1  # layout: batch, heads, time, features; 0 is batch, time, heads, features


def _packs(op: OpLike) -> bool:
    """Whether places in the batch are shared by several sequences, or keys lie in pages."""
    return any(size(x.shape) > 0 for x in op.ins[6:10])


@register("dot_product_attention_fwd", "dot_product_attention_fwd_wrapper",
          "dot_product_attention_bwd", "dot_product_attention_bwd_wrapper", even=True)  # fmt: skip
def attention(op: OpLike) -> Factors:
    """``b (k g) t h, b k s h, b k s h -> b (k g) t h``: batch and heads, a group of query heads with its key's.

    Whole where the kernel draws dropout by position, packs sequences or pages keys. The softmax statistic
    (forward's second result, backward's ``activation``) is ``b (k g) t`` in either layout.
    """
    if op.params["dropout_rate"] or _packs(op):
        return whole(op)
    query, key = op.ins[:2]
    head, time = (1, 2) if op.params["layout"] == _BNTH else (2, 1)
    b = Builder()
    batch, heads = b.factor(query.shape[0]), b.factor(key.shape[head])
    group = b.factor(query.shape[head] // key.shape[head])
    if group and heads:  # heads of a group share one key head: only whole groups are cut off
        b.blocked.add(group[0])
    times, keys = b.factor(query.shape[time], blocked=True), b.factor(key.shape[time], blocked=True)

    def laid_out(query_side: bool, features: int) -> Dims:
        at = [batch, heads + group if query_side else heads]
        length = times if query_side else keys
        width = b.factor(features, blocked=True)
        return (at[0], at[1], length, width) if head == 1 else (at[0], length, at[1], width)

    def bias(shape: tuple[int, ...]) -> Dims:
        if len(shape) != 4:
            return b.dims(shape, blocked=range(len(shape)))
        n, k, t, s = shape
        # a bias for all of the batch or all heads lacks that factor; where its gradient does too, it stays whole
        return (
            batch if n == query.shape[0] else (), heads + group if k == query.shape[head] else (),
            times if t > 1 else (), keys if s > 1 else (),
        )  # fmt: skip

    lengths = [(batch,) if len(x.shape) == 1 and x.shape[0] > 0 else b.dims(x.shape, range(9)) for x in op.ins[4:10]]
    q, k, v = laid_out(True, query.shape[-1]), laid_out(False, key.shape[-1]), laid_out(False, op.ins[2].shape[-1])
    o = laid_out(True, op.ins[2].shape[-1])
    statistic: Dims = (batch, heads + group, times)
    ins = [q, k, v, bias(op.ins[3].shape), *lengths]
    if "fwd" in op.name:
        return b.build(ins, [o, statistic][: len(op.outs)], flops=_flops(op, head, time))
    outs = [q, k, v, bias(op.outs[3].shape)] if len(op.outs) == 4 else [q, k, v]
    return b.build([*ins, statistic, o, o], outs, flops=2.5 * _flops(op, head, time))


def _flops(op: OpLike, head: int, time: int) -> float:
    query, key = op.ins[:2]
    return 4.0 * size(query.shape) * key.shape[time]
