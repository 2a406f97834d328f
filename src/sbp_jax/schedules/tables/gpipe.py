"""GPipe: all micro-batches forward, then all backward.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", arXiv 1811.06965,
section 2.3. Its bubble is O((p-1)/(m+p-1)) there, which is exact for stages of the same length.
"""

from ..schedule import Schedule
from ..timing import StageSeconds
from .build import RankOrder, fraction, looped, one_direction
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds) -> float:
    """(p-1) / (m+p-1), whatever the lengths of F and B."""
    return fraction(ranks - 1, microbatches)


def peak(ranks: int, microbatches: int) -> tuple[int, ...]:
    """All micro-batches, at every rank (section 2.3 holds only their inputs, and recomputes the rest)."""
    return (microbatches,) * ranks


@register("gpipe", bubble, peak)
def gpipe(ranks: int, microbatches: int) -> Schedule:
    """One stage a rank; B in the order of F, as JaxPP does (arXiv 2412.14374)."""
    orders = [RankOrder([r], microbatches).add("F0", microbatches).add("B0", microbatches).tasks for r in range(ranks)]
    return one_direction("gpipe", microbatches, orders, looped(ranks, ranks))
