"""Schedules by name: how each is made, and what it promises."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from ...errors import ScheduleError
from ..schedule import Schedule
from ..timing import StageSeconds


class BubbleFormula(Protocol):
    """The bubble fraction by formula, or None where none is known for these numbers.

    The part of ranks x makespan in which no rank computes; ``seconds`` are those of every virtual stage, transfers are
    free.
    """

    def __call__(self, ranks: int, microbatches: int, seconds: StageSeconds, **options: int) -> float | None: ...


class PeakFormula(Protocol):
    """For each rank, the most activations it holds at once (counted as in ``held_in_order``)."""

    def __call__(self, ranks: int, microbatches: int, **options: int) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class ScheduleType:
    """A schedule for any number of ranks and micro-batches.

    Attributes:
        make: from ranks, micro-batches and options to a schedule; ``ScheduleError`` says which numbers are possible.
        bubble: the bubble fraction by formula; see ``BubbleFormula``.
        peak: the promised peak of held activations; see ``PeakFormula``.
        options: the names of the options, which all three take.
        chunks: how many virtual stages a rank has, of each direction; None if that is the option ``chunks``.
    """

    name: str
    make: Callable[..., Schedule]
    bubble: BubbleFormula
    peak: PeakFormula
    options: tuple[str, ...]
    chunks: int | None


_TYPES: dict[str, ScheduleType] = {}

Maker = Callable[..., Schedule]


def register(
    name: str, bubble: Callable[..., float | None], peak: Callable[..., tuple[int, ...]], chunks: int = 1
) -> Callable[[Maker], Maker]:
    """Register a function ``(ranks, microbatches, **options) -> Schedule`` with its formulas, under a name.

    ``chunks`` is how many virtual stages a rank has, where the function has no option of this name.
    """

    def add(make: Maker) -> Maker:
        if name in _TYPES:
            raise ScheduleError(f"there is a schedule {name!r} already")

        @functools.wraps(make)
        def checked(ranks: int, microbatches: int, **options: int) -> Schedule:
            _check_counts(name, ranks=ranks, microbatches=microbatches, **options)
            return make(ranks, microbatches, **options)

        options = tuple(inspect.signature(make).parameters)[2:]
        _TYPES[name] = ScheduleType(name, checked, bubble, peak, options, None if "chunks" in options else chunks)
        return checked

    return add


def _check_counts(name: str, **counts: int) -> None:
    for what, given in counts.items():
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise ScheduleError(f"schedule {name!r}: {what} is {given!r}, must be an int of at least 1")


def schedules() -> Mapping[str, ScheduleType]:
    """All schedules by name."""
    return MappingProxyType(_TYPES)


def by_name(name: str, ranks: int, microbatches: int, *, stages: int | None = None, **options: int) -> Schedule:
    """The schedule of a name, for so many ranks and micro-batches.

    ``stages`` is how many virtual stages the model is cut into; without it, the schedule's default.

    Raises:
        ScheduleError: no such name (the message gives the nearest, and all), an option that the schedule does not
            take, or numbers that it cannot be made for.
    """
    if name not in _TYPES:
        near = difflib.get_close_matches(str(name), _TYPES, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
        raise ScheduleError(f"schedule {name!r} is not known{hint} Possible: {', '.join(map(repr, sorted(_TYPES)))}")
    found = _TYPES[name]
    unknown = [o for o in options if o not in found.options]
    if unknown:
        raise ScheduleError(
            f"schedule {name!r} does not take {', '.join(unknown)}; "
            + (f"possible: {', '.join(found.options)}" if found.options else "it takes ranks and microbatches only")
        )
    if stages is None:
        return found.make(ranks, microbatches, **options)
    _check_counts(name, ranks=ranks, stages=stages)
    if found.chunks is None and "chunks" not in options and stages % ranks == 0:
        options = {"chunks": stages // ranks}
    schedule = found.make(ranks, microbatches, **options)
    if schedule.stages != stages:
        raise ScheduleError(_wrong_stages(found, ranks, stages, options))
    return schedule


def _wrong_stages(found: ScheduleType, ranks: int, stages: int, options: Mapping[str, int]) -> str:
    """The message for a number of stages that the schedule cannot have."""
    asked = f"but {stages} stages are asked for"
    chunks = options.get("chunks") or found.chunks
    if chunks is None:
        below = stages - stages % ranks
        possible = f"{below} or {below + ranks}" if below > 0 else str(ranks)
        return f"schedule {found.name!r} needs stages divisible by ranks, {ranks} here, {asked}: take {possible} stages"
    several = [t.name for t in _TYPES.values() if t.chunks is None and t is not found]
    ways = [f"{chunks * ranks} stages"]
    if stages % chunks == 0:
        ways.append(f"{stages // chunks} ranks")
    if stages % ranks == 0 and several:
        ways.append(f"{' or '.join(map(repr, several))} with any multiple of the ranks")
    which = f"{chunks} stage{'s' if chunks > 1 else ''} a rank, {chunks * ranks} for {ranks} ranks"
    return f"schedule {found.name!r} has {which}, {asked}: take {', or '.join(ways)}"
