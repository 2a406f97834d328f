"""DualPipe-V: DualPipe's two directions folded into one V, so that no weights are there twice.

DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1 (DualPipe); cut in half as in
github.com/deepseek-ai/DualPipe and in Sea AI Lab's "DualPipe could be better without the Dual". In its main phase the F
of one chunk stands beside the B of the other, so that one's communication can overlap with the other's computation;
here they are two tasks, one after the other. The backward pass is split where that fills bubbles only.
"""

from ...errors import ScheduleError
from ..schedule import Schedule
from ..timing import StageSeconds
from .build import RankOrder, fraction, one_direction, v_shaped
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds) -> float | None:
    """(p-1)(F + I - W) idle seconds if F = I >= W (and B = I + W), derived here; None for other lengths.

    DeepSeek's (PP/2-1)(F&B + B - 3W), with PP = 2p stages, takes an F and a B that overlap as one task, after whose end
    both results are there: that is (p-1)(F + 2I - W) where F&B = F + B. ``tests/schedules`` finds both in this table.
    """
    f, i, w = seconds.forward, seconds.input_gradient, seconds.weight_gradient
    if not (f == i >= w and seconds.whole_backward == i + w):
        return None
    return fraction((ranks - 1) * (f + i - w), 2 * microbatches * (f + i + w))


def peak(ranks: int, microbatches: int) -> tuple[int, ...]:
    """2p+1 chunks, DeepSeek's PP+1."""
    return (2 * ranks + 1,) * ranks


@register("dualpipe_v", bubble, peak, chunks=2)
def dualpipe_v(ranks: int, microbatches: int) -> Schedule:
    """Chunk 0 of rank r is stage r, chunk 1 stage 2p-1-r.

    Raises:
        ScheduleError: there are fewer than 2p micro-batches.
    """
    if microbatches < 2 * ranks:
        raise ScheduleError(
            f"schedule 'dualpipe_v' needs at least two micro-batches a rank, {2 * ranks} for {ranks} ranks, but there "
            f"are {microbatches}: take more micro-batches, fewer ranks, or 'zb_v', which takes any"
        )
    orders = []
    for rank in range(ranks):
        after = ranks - 1 - rank
        order = RankOrder((rank, 2 * ranks - 1 - rank), microbatches)
        order.add("F0", 2 * after).add("F0 F1", rank + 1).add("I1 W F1", after)
        order.add("F0 B1 F1 B0", microbatches - 2 * ranks + rank + 1).add("B1 F1 B0", after)
        # Of these 2(rank+1) backward passes the second half, and all later ones, leave their W for the end.
        whole = rank + 1
        order.add("B1 B0", whole // 2).add("B1 I0", whole % 2).add("I1 I0", whole // 2)
        order.add("W I0", after).add("W", 2 * ranks)
        orders.append(order.tasks)
    return one_direction("dualpipe_v", microbatches, orders, v_shaped(ranks))
