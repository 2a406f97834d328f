"""ZB-V: two chunks a rank, placed there and back, and a split backward pass: no bubble with the memory of 1F1B.

Qi, Wan, Huang and Lin, arXiv 2401.10241; as "V-ZB" in Qi et al., "Pipeline Parallelism with Controllable
Memory", arXiv 2405.15362. Its first and last stage are at the same rank. The papers count the bubble between a rank's
first start and last end (``Timing.span_bubble_fraction``): it is 0 if F, I and W take equally long and there are at
least 2p-1 micro-batches. Here, as for all schedules, it is counted in the makespan.
"""

from ..schedule import Schedule
from ..timing import StageSeconds
from .build import RankOrder, fraction, one_direction, v_shaped
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds) -> float | None:
    """If F = I = W: the last rank's wait of p-1 forwards at the start, and more if m < 2p-1 (derived here).

    If only F = I >= W and m >= 2p-1: (p-1)max(F, 2(F-W)) idle seconds, 2(p-1)(F-W) of them within a rank's span
    (derived here). None for other lengths: no formula is known then.
    """
    f, i, w = seconds.forward, seconds.input_gradient, seconds.weight_gradient
    if f == i == w:
        idle = f * max(ranks - 1, 4 * (ranks - 1) - 2 * (microbatches - 1))
    elif f == i > w and microbatches >= 2 * ranks - 1:
        idle = (ranks - 1) * max(f, 2 * (f - w))
    else:
        return None
    return fraction(idle, 2 * microbatches * (f + i + w))


def peak(ranks: int, microbatches: int) -> tuple[int, ...]:
    """2p chunks, as much as the p stages of 1F1B; fewer if m < 2p-1 (derived here)."""
    return tuple(min(2 * ranks, 2 * microbatches, microbatches + 1 + r) for r in range(ranks))


@register("zb_v", bubble, peak, chunks=2)
def zb_v(ranks: int, microbatches: int) -> Schedule:
    """Chunk 0 of rank r is stage r, chunk 1 stage 2p-1-r."""
    orders = []
    # A step of few micro-batches is a longer one whose last ones are left out.
    long = max(microbatches, 2 * ranks - 1)
    for rank in range(ranks):
        after = ranks - rank
        order = RankOrder((rank, 2 * ranks - 1 - rank), microbatches)
        order.add("F0", 2 * after - 1).add("F1 F0", rank).add("F1 I1 W1", after)
        order.add("F0 I0 W0 F1 I1 W1", long - 2 * after + 1 - rank).add("I0 W0 F1 I1 W1", after - 1)
        order.add("I0 I1", rank).add("I0 W0", after).add("W", 2 * rank)
        orders.append(order.tasks)
    return one_direction("zb_v", microbatches, orders, v_shaped(ranks))
