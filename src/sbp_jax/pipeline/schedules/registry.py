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
    """

    name: str
    make: Callable[..., Schedule]
    bubble: BubbleFormula
    peak: PeakFormula
    options: tuple[str, ...]


_TYPES: dict[str, ScheduleType] = {}

Maker = Callable[..., Schedule]


def register(
    name: str, bubble: Callable[..., float | None], peak: Callable[..., tuple[int, ...]]
) -> Callable[[Maker], Maker]:
    """Register a function ``(ranks, microbatches, **options) -> Schedule`` with its formulas, under a name."""

    def add(make: Maker) -> Maker:
        if name in _TYPES:
            raise ScheduleError(f"there is a schedule {name!r} already")

        @functools.wraps(make)
        def checked(ranks: int, microbatches: int, **options: int) -> Schedule:
            for what, given in (("ranks", ranks), ("microbatches", microbatches), *options.items()):
                if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                    raise ScheduleError(f"schedule {name!r}: {what} is {given!r}, must be an int of at least 1")
            return make(ranks, microbatches, **options)

        options = tuple(inspect.signature(make).parameters)[2:]
        _TYPES[name] = ScheduleType(name, checked, bubble, peak, options)
        return checked

    return add


def schedules() -> Mapping[str, ScheduleType]:
    """All schedules by name."""
    return MappingProxyType(_TYPES)


def by_name(name: str, ranks: int, microbatches: int, **options: int) -> Schedule:
    """The schedule of a name, for so many ranks and micro-batches.

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
    return found.make(ranks, microbatches, **options)
