"""1F1B: one forward, one backward in turn, so that a rank holds no more micro-batches than there are ranks after it.

PipeDream-Flush: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section 3.2;
policy A of DAPPLE's early backward scheduling: Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training
Large Models", arXiv 2007.01045. The bubble is that of GPipe: arXiv 2104.04473, section 2.2.1.
"""

from ..schedule import Schedule
from .build import looped, one_direction, one_f_one_b_orders
from .gpipe import bubble
from .registry import register


def peak(ranks: int, microbatches: int) -> tuple[int, ...]:
    """min(p-r, m) at rank r."""
    return tuple(min(ranks - r, microbatches) for r in range(ranks))


@register("1f1b", bubble, peak)
def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """One stage a rank; rank r is p-1-r forwards ahead."""
    orders = one_f_one_b_orders(microbatches, range(ranks - 1, -1, -1))
    return one_direction("1f1b", microbatches, orders, looped(ranks, ranks))
