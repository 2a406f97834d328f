"""Interleaved 1F1B: each rank runs several chunks of layers, which makes the bubble so many times smaller.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", arXiv 2104.04473,
section 2.2.2 (bubble, divisibility); Korthikanti et al., arXiv 2205.05198, section 4.2.3: its first rank holds
1 + (p-1)/(pv) times the activations of 1F1B, which is the ``peak`` here.
"""

from ...errors import ScheduleError
from ..schedule import Kind, Schedule, Task
from ..timing import StageSeconds
from .build import fraction, looped, one_direction
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds, chunks: int = 2) -> float:
    """(p-1) / (vm + p-1) of the makespan: section 2.2.2's (p-1)/(vm) is relative to the work."""
    return fraction(ranks - 1, chunks * microbatches)


def peak(ranks: int, microbatches: int, chunks: int = 2) -> tuple[int, ...]:
    """min(2(p-1-r) + (v-1)p + 1, vm) at rank r, of one chunk each."""
    first = (chunks + 1) * ranks - 1
    return tuple(min(first - 2 * r, chunks * microbatches) for r in range(ranks))


def _ahead(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    """How many forwards rank ``rank`` is ahead: twice its distance to the last, and all chunks but one."""
    return min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, chunks * microbatches)


@register("interleaved_1f1b", bubble, peak)
def interleaved_1f1b(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """``chunks`` stages a rank, placed in turn; micro-batches go through a rank's chunks in groups of p.

    Raises:
        ScheduleError: the micro-batches are not a multiple of the ranks.
    """
    if microbatches % ranks:
        below = microbatches - microbatches % ranks
        raise ScheduleError(
            f"schedule 'interleaved_1f1b' needs micro-batches divisible by ranks, but {microbatches} is not divisible "
            f"by {ranks}: take {f'{below} or ' if below else ''}{below + ranks} micro-batches, "
            "or 'interleaved_gpipe' or '1f1b', which take any"
        )
    orders = []
    for rank in range(ranks):
        forward = [
            (group * ranks + k, chunk * ranks + rank)
            for group in range(microbatches // ranks)
            for chunk in range(chunks)
            for k in range(ranks)
        ]
        # Backward, the chunks of a group come the other way round.
        backward = [(k, (chunks - 1) * ranks + 2 * rank - stage) for k, stage in forward]
        f = [Task(Kind.FORWARD, *at) for at in forward]
        b = [Task(Kind.BACKWARD, *at) for at in backward]
        ahead = _ahead(ranks, microbatches, chunks, rank)
        in_turn = [task for pair in zip(f[ahead:], b, strict=False) for task in pair]
        orders.append(f[:ahead] + in_turn + b[len(f) - ahead :])
    return one_direction("interleaved_1f1b", microbatches, orders, looped(ranks, chunks * ranks))
