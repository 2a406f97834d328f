"""The exact search with an end: past its time the best plan seen so far is the answer."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from ..memory.infeasible import OutOfTime
from ..memory.protocol import FootprintLike
from ..optimize.program import Solution, solve
from ..optimize.search import Found, search
from .task import Task

# The part of the time limit that a bound may take in the end.
_FOR_A_BOUND = 0.1


class _TimeUp(Exception):
    pass


@dataclass(slots=True)
class _Watch:
    """A footprint that remembers the cheapest plan it was asked about that fits, and stops when time is up.

    Not before a plan overflowed: what fits needs no search for what fits.
    """

    base: FootprintLike
    problem: CostGraph
    limit_bytes: float
    deadline: float
    best: tuple[float, tuple[int, ...]] | None = None
    memory_is_short: bool = False
    smallest_bytes: float = field(default=math.inf)

    def over_time(self, choice: Sequence[int]) -> np.ndarray:
        memory = self.base.over_time(choice)
        peak, seconds = float(memory.max(initial=0.0)), self.problem.evaluate(choice)
        self.smallest_bytes = min(self.smallest_bytes, peak)
        if peak <= self.limit_bytes and seconds < min(IMPOSSIBLE, math.inf if self.best is None else self.best[0]):
            self.best = seconds, tuple(choice)
        self.memory_is_short |= peak > self.limit_bytes
        if self.memory_is_short and time.monotonic() > self.deadline:
            raise _TimeUp
        return memory

    def at(self, point: int) -> CostGraph:
        return self.base.at(point)

    def held(self, choice: Sequence[int], point: int) -> list[tuple[str, float]]:
        return self.base.held(choice, point)


def timed_search(task: Task) -> Found | None:
    """``search`` within the task's time and memory. ``OutOfTime`` where nothing that fits was found in time."""

    def within(footprint: FootprintLike) -> Found | None:
        return search(
            task.problem, footprint, task.limit_bytes, task.gap, task.time_limit, task.progress, task.thorough,
            task.below, task.patience, task.find_start,
        )  # fmt: skip

    if task.time_limit is None or task.limit_bytes is None:
        return within(task.footprint)
    deadline = time.monotonic() + task.time_limit
    watch = _Watch(task.footprint, task.problem, task.limit_bytes, deadline)
    try:
        return within(watch)
    except _TimeUp:
        if watch.best is None:
            raise OutOfTime(
                f"no plan was found in time that fits into a memory limit of {task.limit_bytes:.0f} bytes per device; "
                f"the smallest seen holds {watch.smallest_bytes:.0f}. Raise time_limit, or memory_limit",
                watch.smallest_bytes,
            ) from None
        seconds, choice = watch.best
        # What the search has proven went with it; without the limit a bound is quick, and holds with it, too.
        free = solve(task.problem, task.gap, max(1.0, _FOR_A_BOUND * task.time_limit))
        bound = min(seconds, free.bound if free is not None else 0.0)
        cheapest = None if free is None else free.objective
        # Without a limit of the user's, the search has one of its own.
        up = "time_limit was up" if task.thorough else "the time that a search has by default was up"
        longer = "" if task.thorough else ". Give time_limit= (seconds) to search longer"
        note = f"{up} while fitting into memory: the plan is the best one seen until then{longer}"
        solution = Solution(choice, seconds, bound, len(choice), 0)
        return Found(solution, seconds, bound, cheapest, memory_is_short=True, notes=(note,))
