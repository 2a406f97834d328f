"""How many micro-batches a stage holds the activations of, by the schedule."""

from typing import Protocol

from ...errors import ScheduleError
from ...schedules import schedules

_CHECKED_RANKS = 8


class InFlight(Protocol):
    """The most micro-batches whose activations a stage holds at once, of ``microbatches`` in a step.

    ``stages_after`` is how many stages follow it. It may not decrease with ``stages_after``.
    """

    def __call__(self, stages_after: int, microbatches: int) -> int: ...


def in_flight_of(schedule: str) -> InFlight:
    """By a schedule's name: ``min(stages_after + 1, microbatches)`` for ``1f1b``, ``microbatches`` for ``gpipe``.

    It is the schedule's own formula for the peak at the first of ``stages_after + 1`` ranks.

    Raises:
        ScheduleError: no such schedule, or one with more than one stage a rank, with several versions of its weights
            (they would have to be counted, too), or whose peak depends on more than the stages after a stage.
    """
    known = schedules()
    usable = [name for name in sorted(known) if _depends_on_stages_after(name)]
    if schedule not in usable:
        why = "holds what does not depend on the stages after a stage alone" if schedule in known else "is not known"
        raise ScheduleError(f"schedule {schedule!r} {why}; possible: {', '.join(map(repr, usable))}")
    peak = known[schedule].peak

    def in_flight(stages_after: int, microbatches: int) -> int:
        return int(peak(stages_after + 1, microbatches)[0])

    return in_flight


def _depends_on_stages_after(name: str) -> bool:
    kind = schedules()[name]
    if kind.chunks != 1 or kind.options or not kind.make(2, 2).is_synchronous:
        return False
    for microbatches in (1, 3, 2 * _CHECKED_RANKS):
        for ranks in range(1, _CHECKED_RANKS + 1):
            try:
                peaks = kind.peak(ranks, microbatches)
                alone = tuple(kind.peak(ranks - r, microbatches)[0] for r in range(ranks))
            except ScheduleError:
                return False
            if peaks != alone or list(peaks) != sorted(peaks, reverse=True):
                return False
    return True
