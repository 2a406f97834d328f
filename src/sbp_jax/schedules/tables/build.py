"""What schedules are built from: a rank's tasks phase by phase, and the usual placements of stages."""

from collections.abc import Sequence

from ..schedule import Kind, Schedule, Task


class RankOrder:
    """The tasks of one rank in order; micro-batches of each of its stages come one after the other.

    ``stages`` are the rank's virtual stages, here called chunks 0, 1, ...; micro-batches from ``microbatches`` on are
    left out, so that patterns may run beyond the last.
    """

    def __init__(self, stages: Sequence[int], microbatches: int) -> None:
        self.stages = stages
        self.microbatches = microbatches
        self.tasks: list[Task] = []
        self._next = {(kind, chunk): 0 for kind in "FBW" for chunk in range(len(stages))}
        self._pending: list[tuple[int, int]] = []

    def add(self, pattern: str, times: int = 1) -> "RankOrder":
        """Append the next tasks of a pattern, so many times: ``F0 I1`` is F of chunk 0, then I of chunk 1.

        B and I of a chunk take its next micro-batch of the backward pass; ``W1`` the next of chunk 1 whose weight
        gradients are due, ``W`` that of any chunk, the one due for longest; nothing if none is due.
        """
        for _ in range(times):
            for name in pattern.split():
                self._add(Kind(name[0]), int(name[1:]) if name[1:] else None)
        return self

    def _add(self, kind: Kind, chunk: int | None) -> None:
        if kind is Kind.WEIGHT:
            due = next((p for p in self._pending if chunk in (None, p[0])), None)
            if due is not None:
                self._pending.remove(due)
                self._append(kind, *due)
            return
        assert chunk is not None
        counter = ("F" if kind is Kind.FORWARD else "B", chunk)
        microbatch = self._next[counter]
        self._next[counter] += 1
        if microbatch < self.microbatches:
            self._append(kind, chunk, microbatch)
            if kind is Kind.INPUT:
                self._pending.append((chunk, microbatch))

    def _append(self, kind: Kind, chunk: int, microbatch: int) -> None:
        self.tasks.append(Task(kind, microbatch, self.stages[chunk]))


def looped(ranks: int, stages: int) -> tuple[int, ...]:
    """The rank of each stage where stages go round all ranks again and again: 0 1 2 0 1 2."""
    return tuple(s % ranks for s in range(stages))


def v_shaped(ranks: int) -> tuple[int, ...]:
    """The rank of each of two stages a rank, there and back: 0 1 2 2 1 0."""
    return tuple(min(s, 2 * ranks - 1 - s) for s in range(2 * ranks))


def one_direction(
    name: str,
    microbatches: int,
    orders: Sequence[Sequence[Task]],
    placement: tuple[int, ...],
    weight_versions: tuple[int, ...] | None = None,
    is_synchronous: bool = True,
    update_every: int | None = None,
    update_delay: int | None = None,
) -> Schedule:
    """A schedule whose micro-batches all go the same way."""
    return Schedule(
        name=name,
        stages=len(placement),
        microbatches=microbatches,
        tasks=tuple(map(tuple, orders)),
        placement=(placement,),
        routes=(0,) * microbatches,
        weight_versions=weight_versions or (1,) * len(orders),
        is_synchronous=is_synchronous,
        update_every=update_every,
        update_delay=update_delay,
    )


def one_f_one_b_orders(microbatches: int, forwards_ahead: Sequence[int]) -> list[list[Task]]:
    """One stage a rank: so many F ahead, then F and B in turn, then the B that are left."""
    orders = []
    for rank, ahead in enumerate(forwards_ahead):
        ahead = min(ahead, microbatches)
        order = RankOrder([rank], microbatches)
        orders.append(order.add("F0", ahead).add("F0 B0", microbatches - ahead).add("B0", ahead).tasks)
    return orders


def fraction(idle_seconds: float, busy_seconds: float) -> float:
    """The bubble fraction of a rank that is idle and busy for so long."""
    whole = idle_seconds + busy_seconds
    return idle_seconds / whole if whole else 0.0
