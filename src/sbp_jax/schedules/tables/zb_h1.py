"""ZB-H1: 1F1B with the backward pass split, the weights' part delayed into what was bubble.

Qi, Wan, Huang and Lin, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.1: a third of the bubble
of 1F1B where F, I and W take equally long, and no more activations than its first rank holds.
"""

from ..schedule import Schedule
from ..timing import StageSeconds
from .build import RankOrder, fraction, looped, one_direction
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds) -> float | None:
    """(p-1)(F + I - W) idle seconds, as in the paper, if m >= p and W is at most F and I.

    Derived here for all else: each of the first min(m, p) micro-batches but one saves the shortest of F, I and W.
    None where m < p and W is the longest or between the others: no formula is known then.
    """
    f, i, w = seconds.forward, seconds.input_gradient, seconds.weight_gradient
    if microbatches < ranks and w > min(f, i):
        return None
    idle = (ranks - 1) * (f + i) - (min(microbatches, ranks) - 1) * min(f, i, w)
    return fraction(idle, microbatches * (f + i + w))


def peak(ranks: int, microbatches: int) -> tuple[int, ...]:
    """min(p, m) at every rank: W is delayed until as many micro-batches are held as at the first."""
    return (min(ranks, microbatches),) * ranks


@register("zb_h1", bubble, peak)
def zb_h1(ranks: int, microbatches: int) -> Schedule:
    """One stage a rank. Rank r runs r rounds of F and I without W, so that its last r W fill the end of the step."""
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - rank, microbatches)
        without = min(rank, microbatches - ahead)
        order = RankOrder([rank], microbatches)
        order.add("F0", ahead).add("I0 F0", without).add("I0 W0 F0", microbatches - ahead - without)
        orders.append(order.add("I0 W0", ahead).add("W0", without).tasks)
    return one_direction("zb_h1", microbatches, orders, looped(ranks, ranks))
