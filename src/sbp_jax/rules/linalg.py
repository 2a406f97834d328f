"""Factorisations and solves: one matrix is worked on whole, a batch of matrices is split.

``a m n`` stands for all of them: leading dims are a batch shared by every operand and result, trailing dims are
blocked. Columns of right-hand sides are solved independently and linearly.
"""

from .base import Builder, Dims, Factors, Linear, OpLike, register, size, sums

# How many trailing dims of the first operand are one problem.
_CORE = {"lu_pivots_to_permutation": 1}


def _batched(op: OpLike, core: int, linear: tuple[Linear, ...] = (), flops: float = 0.0) -> Factors:
    b = Builder()
    lead = len(op.ins[0].shape) - core
    batch = b.dims(op.ins[0].shape[:lead])

    def dims(shape: tuple[int, ...]) -> Dims:
        return batch + b.dims(shape[lead:], blocked=range(len(shape)))

    ins = [dims(x.shape) for x in op.ins]
    return b.build(ins, [dims(x.shape) for x in op.outs], linear, flops=flops)


@register("cholesky", "lu", "lu_pivots_to_permutation", "qr", "geqrf", "geqp3", "householder_product", "ormqr", "eig",
          "eigh", "svd", "schur", "hessenberg", "tridiagonal", even=True)  # fmt: skip
def factorisation(op: OpLike) -> Factors:
    """``a m n -> a m n``: no entry of a factor is known before all of its matrix is.

    Iterations that look for eigenvalues need not end for what lies in padding.
    """
    shape = op.ins[0].shape
    return _batched(op, _CORE.get(op.name, 2), flops=float(size(shape) * shape[-1]))


@register("symmetric_product")
def symmetric_product(op: OpLike) -> Factors:
    """``a m n, a m m -> a m m``: alpha x x' + beta c, linear in neither alone."""
    return _batched(op, 2, flops=2.0 * size(op.ins[0].shape) * op.ins[0].shape[-2])


@register("triangular_solve")
def triangular_solve(op: OpLike) -> Factors:
    """``a n n, a n k -> a n k``: linear in the right-hand sides, which are solved one by one."""
    matrix, rhs = op.ins
    b = Builder()
    batch = b.dims(matrix.shape[:-2])
    n = matrix.shape[-1]
    own = b.factor(n, blocked=True), b.factor(n, blocked=True)
    free = b.factor(rhs.shape[-1 if op.params["left_side"] else -2])
    sides = (own[1], free) if op.params["left_side"] else (free, own[1])
    return b.build([batch + own, batch + sides], [batch + sides], [sums(1)], flops=float(size(rhs.shape) * n))


@register("tridiagonal_solve")
def tridiagonal_solve(op: OpLike) -> Factors:
    """``a n, a n, a n, a n k -> a n k``: linear in the right-hand sides, which are solved one by one."""
    b = Builder()
    shape = op.ins[3].shape
    dims = b.dims(shape, blocked=(len(shape) - 2,))
    return b.build([dims[:-1]] * 3 + [dims], [dims], [sums(3)], flops=8.0 * size(shape))
