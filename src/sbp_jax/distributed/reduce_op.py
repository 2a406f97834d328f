"""What a collective reduces with."""

import enum
from typing import Any

import jax.numpy as jnp

from ..errors import SbpError


class ReduceOp(enum.Enum):
    """How the members' tensors become one. Functions that take one also take its name (``"sum"``).

    Results have the dtype of the tensors, and integers wrap around. But bools are counted: their sum and product are
    int32. The mean of integers and bools is a float, as ``jnp.mean`` has it. Complex numbers have no max and
    no min.
    """

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"
    PRODUCT = "product"
    AVG = MEAN
    PROD = PRODUCT


_NAMES = {op.value: op for op in ReduceOp} | {"avg": ReduceOp.MEAN, "prod": ReduceOp.PRODUCT}


def reduce_op(op: "ReduceOp | str") -> ReduceOp:
    """The op of a name. Raises ``SbpError`` for others."""
    if isinstance(op, ReduceOp):
        return op
    found = _NAMES.get(op.lower()) if isinstance(op, str) else None
    if found is None:
        raise SbpError(f"op={op!r} is no reduction; possible: {', '.join(_NAMES)}, or sbp.distributed.ReduceOp.SUM ...")
    return found


def reduced_dtype(op: ReduceOp, dtype: Any) -> Any:
    """The dtype of the result. Raises ``SbpError`` where values of ``dtype`` have no such reduction."""
    if op in (ReduceOp.MAX, ReduceOp.MIN) and jnp.issubdtype(dtype, jnp.complexfloating):
        raise SbpError(f"{op.value} of {dtype} values: complex numbers have no order; possible: sum, mean, product")
    if op is ReduceOp.MEAN and (dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.integer)):
        return jnp.dtype(jnp.result_type(float))
    if dtype == jnp.bool_ and op in (ReduceOp.SUM, ReduceOp.PRODUCT):
        return jnp.dtype(jnp.int32)
    return dtype
