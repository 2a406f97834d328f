"""Where a dim does not divide, a device's piece ends in padding. Here it is kept out of reductions.

Along a dim that an op keeps, padding yields padding, whatever is in it. Along one that it reduces, padding is
replaced by what changes nothing: zero in a sum (of products), the extreme in a maximum or minimum.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ..pieces import identity
from .base import Factors, Local, OpLike


def mask_reduced(op: OpLike, factors: Factors, local: Local, arguments: Sequence[Any]) -> list[Any]:
    """The op's local operands, with the padding along reduced factors neutral."""
    reduced = dict(factors.reduced)
    masked = list(arguments)
    for k, x in enumerate(op.ins) if reduced else ():
        if not local.is_padded(k, x.shape):
            continue
        for d, made_of in enumerate(factors.ins[k]):
            kinds = [reduced[f] for f in made_of if f in reduced]
            if kinds and x.shape[d] != masked[k].shape[d]:
                _, length = local.span(local.in_codes[k], x.shape[d], d)
                masked[k] = _mask(masked[k], d, length, identity(kinds[0], masked[k].dtype))
    return masked


def _mask(x: Any, dim: int, length: Any, filler: Any) -> Any:
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    return jnp.where((jnp.arange(x.shape[dim]) < length).reshape(shape), x, filler)
