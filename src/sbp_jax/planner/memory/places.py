"""What is held in the buffers of a program's results before those are written.

A result's buffer is there from the start of a step. XLA gives buffers to values from the largest to the smallest
(``BufferAssigner``): a value may have that of a result if it is no larger and not in use at the same time.
"""

import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...trace import Program, Value
from .lifetime import Lifetime
from .scratch import Scratch

# Places tried for one value: a step that returns a thousand gradients has as many, and tens of thousands of values.
_TRIED = 32


@dataclass(slots=True)
class Place:
    """The buffer of a result, and when it is taken: from and to moments, in order; of these a node has two."""

    result: Value
    starts: list[int]
    ends: list[int]

    def take(self, start: int, end: int) -> bool:
        """Take it from one moment to another, if nothing is there then. Whether it was free."""
        at = bisect.bisect_right(self.starts, end)
        if at and self.ends[at - 1] >= start:
            return False
        self.starts.insert(at, start)
        self.ends.insert(at, end)
        return True


def smallest_free(places: Sequence[Place], sizes: Sequence[float], size: float, start: int, end: int) -> int | None:
    """Take the smallest place that is large enough and free: its index. ``sizes`` are theirs, ascending."""
    first = bisect.bisect_left(sizes, size)
    return next((k for k in range(first, min(first + _TRIED, len(places))) if places[k].take(start, end)), None)


def largest_free(places: Sequence[Place], start: int, end: int) -> int | None:
    """Take the largest place that is free: its index."""
    last = len(places) - 1
    return next((k for k in range(last, max(-1, last - _TRIED), -1) if places[k].take(start, end)), None)


def lodge(
    program: Program, replacing: Collection[int], lives: Mapping[int, Lifetime],
    scratch: Mapping[int, Sequence[Scratch]], free: Collection[int],
) -> list[Place]:  # fmt: skip
    """Find a place for what fits into one, the largest first; the buffers of all results, the smallest first.

    ``replacing``: the outputs that are written over a donated argument, and have no buffer of their own.
    """
    # An op takes two moments: its early scratch is done with before its results are written.
    end = len(program.nodes) - 1
    places: list[Place] = []
    carried = {op.outs[1].id: op.outs[0].id for op in program.nodes if op.name == "sbp.carry"}
    for op in program.output_ops:
        if op.index not in replacing and isinstance(v := op.ins[0], Value):
            life = lives[carried.get(v.id, v.id)]  # a loop works in the buffer of what it carries
            start = 2 * (end if life.resident else life.made) + 1
            places.append(Place(v, [start], [2 * end + 1]))
    places.sort(key=lambda place: place.result.size_bytes)
    sizes = [place.result.size_bytes for place in places]
    wanting: list[tuple[float, int, int, Lifetime | Scratch]] = [
        (life.value.size_bytes, 2 * life.made + 1, 2 * life.kept + 1, life) for life in lives.values()
        if life.value.id not in free and life.kept >= life.made and life.value.shape
        and not (life.named or life.home or life.resident or life.inside)
    ]  # fmt: skip
    for index, work in scratch.items():
        at = lives[program.nodes[index].outs[0].id].made
        for item in work:
            start, final = item.span or (at, at)
            wanting.append((item.size_bytes, 2 * start, 2 * final + (not item.early), item))
    wanting.sort(key=lambda x: (-x[0], x[1]))
    for size, start, until, item in wanting:
        k = smallest_free(places, sizes, size, start, until)
        if k is not None:
            item.place = places[k].result
    return places
