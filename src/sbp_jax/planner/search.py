"""The search for the cheapest plan that fits: solve; where memory is short, fit (``fit.py``)."""

from collections.abc import Callable
from dataclasses import dataclass

from .fit import Fitting
from .memory import FootprintLike
from .problem import Problem
from .solve import Solution, solve


@dataclass(frozen=True, slots=True)
class Found:
    """The solution (its choice is the plan), its seconds a step without prices, and the bound proven for them."""

    solution: Solution
    seconds: float
    bound: float


@dataclass(slots=True)
class Search:
    """One planning problem, with and without a memory limit."""

    problem: Problem
    footprint: FootprintLike
    gap: float
    time_limit: float | None
    progress: Callable[[str], None]
    thorough: bool = False

    def run(self, limit: float | None) -> Found | None:
        """The cheapest plan within ``limit`` bytes a device; None where pins allow no plan at all.

        Raises ``PlanError`` with the smallest limit found possible, where ``limit`` is less.
        """
        solution = solve(self.problem, self.gap, self.time_limit)
        if solution is None:
            return None
        if limit is not None and self.footprint.over_time(solution.choice).max(initial=0.0) > limit:
            solution = Fitting(
                self.problem,
                self.footprint,
                limit,
                solution,
                self.gap,
                self.time_limit,
                self.progress,
                self.thorough,
            ).run()
        return Found(solution, solution.objective, solution.bound)
