"""The search for the cheapest plan that fits: solve; where memory is short, fit (``fit.py``)."""

import math
import time
from dataclasses import dataclass

from .fit import Fitting
from .goal import Goal
from .program import Solution, solve


@dataclass(frozen=True, slots=True)
class Found:
    """The solution (its choice is the plan), its seconds a step without prices, and the bound proven for them.

    ``free_seconds``: of the cheapest plan without a memory limit, where the search knows it. ``memory_is_short``:
    whether that plan holds more than the limit. ``notes``: what is to be told with the plan.
    """

    solution: Solution
    seconds: float
    bound: float
    free_seconds: float | None = None
    memory_is_short: bool = False
    notes: tuple[str, ...] = ()


def search(goal: Goal) -> Found | None:
    """The cheapest plan within the limit; None where pins allow none, or none of less than ``goal.below`` seconds.
    Past the time limit it is the best one seen; ``notes`` say so.

    Raises ``TooSmall`` with the smallest limit found possible, where the goal's is less, or ``OutOfTime``.
    """
    deadline = math.inf if goal.time_limit is None else time.monotonic() + goal.time_limit
    solution = solve(goal.problem, goal.gap, goal.time_limit)
    if solution is None or solution.bound >= goal.below:
        return None
    limit, free = goal.limit_bytes, solution.objective
    if limit is None or goal.footprint.over_time(solution.choice).max(initial=0.0) <= limit:
        return Found(solution, free, solution.bound, free)
    fitting = Fitting(goal, limit, solution, deadline)
    solution = fitting.run()
    if solution is None:
        return None
    notes = ()
    if fitting.was_stopped:
        # Without a limit of the user's, the search has one of its own.
        up = "time_limit was up" if goal.thorough else "the time that a search has by default was up"
        longer = "" if goal.thorough else ". Give time_limit= (seconds) to search longer"
        notes = (f"{up} while fitting into memory: the plan is the best one seen until then{longer}",)
    return Found(solution, solution.objective, solution.bound, free, memory_is_short=True, notes=notes)
