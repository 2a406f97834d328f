"""Eager 1F1B: 1F1B with twice as many forwards ahead, so that transfers overlap with computation.

Zhuang et al., "On Optimizing the Communication of Model Parallelism", arXiv 2211.05322, section 4; policy B of DAPPLE,
arXiv 2007.01045; JaxPP's ``Eager1F1B``, arXiv 2412.14374. Without transfers its bubble is that of 1F1B.
"""

from ..schedule import Schedule
from .build import looped, one_direction, one_f_one_b_orders
from .gpipe import bubble
from .registry import register


def peak(ranks: int, microbatches: int) -> tuple[int, ...]:
    """min(2(p-r)-1, m) at rank r, DAPPLE's K of policy B."""
    return tuple(min(2 * (ranks - r) - 1, microbatches) for r in range(ranks))


@register("eager_1f1b", bubble, peak)
def eager_1f1b(ranks: int, microbatches: int) -> Schedule:
    """One stage a rank; rank r is 2(p-1-r) forwards ahead."""
    orders = one_f_one_b_orders(microbatches, [2 * (ranks - 1 - r) for r in range(ranks)])
    return one_direction("eager_1f1b", microbatches, orders, looped(ranks, ranks))
