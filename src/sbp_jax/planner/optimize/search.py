"""The search for the cheapest plan that fits: solve; where memory is short, fit (``fit.py``)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..costs.cost_graph import CostGraph
from ..memory.protocol import FootprintLike
from .fit import FindStart, Fitting
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


def search(
    problem: CostGraph, footprint: FootprintLike, limit: float | None, gap: float, time_limit: float | None,
    progress: Callable[[str], None], thorough: bool = False, below: float = math.inf,
    patience: float = 1.0, find_start: FindStart | None = None,
) -> Found | None:  # fmt: skip
    """The cheapest plan within ``limit`` bytes a device; None where pins allow none, or none of less than ``below``.
    Where the cheapest of all is not within it, ``find_start`` is asked for a plan to begin with.

    Raises ``TooSmall`` with the smallest limit found possible, where ``limit`` is less.
    """
    solution = solve(problem, gap, time_limit)
    if solution is None or solution.bound >= below:
        return None
    free, is_short = solution.objective, False
    if limit is not None and footprint.over_time(solution.choice).max(initial=0.0) > limit:
        is_short = True
        fitting = Fitting(
            problem, footprint, limit, solution, gap, time_limit, progress, thorough, below, patience, find_start
        )
        solution = fitting.run()
    return solution and Found(solution, solution.objective, solution.bound, free, is_short)
