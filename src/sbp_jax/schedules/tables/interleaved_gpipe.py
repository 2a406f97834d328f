"""Interleaved GPipe: GPipe with several chunks of layers a rank, all micro-batches through one chunk after the other.

Lamy-Poirier, "Breadth-First Pipeline Parallelism", arXiv 2211.05953 (the order). JaxPP's ``InterleavedGPipe``
(arXiv 2412.14374) has two chunks and goes through them in groups of p micro-batches; the bubble is the same.
"""

from ..schedule import Schedule
from ..timing import StageSeconds
from .build import RankOrder, fraction, looped, one_direction
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds, chunks: int = 2) -> float:
    """(p-1) / (vm + p-1) if m >= p. With fewer, each chunk but the last waits p-m more (derived here)."""
    idle = ranks - 1 + (chunks - 1) * max(ranks - microbatches, 0)
    return fraction(idle, chunks * microbatches)


def peak(ranks: int, microbatches: int, chunks: int = 2) -> tuple[int, ...]:
    """All micro-batches of all chunks, at every rank."""
    return (chunks * microbatches,) * ranks


@register("interleaved_gpipe", bubble, peak)
def interleaved_gpipe(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """``chunks`` stages a rank, placed in turn."""
    orders = []
    for rank in range(ranks):
        order = RankOrder(range(rank, chunks * ranks, ranks), microbatches)
        for chunk in range(chunks):
            order.add(f"F{chunk}", microbatches)
        for chunk in reversed(range(chunks)):
            order.add(f"B{chunk}", microbatches)
        orders.append(order.tasks)
    return one_direction("interleaved_gpipe", microbatches, orders, looped(ranks, chunks * ranks))
