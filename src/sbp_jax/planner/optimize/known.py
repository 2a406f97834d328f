"""What is known while a plan is brought within a memory limit: plans, prices for bytes, the bound that they prove.

Memory is a constraint at every point of the step. The points where plans overflow get a price for each byte
(Lagrange multipliers: Geoffrion, Math. Prog. Study 2, 1974), chosen by ``bundle.py``. The optimum under prices, less
the prices of what is allowed, is a proven lower bound for every plan that fits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..budget import Budget
from ..costs.cost_graph import CostGraph, Subset, penalised
from .bundle import better
from .goal import Goal, Start
from .program import Solution, relax_within, solve, solve_within
from .recombine import Pool, Seen

# Set by hand; docs/decisions/0015 to 0017 measure what it leads to. Prices are searched until their bound may grow by
# no more than this gap.
ROUND_GAP = 1e-3
# Prices are at most so many times the step's seconds for the whole limit.
_CAP = 100.0
# Beyond so many pairs of choices the linear relaxation only is solved at prices: it is a step, not a result.
_FEW_PAIRS = 2_000
# For one relaxation, in seconds of work (``budget.py``).
RELAXED_SECONDS = 4.0
# A gap for which no long search is worth while.
_FINE = 0.03
# How expensive the plans may be that are put together, by the bound.
_NEAR = 1.5
# With how many of the plans that hold least the smallest peak is looked for.
_SMALLEST = 8
# Work for each node of a plan that is met: its seconds and its bytes over the step.
_OFFER_WORK = 1_000


@dataclass(slots=True)
class Known:
    """Plans within ``limit`` bytes a device, and others; ``free`` is the cheapest without a limit.

    ``points`` are those where plans overflow, in the order in which they were met, ``prices`` those of the best bound,
    in seconds a byte. ``begun``: plans and prices come from a search in a part of the problem.
    """

    goal: Goal
    limit: float
    free: Solution
    bound: float = 0.0
    best: Seen | None = None
    plans: list[Seen] = field(default_factory=list)
    pool: Pool = field(default_factory=Pool)
    points: list[int] = field(default_factory=list)
    prices: dict[int, float] = field(default_factory=dict)
    begun: bool = False
    first_prices: dict[int, float] = field(default_factory=dict)
    known_seconds: float = math.inf
    was_stopped: bool = False
    _at: dict[int, CostGraph] = field(default_factory=dict)

    def begin(self, start: Start) -> None:
        """Take the plans of a search in a part of the problem, and begin with its prices."""
        self.begun, self.known_seconds = bool(start.plans), start.known_seconds
        self.first_prices = {t: p for t, p in start.prices.items() if p > 0}
        self.points += [t for t in self.first_prices if t not in self.points]
        for choice in start.plans:
            plan = Seen(tuple(choice), self.goal.problem.evaluate(choice), self.goal.footprint.over_time(choice))
            self.plans.append(plan)
            self.pool.add(plan)
            if plan.peak <= self.limit and plan.seconds < self.aim:
                self.best = plan

    @property
    def is_known(self) -> bool:
        """Whether a plan is known that fits: how small others can be does not matter then."""
        return math.isfinite(self.goal.below)

    @property
    def aim(self) -> float:
        """What a plan must be cheaper than. Not ``below``: a search finds the same plans whatever else is known."""
        return math.inf if self.best is None else self.best.seconds

    @property
    def is_small(self) -> bool:
        """Whether the program with binaries closes all that is left at once."""
        return self.goal.problem.pairs <= _FEW_PAIRS

    @property
    def enough(self) -> float:
        """The gap that is small enough, as of now."""
        return max(self.goal.gap, self.goal.budget.small_gap)

    @property
    def is_dearer(self) -> bool:
        """Whether every plan is proven to take at least as long as the one that is known in another form."""
        return self.bound >= self.known_seconds

    def closed(self, gap: float) -> bool:
        if self.is_dearer:
            return True
        most = min(self.aim, self.goal.below)
        return math.isfinite(most) and self.goal.budget.closes(most, self.bound, gap)

    @property
    def is_fine(self) -> bool:
        """Whether the best plan of its own leaves a gap for which no long search is worth while.

        One to begin with is not of its own: that ended a search that would have found better.
        """
        return self.best is not None and not self.begun and self.best.seconds - self.bound <= _FINE * self.best.seconds

    def is_over(self) -> bool:
        """Whether the budget is; asked where something is still to be done."""
        self.was_stopped |= self.goal.budget.over
        return self.was_stopped

    def bytes_at(self, point: int) -> CostGraph:
        if point not in self._at:
            self._at[point] = self.goal.footprint.at(point)
        return self._at[point]

    def with_prices(self, prices: dict[int, float]) -> CostGraph:
        graph = penalised(self.goal.problem, [(p, self.bytes_at(t)) for t, p in prices.items()])
        self.goal.budget.spend(graph.pairs * (1 + len(prices)))
        return graph

    def offer(self, choice: Sequence[int]) -> Seen:
        """Remember a plan, where it overflows, and whether it is the best."""
        plan = Seen(tuple(choice), self.goal.problem.evaluate(choice), self.goal.footprint.over_time(choice))
        self.plans.append(plan)
        self.pool.add(plan)
        if plan.peak > self.limit:
            worst = int(plan.memory.argmax())
            if worst not in self.points:
                self.points.append(worst)
        elif self.best is None or plan.seconds < self.best.seconds:
            self.best = plan
        return plan

    def meet(self, choice: Sequence[int]) -> bool:
        """Remember a plan that was met on the way, unless it is far too expensive; whether it is the best."""
        known, seconds = tuple(choice), self.goal.problem.evaluate(choice)
        self.goal.budget.spend(_OFFER_WORK * len(choice))
        if known in self.pool or seconds > _NEAR * max(self.bound, self.free.bound):
            return False
        plan = Seen(known, seconds, self.goal.footprint.over_time(choice))
        self.pool.add(plan)
        if plan.peak > self.limit or plan.seconds >= self.aim:
            return False
        self.best = plan
        return True

    def priced(self, prices: dict[int, float], budget: Budget, seconds: float = RELAXED_SECONDS) -> Solution | None:
        """The cheapest plan where bytes have prices, and the bound that it proves."""
        problem, allowed = self.with_prices(prices), self.limit * sum(prices.values())
        known, enough = [p.choice for p in self.plans], self.known_seconds + allowed
        if problem.pairs <= _FEW_PAIRS:
            solution = solve(problem, self.goal.gap, budget, known, enough=enough)
        else:
            solution = solve(problem, ROUND_GAP, budget.some(seconds), known, relaxed=True, enough=enough)
        if solution is not None:
            proven = solution.bound - allowed
            if proven > self.bound:
                self.bound, self.prices = proven, prices
            for choice in solution.seen:
                self.meet(choice)
        return solution

    def next_prices(self, part: float) -> dict[int, float] | None:
        """Seconds a byte for each point, that promise ``part`` of the way from the bound to the most that any do.

        None where no prices promise a better bound.
        """
        unit = self.free.objective / self.limit
        costs = np.array([p.seconds for p in self.plans])
        rows = np.array([p.memory[self.points] - self.limit for p in self.plans]) * unit
        centre = np.array([self.prices.get(t, 0.0) for t in self.points]) / unit
        prices = better(costs, rows, centre, self.bound, self.aim, part, ROUND_GAP, _CAP)
        return prices if prices is None else dict(zip(self.points, (prices * unit).tolist(), strict=True))

    def near(self) -> list[tuple[int, ...]]:
        """The plans to put together, the best one first."""
        near = self.pool.nearest(_NEAR * self.bound, self.prices, self.limit)
        return near if self.best is None else list(dict.fromkeys([self.best.choice, *near]))

    def within(self, choices: Subset, gap: float, budget: Budget, more_points: int) -> float | None:
        """Offer the best plan of only some choices that fits at the points, which grow; the bound of all of them."""
        problem, bound, most_points = choices.of(self.goal.problem), None, len(self.points) + more_points
        while True:
            if budget.over or self.is_over():
                return bound
            limits = [(choices.of(self.bytes_at(t)), self.limit) for t in self.points]
            guess = None if self.best is None else choices.number(self.best.choice)
            solution = solve_within(problem, limits, gap, budget, guess)
            if solution is None:
                return bound
            bound = solution.bound
            plan = self.offer(choices.widen(solution.choice))
            if plan.peak <= self.limit or len(self.points) > most_points or len(self.points) == len(limits):
                return bound

    def relaxed(self, choices: Subset, budget: Budget) -> tuple[dict[int, float], Subset] | None:
        """The linear relaxation of only some choices, with a row for each point, which grow: prices that prove the best
        bound for these choices, and those that it takes a part of. None where it has no solution in the budget."""
        problem, found = choices.of(self.goal.problem), None
        while not (budget.over or self.is_over()):
            points = list(self.points)
            limits = [(choices.of(self.bytes_at(t)), self.limit) for t in points]
            relaxation = relax_within(problem, limits, budget)
            if relaxation is None:
                break
            prices = {t: p for t, p in zip(points, relaxation.prices, strict=True) if p > 0}
            parts = [k[own] for k, own in zip(choices.kept, relaxation.parts, strict=True)]
            found = prices, Subset(parts, choices.tied)
            self.offer(choices.widen(relaxation.choice))
            if len(self.points) == len(points):
                break
        return found

    def smallest_seen(self) -> list[tuple[Solution, np.ndarray]]:
        """The plans seen that hold least at their peaks."""
        least = sorted(self.pool.plans.values(), key=lambda p: (p.peak, p.choice))[:_SMALLEST]
        return [(replace(self.free, choice=p.choice), p.memory) for p in least]
