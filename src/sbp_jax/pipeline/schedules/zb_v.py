"""ZB-V"""

from ..schedule import Schedule
from ..timing import StageSeconds
from .build import RankOrder, one_direction, v_shaped
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds) -> float | None:
    return None


def peak(ranks: int, microbatches: int) -> tuple[int, ...]:
    return (min(2 * ranks, 2 * microbatches),) * ranks


@register("zb_v", bubble, peak)
def zb_v(ranks: int, microbatches: int) -> Schedule:
    orders = []
    # Shorter steps are a long one whose last micro-batches are left out.
    long = max(microbatches, 2 * ranks - 1)
    for rank in range(ranks):
        after = ranks - rank
        order = RankOrder((rank, 2 * ranks - 1 - rank), microbatches)
        order.add("F0", 2 * after - 1).add("F1 F0", rank).add("F1 I1 W1", after)
        order.add("F0 I0 W0 F1 I1 W1", long - 2 * ranks + 1 + rank)
        order.add("I0 W0 F1 I1 W1", after - 1)
        order.add("I0 I1", rank).add("I0 W0", after).add("W", 2 * microbatches)
        orders.append(order.tasks)
    return one_direction("zb_v", microbatches, orders, v_shaped(ranks))
