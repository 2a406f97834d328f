"""The search for the cheapest plan that fits: solve; where memory is short, fit (``fit.py``)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .fit import Fitting
from .goal import Goal
from .program import Solution, solve


@dataclass(frozen=True, slots=True)
class Found:
    """The solution (its choice is the plan), its seconds a step without prices, and the bound proven for them.

    ``free_seconds``: of the cheapest plan without a memory limit, where the search knows it; ``free_choice``: that
    plan, where memory is short. ``memory_is_short``: whether that plan holds more than the limit.
    ``seconds_per_byte``: what a byte more would save, by the prices that prove the bound; ``prices`` has these by
    point. ``frontier``: of a method that finds several plans, their (seconds, peak bytes). ``notes``: what is to be
    told with the plan.
    """

    solution: Solution
    seconds: float
    bound: float
    free_seconds: float | None = None
    memory_is_short: bool = False
    seconds_per_byte: float = 0.0
    frontier: tuple[tuple[float, float], ...] = ()
    prices: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    free_choice: tuple[int, ...] | None = None


def search(goal: Goal) -> Found | None:
    """The cheapest plan within the limit; None where pins allow none, or none of less than ``goal.below`` seconds.
    When the budget is over it is the best one seen; ``notes`` say so.

    Raises ``TooSmall`` with the smallest limit found possible, where the goal's is less, or ``OutOfTime``.
    """
    if math.isfinite(goal.below) and goal.holds_too_much:  # the smallest limit is not asked for
        return None
    solution = solve(goal.problem, goal.gap, goal.budget, goal.guesses)
    if solution is None or solution.bound >= goal.below:
        return None
    limit, free = goal.limit_bytes, solution.objective
    if limit is None or goal.footprint.over_time(solution.choice).max(initial=0.0) <= limit:
        return Found(solution, free, solution.bound, free)
    if goal.start_stops:
        goal = replace(goal, budget=goal.budget.stopping(goal.start_stops))
    without_limit = solution.choice
    fitting = Fitting(goal, limit, solution)
    solution = fitting.run()
    if solution is None:
        return None
    notes = ()
    if fitting.was_stopped:
        if goal.budget.seconds_left <= 0:
            notes = ("time_limit was up while fitting into memory: the plan is the best one seen until then",)
        else:
            notes = (
                "the work that a search does by default was done while fitting into memory: the plan is the best one "
                'seen until then. Ask for more with effort="thorough", or give time_limit= (seconds)',
            )
    prices = fitting.prices or fitting.first_prices
    return Found(
        solution, solution.objective, solution.bound, free, memory_is_short=True,
        seconds_per_byte=sum(prices.values()), prices=prices, notes=notes, free_choice=without_limit,
    )  # fmt: skip
