"""Chimera: two pipelines in opposite directions, each with half of the micro-batches, fill each other's bubbles.

Li and Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines",
arXiv 2107.06925: a basic unit of p micro-batches, units one after the other ("direct concatenation").
Each rank holds the weights of two stages, and their gradients are added at the step's end.
"""

from ...errors import ScheduleError
from ..schedule import Kind, Schedule, Task
from ..timing import StageSeconds
from .build import fraction
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds) -> float | None:
    """(p-2) / (2m+p-2) if F = B and p divides m, as in the paper.

    Derived here: with at most p micro-batches (p-2)(F+B) - (m-2)min(F,B) idle seconds; with several whole units
    (p-2)|F-B| more between each and the next (the bubbles that forward doubling and backward halving
    are for); with a last unit of n < p micro-batches and F = B, 2p-2-n idle slots. None for other lengths: no formula
    is known then.
    """
    f, b = seconds.forward, seconds.whole_backward
    units = -(-microbatches // ranks)
    last = microbatches - (units - 1) * ranks
    if units > 1 and last < ranks and f != b:
        return None
    idle = (ranks - 2) * (f + b) - (last - 2) * min(f, b)
    if f != b:
        idle += (ranks - 2) * (units - 1) * abs(f - b)
    return fraction(idle, microbatches * (f + b))


def peak(ranks: int, microbatches: int) -> tuple[int, ...]:
    """From p/2+1 at the ends to p in the middle, as in the paper; fewer if m < p (derived here)."""
    n = min(microbatches, ranks)
    return tuple(min(n, n // 2 + 1 + min(r, ranks - 1 - r)) for r in range(ranks))


@register("chimera", bubble, peak)
def chimera(ranks: int, microbatches: int) -> Schedule:
    """One stage of each direction a rank; direction 1 has stage p-1-r at rank r.

    The two pipelines are merged by slots, F and B taking one each: within a unit every second slot starts a micro-batch
    of a direction, and units start every 2p slots, so that no two tasks of a rank meet.

    Raises:
        ScheduleError: the ranks or the micro-batches are odd.
    """
    odd = [f"{n} {what}" for n, what in ((ranks, "ranks"), (microbatches, "micro-batches")) if n % 2]
    if odd:
        raise ScheduleError(
            f"schedule 'chimera' needs even numbers of ranks and micro-batches, one half for each direction, but there "
            f"are {' and '.join(odd)}: take one more or one less, or '1f1b', which takes any"
        )
    slots: list[list[tuple[int, Task]]] = [[] for _ in range(ranks)]
    routes = []
    for k in range(microbatches):
        unit, within = divmod(k, ranks)
        # The last unit may be shorter; each half of a unit goes one way.
        size = min(ranks, microbatches - unit * ranks)
        direction, turn = divmod(within, size // 2)
        routes.append(direction)
        for stage in range(ranks):
            rank = ranks - 1 - stage if direction else stage
            start = 2 * ranks * unit + 2 * turn
            slots[rank] += [
                (start + stage, Task(Kind.FORWARD, k, stage, direction)),
                (start + 2 * ranks - 1 - stage, Task(Kind.BACKWARD, k, stage, direction)),
            ]
    there = tuple(range(ranks))
    return Schedule(
        name="chimera",
        stages=ranks,
        microbatches=microbatches,
        tasks=tuple(tuple(task for _, task in sorted(s, key=lambda at: at[0])) for s in slots),
        placement=(there, there[::-1]),
        routes=tuple(routes),
        weight_versions=(1,) * ranks,
    )
