"""Where a dim does not divide, a device's piece ends in padding. Here it is kept out of reductions.

Along a dim that an op keeps, padding yields padding, whatever is in it. Along one that it reduces, padding is
replaced by what changes nothing: zero in a sum (of products), the extreme in a maximum or minimum.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..boxing import identity
from ..pieces import is_even, span, splits
from ..placement import Placement
from ..rules import Factors
from ..signature import Signature
from ..trace import Op


def mask_reduced(
    op: Op, factors: Factors, ins: Sequence[Signature], arguments: Sequence[Any], where: Placement
) -> list[Any]:
    """The op's local operands, with the padding along reduced factors neutral."""
    reduced = dict(factors.reduced)
    masked = list(arguments)
    if not reduced:
        return masked
    for k, (x, signature) in enumerate(zip(op.ins, ins, strict=True)):
        if is_even(x.shape, signature, where.shape):
            continue
        for d, made_of in enumerate(factors.ins[k]):
            kinds = [reduced[f] for f in made_of if f in reduced]
            if kinds and x.shape[d] != masked[k].shape[d]:
                masked[k] = _mask(masked[k], d, x.shape[d], signature, where, identity(kinds[0], masked[k].dtype))
    return masked


def _mask(x: Any, dim: int, whole: int, signature: Signature, where: Placement, filler: Any) -> Any:
    here = [lax.axis_index(where.axis_names[a]) for a in signature.split_axes(dim)]
    _, length = span(whole, splits(signature, where.shape, dim), here)
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    return jnp.where((jnp.arange(x.shape[dim]) < length).reshape(shape), x, filler)
