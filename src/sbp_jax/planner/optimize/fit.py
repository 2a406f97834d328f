"""Bringing a plan within a memory limit: prices for bytes, plans combined, then limits as rows of the 0-1 program.

Memory is a constraint at every point of the step. The points where plans overflow get a price for each byte
(Lagrange multipliers: Geoffrion, Math. Prog. Study 2, 1974), chosen by ``bundle.py``. The optimum under prices, less
the prices of what is allowed, is a proven lower bound for every plan that fits. What fits is put together from parts of
all plans that are met on the way (``recombine.py``) and improved region by region (``regions.py``). What is left open
between the two, the program with a row for each point closes, without the choices that the prices prove to be too
expensive.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..budget import WORK_A_SECOND, Budget
from ..costs.cost_graph import CostGraph, Subset, penalised
from ..memory.infeasible import NoneCheaper
from .bounds import proving_work, spares
from .branching import Branching
from .bundle import LEVEL, better
from .goal import Goal, Start
from .program import Solution, solve, solve_within
from .recombine import Pool, Seen, chosen, sparing_few, together
from .regions import FIRST, MOST, improve_regions, settled
from .smallest_limit import CLOSE, Least, Smallest, out_of_time, too_small

# Set by hand; docs/decisions/0015 to 0017 measure what it leads to. Rounds of prices, points added at the end.
_ROUNDS = 40
# Prices are at most so many times the step's seconds for the whole limit.
_CAP = 100.0
# Prices of every other round as multiples of those for the bound; where a plan overflows most its price is doubled.
_OVER = 1.5
# Rounds end at this gap, or when a plan's bound can grow by no more than this.
_ROUND_GAP = 1e-3
# Beyond so many pairs of choices a round solves the linear relaxation only: it is a step, not a result.
_FEW_PAIRS = 2_000
# Seconds here are of work (``budget.py``). A thorough search takes half of its budget for the rounds instead.
_SECONDS = 4.0
# So many times as long while the gap is more than this, or without any plan that fits, or for so many rounds like the
# longest.
_LONGER, _LONGEST = 1.5, 3.75
_AT_LEAST = 4.0
_FINE = 0.03
# After half of the work a round that closes less than this part of the gap is the last.
_WORTH = 0.05
# For one relaxation; for what every plan holds where the cheapest overflows; at the prices that are begun with, which
# are good ones: among 15 million pairs of choices bounds grow by 4 % from the 4th to the 8th second.
_RELAXED_SECONDS, _LEAST_SECONDS, _FIRST_SECONDS = 4.0, 2.0, 10.0
# How many of the plans seen are put together, how expensive they may be by the bound, and for how long: neighbours
# decided together, first of few plans, then of many; once node by node, of few.
_COMBINED = (5, 20, 80)
_NEAR = 1.5
# So many of them are passed on to a search that begins with this one's plans.
_PASSED_ON = 80
_COMBINE_SECONDS = 1.0
_BY_NODE, _BY_NODE_PAIRS = 4, 4_000
_BY_NODE_SECONDS = 2.0
# How many points may be added meanwhile.
_MORE_POINTS = 4
# Where prices no longer change, others give other plans: parts of those that gave the bound, for how long, and how many
# may gain nothing in a row.
_SPREAD = (1.5, 0.67, 2.25, 0.45, 1.22, 0.82)
_SPREAD_SECONDS, _MOST_IDLE = 5.0, 3
# Branch and bound: for so long, at most this part of what is left; of so few pairs of choices, or for gaps below this.
_BRANCH_SECONDS, _BRANCH_PART = 12.0, 0.7
_BRANCHED_PAIRS, _BRANCHED_GAP = 60_000, 0.06
# Where no branches are made, more rounds of prices: for so long, at most this part of what is left.
_RAISE_SECONDS, _RAISE_PART = 4.0, 0.7
# For plans that fit where prices found none; with how many of those that hold least the smallest peak is looked for.
_FEASIBLE_SECONDS = 10.0
_SMALLEST = 8
# A plan that holds at most so many times the limit may be mended with parts of others.
_NEARLY = 1.1
# What is left open is closed, as far as some seconds do (all that are left, if thorough), where so few pairs of choices
# are left; else the best plan is looked for among the best few. Beyond so many pairs of choices a fine gap is let be.
_MOST_PAIRS = 200_000
_MOST_LEFT = 50_000
_BEST_FEW = 20_000
# What is not thorough takes at most this part of what is left: others may be waiting.
_IN_ALL = 0.7
_EXACT_SECONDS = 4.0
# Regions: seconds, the part of what is left, prices as parts of those that gave the bound.
_REGIONS_SECONDS, _REGIONS_PART = 2.0, 0.5
_SCALES = (1.0, 0.5, 2.0, 0.25)
# Work for each node of a plan that is met: its seconds and its bytes over the step.
_OFFER_WORK = 1_000


@dataclass(slots=True)
class Fitting:
    """The search for the cheapest plan within ``limit`` bytes a device; ``free`` is the cheapest without one.

    It ends after some work with a gap that is proven, or goes on until the budget is over or no gap is left, if
    thorough; or when it is proven that nothing that fits takes less than ``below`` seconds.
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
    _at: dict[int, CostGraph] = field(default_factory=dict)
    _begun: bool = False
    _least: float = 0.0
    _known_seconds: float = math.inf
    _first_prices: dict[int, float] = field(default_factory=dict)
    was_stopped: bool = False

    def run(self) -> Solution | None:
        """The best plan found and its bound; None where none is worth while.

        Raises ``TooSmall`` with the smallest limit found possible, if none fits; ``OutOfTime`` where time was up.
        """
        self.bound = self.free.bound
        free = self._offer(self.free.choice)
        smallest = Smallest(self.goal, self._bytes_at)
        lowest = None
        if not self._is_over():
            lowest = smallest.holding_least({self.points[0]: 1.0}, free.peak, _LEAST_SECONDS)
        if lowest is not None:
            self._offer(lowest.choice)
            smallest.least = self._least = max(lowest.bound, 0.0) * free.peak
            if smallest.least > self.limit * (1 + 1e-6):  # nothing can fit: what comes nearest?
                if self._is_known:
                    return None
                raise too_small(self.limit, self._nearest(smallest, lowest), self.goal.footprint)
        find_start = None if self._is_over() else self.goal.find_start
        if find_start is not None and (start := find_start()) is not None:
            self._begin(start)
        if not self._is_dearer:
            self._rounds(smallest)
        if self.best is None and not self._closed(self.goal.gap) and not self._is_known and not self._is_over():
            self._any_plan(smallest)
        # A fine gap of layers that change all at once is what stays between two plans.
        ends_here = self._is_fine and self.goal.shares_layers and not self.goal.thorough
        local = () if ends_here else (self._by_branching, self._spread, self._combine_by_node, self._by_regions)
        for step in (*local, self._combine, self._exactly):
            if not self._closed(self.goal.gap):
                step()
        if self._is_dearer and not self._is_known:
            raise NoneCheaper(f"no plan within {self.limit:.0f} bytes takes less than {self._known_seconds:.6g} s")
        if self.best is None:
            if self._is_known:
                return None
            tells = self.goal.tell_smallest and lowest is not None
            if self.goal.budget.seconds_left <= 0 or (self.was_stopped and not tells):
                raise out_of_time(self.limit, min(p.peak for p in self.plans))
            nearest = self._nearest(smallest, lowest)
            if nearest.peak > self.limit:
                raise too_small(self.limit, nearest, self.goal.footprint)
            self.best = self._offer(nearest.solution.choice)
        bound = min(self.bound, self.best.seconds)
        seen = tuple(self._near()[:_PASSED_ON])
        return replace(
            self.free, choice=self.best.choice, objective=self.best.seconds, bound=bound, timed_out=False, seen=seen
        )

    def _begin(self, start: Start) -> None:
        """Take the plans of a search in a part of the problem, and begin with its prices."""
        self._begun, self._known_seconds = bool(start.plans), start.known_seconds
        self._first_prices = {t: p for t, p in start.prices.items() if p > 0}
        self.points += [t for t in self._first_prices if t not in self.points]
        for choice in start.plans:
            plan = Seen(tuple(choice), self.goal.problem.evaluate(choice), self.goal.footprint.over_time(choice))
            self.plans.append(plan)
            self.pool.add(plan)
            if plan.peak <= self.limit and plan.seconds < self._aim:
                self.best = plan

    def _any_plan(self, smallest: Smallest) -> None:
        """A plan that fits, where prices found none, whatever it costs."""
        self.goal.progress("looking for any plan that fits")
        self._mix(smallest)
        if self.best is None:
            smallest.feasible.search(self.limit, self.goal.budget.some(self._seconds(_FEASIBLE_SECONDS)), self._offer)
        if self.best is None:
            self._offer(smallest.run(self._smallest_seen(), self.limit).solution.choice)
        if self.best is not None:
            self._combine()

    def _nearest(self, smallest: Smallest, lowest: Solution | None) -> Least:
        """The smallest plan. Where it is to be told it is looked for in the same way and as long whatever the limit is:
        a limit that an error names has a plan then, too. What was proven on the way counts. Not where nobody named the
        limit, and nothing fits: the smallest plan is told of roughly then."""
        seen = self._smallest_seen()
        if lowest is None or not self.goal.tell_smallest:
            return smallest.nearest(seen)
        if smallest.least > self.limit and not self.goal.names_limit:
            return smallest.run(seen, enough=self.limit)
        anew = Smallest(replace(self.goal, budget=self.goal.budget.unbounded()), self._bytes_at, self._least)
        memory = self.goal.footprint.over_time
        found = anew.nearest([(x, memory(x.choice)) for x in (self.free, lowest)])
        known, held = seen[0]
        is_near = found.peak <= (1 + CLOSE) * held.max(initial=0.0)
        plan = (found.solution, found.memory) if is_near else (known, held)
        return Least(*plan, max(found.bound, smallest.least))

    def _mix(self, smallest: Smallest) -> None:
        """What the few plans seen that hold least choose, node by node, put together for a plan that fits."""
        mixed, _ = smallest.mixed(self._smallest_seen(), self.points, 0.0, self.limit)
        if tuple(mixed.choice) not in self.pool:
            self._offer(mixed.choice)

    def _smallest_seen(self) -> list[tuple[Solution, np.ndarray]]:
        """The plans seen that hold least at their peaks."""
        least = sorted(self.pool.plans.values(), key=lambda p: (p.peak, p.choice))[:_SMALLEST]
        return [(replace(self.free, choice=p.choice), p.memory) for p in least]

    def _by_branching(self) -> None:
        """Bounds and plans by branch and bound (``branching.py``), where so many branches may close the gap."""
        is_tiny = self.goal.problem.pairs <= _FEW_PAIRS  # the program with binaries closes it at once
        if self.best is None or is_tiny or not (self.prices and self._may_branch) or self._is_over():
            return
        some = self.goal.budget.some(_BRANCH_SECONDS * max(1.0, self.goal.patience), part=_BRANCH_PART)
        proven = self._branching(self._offer).run(self.bound, self.prices, some)
        self.bound = max(self.bound, proven)

    @property
    def _may_branch(self) -> bool:
        """Whether as many branches as there is work for may close the gap."""
        few = self.goal.problem.pairs <= _BRANCHED_PAIRS
        return few or self.bound > (1 - _BRANCHED_GAP) * self._aim

    def _branching(self, offer: Callable[[Sequence[int]], object]) -> Branching:
        unit = self.free.objective / self.limit
        return Branching(self.goal.problem, self._bytes_at, self.limit, unit, self.plans, self.points, offer,
                         self._meet, lambda: self._aim, lambda: self._enough)  # fmt: skip

    def _raise_bound(self) -> None:
        """More rounds at the prices that promise the best bound, and plans put together from what these lead to."""
        some = self.goal.budget.some(self._seconds(_RAISE_SECONDS), part=_RAISE_PART)

        def offer(choice: Sequence[int]) -> None:
            self._offer(choice)
            self._combine(some)

        whole = self._branching(offer).undivided(self.bound, self.prices, some, _RELAXED_SECONDS)
        self.bound, self.prices = whole.bound, whole.prices

    @property
    def _enough(self) -> float:
        """The gap that is small enough, as of now."""
        return max(self.goal.gap, self.goal.budget.small_gap)

    def _is_over(self) -> bool:
        """Whether the budget is; asked where something is still to be done."""
        self.was_stopped |= self.goal.budget.over
        return self.was_stopped

    def _bytes_at(self, point: int) -> CostGraph:
        if point not in self._at:
            self._at[point] = self.goal.footprint.at(point)
        return self._at[point]

    @property
    def _is_known(self) -> bool:
        """Whether a plan is known that fits: how small others can be does not matter then."""
        return math.isfinite(self.goal.below)

    @property
    def _aim(self) -> float:
        """What a plan must be cheaper than. Not ``below``: a search finds the same plans whatever else is known."""
        return math.inf if self.best is None else self.best.seconds

    @property
    def _is_dearer(self) -> bool:
        """Whether every plan is proven to take at least as long as the one that is known in another form."""
        return self.bound >= self._known_seconds

    def _closed(self, gap: float) -> bool:
        if self._is_dearer:
            return True
        most = min(self._aim, self.goal.below)
        return math.isfinite(most) and self.goal.budget.closes(most, self.bound, gap)

    @property
    def _is_fine(self) -> bool:
        """Whether the best plan of its own leaves a gap for which no long search is worth while.

        One to begin with is not of its own: that ended a search that would have found better.
        """
        return self.best is not None and not self._begun and self.best.seconds - self.bound <= _FINE * self.best.seconds

    def _offer(self, choice: Sequence[int]) -> Seen:
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

    def _rounds(self, smallest: Smallest) -> None:
        """Price, solve, combine, until the gap is closed, nothing more can be hoped for, or time is up."""
        level, raised = LEVEL, dict[int, float]()
        gap, stalled, longest = np.inf, False, 0.0
        whole, start = self.goal.budget.some(part=0.5), self.goal.budget.spent
        for round_number in range(_ROUNDS):
            given = self._first_prices if round_number == 0 else {}
            prices = given or self._next_prices(level)
            spent = (self.goal.budget.spent - start) / WORK_A_SECOND
            longer = _LONGEST if self.best is None else _LONGER
            allowed = self._seconds(_SECONDS if self._is_fine else max(longer * _SECONDS, _AT_LEAST * longest))
            is_stuck = stalled and self.best is not None and spent > 0.5 * allowed
            if prices is None or spent > allowed or is_stuck or whole.over or self._is_over():
                break
            self.goal.progress(f"fitting into memory, round {round_number + 1}")
            beyond = round_number % 2 == 1
            if beyond:  # what bounds ask for, and more: for a plan that fits
                prices = {t: max(_OVER * prices.get(t, 0.0), raised.get(t, 0.0)) for t in prices | raised}
            if given:
                solution = self._priced(prices, whole.some(_FIRST_SECONDS), _FIRST_SECONDS)
            else:
                solution = self._priced(prices, whole.some(allowed))
            if solution is None:
                break
            longest = max(longest, (self.goal.budget.spent - start) / WORK_A_SECOND - spent)
            # Prices under which a plan comes again were too near to the last ones.
            met = any(p.choice == tuple(solution.choice) for p in self.plans)
            level = 0.5 * (1.0 + level) if met else LEVEL
            points, plan = len(self.points), self._offer(solution.choice)
            if beyond and plan.peak > self.limit:
                worst = int(plan.memory.argmax())
                raised = prices | {worst: 2 * max(prices.get(worst, 0.0), self.free.objective / self.limit)}
            if self.best is None and not met and plan.peak <= _NEARLY * self.limit:
                self._mix(smallest)
            # Where parts of some plans do not fit together, those of one more hardly do.
            if not met and (self.best is not None or round_number & (round_number - 1) == 0):
                self._combine()
            if self._closed(max(self.goal.gap, _ROUND_GAP)):
                break
            before, gap = gap, self._aim - self.bound
            stalled = gap > (1 - _WORTH) * before and len(self.points) == points

    def _priced(self, prices: dict[int, float], budget: Budget, seconds: float = _RELAXED_SECONDS) -> Solution | None:
        """The cheapest plan where bytes have prices, and the bound that it proves."""
        problem = self._with_prices(prices)
        known = [p.choice for p in self.plans]
        if problem.pairs <= _FEW_PAIRS:
            solution = solve(problem, self.goal.gap, budget, known)
        else:
            solution = solve(problem, _ROUND_GAP, budget.some(seconds), known, relaxed=True)
        if solution is not None:
            proven = solution.bound - self.limit * sum(prices.values())
            if proven > self.bound:
                self.bound, self.prices = proven, prices
            for choice in solution.seen:
                self._meet(choice)
        return solution

    def _meet(self, choice: Sequence[int]) -> bool:
        """Remember a plan that was met on the way, unless it is far too expensive; whether it is the best."""
        known, seconds = tuple(choice), self.goal.problem.evaluate(choice)
        self.goal.budget.spend(_OFFER_WORK * len(choice))
        if known in self.pool or seconds > _NEAR * max(self.bound, self.free.bound):
            return False
        plan = Seen(known, seconds, self.goal.footprint.over_time(choice))
        self.pool.add(plan)
        if plan.peak > self.limit or plan.seconds >= self._aim:
            return False
        self.best = plan
        return True

    def _with_prices(self, prices: dict[int, float]) -> CostGraph:
        graph = penalised(self.goal.problem, [(p, self._bytes_at(t)) for t, p in prices.items()])
        self.goal.budget.spend(graph.pairs * (1 + len(prices)))
        return graph

    def _seconds(self, unless_thorough: float) -> float:
        """Of work, for a part of the search."""
        return math.inf if self.goal.thorough else unless_thorough * self.goal.patience

    def _next_prices(self, part: float) -> dict[int, float] | None:
        """Seconds a byte for each point, that promise ``part`` of the way from the bound to the most that any do.

        None where no prices promise a better bound.
        """
        unit = self.free.objective / self.limit
        costs = np.array([p.seconds for p in self.plans])
        rows = np.array([p.memory[self.points] - self.limit for p in self.plans]) * unit
        centre = np.array([self.prices.get(t, 0.0) for t in self.points]) / unit
        prices = better(costs, rows, centre, self.bound, self._aim, part, _ROUND_GAP, _CAP)
        return prices if prices is None else dict(zip(self.points, (prices * unit).tolist(), strict=True))

    def _spread(self) -> None:
        """More plans to put together, from other prices: ones that raise the bound, where it is far from the plan."""
        if self.best is not None and self.prices and not (self._may_branch or self._is_over()):
            self._raise_bound()
            return
        some, prices, idle = self.goal.budget.some(self._seconds(_SPREAD_SECONDS)), self.prices, 0
        for scale in _SPREAD if prices else ():
            if some.over or self._is_over() or self._closed(self.goal.gap) or idle >= _MOST_IDLE:
                return
            before = self._aim, self.bound
            solution = self._priced({t: scale * p for t, p in prices.items()}, some)
            if solution is None:
                return
            self._offer(solution.choice)
            self._combine(some)
            idle = 0 if (self._aim, self.bound) != before else idle + 1

    def _combine(self, budget: Budget | None = None) -> None:
        """The best plan that fits, put together from parts of those seen."""
        near, tried = self._near(), 1
        some = (budget or self.goal.budget).some(_COMBINE_SECONDS * max(1.0, self.goal.patience))
        for most in _COMBINED:
            if len(near[:most]) > tried:
                tried = len(near[:most])
                self._within(together(near[:most], self.goal.problem), _ROUND_GAP, some, _MORE_POINTS)

    def _combine_by_node(self) -> None:
        """The best plan that fits of what a few of the best plans choose, node by node."""
        some = self.goal.budget.some(self._seconds(_BY_NODE_SECONDS))
        near = self._near()[:_BY_NODE]
        if near and (choices := chosen(near)).pairs(self.goal.problem) <= _BY_NODE_PAIRS:
            self._within(choices, _ROUND_GAP, some, _MORE_POINTS)

    def _near(self) -> list[tuple[int, ...]]:
        """The plans to put together, the best one first."""
        near = self.pool.nearest(_NEAR * self.bound, self.prices, self.limit)
        return near if self.best is None else list(dict.fromkeys([self.best.choice, *near]))

    def _within(self, choices: Subset, gap: float, budget: Budget, more_points: int) -> float | None:
        """Offer the best plan of only some choices that fits at the points, which grow; the bound of all of them."""
        problem, bound, most_points = choices.of(self.goal.problem), None, len(self.points) + more_points
        while True:
            if budget.over or self._is_over():
                return bound
            limits = [(choices.of(self._bytes_at(t)), self.limit) for t in self.points]
            guess = None if self.best is None else choices.number(self.best.choice)
            solution = solve_within(problem, limits, gap, budget, guess)
            if solution is None:
                return bound
            bound = solution.bound
            plan = self._offer(choices.widen(solution.choice))
            if plan.peak <= self.limit or len(self.points) > most_points or len(self.points) == len(limits):
                return bound

    def _by_regions(self) -> None:
        """Cheaper plans that fit by regions (``regions.py``), each the best for bytes at their prices, or at parts of
        these."""
        best = self.best
        if best is None or not self.prices:
            return
        budget, gained = self.goal.budget.some(self._seconds(_REGIONS_SECONDS), part=_REGIONS_PART), True
        while gained:
            gained = False
            for scale in _SCALES:
                if budget.over or self._closed(self.goal.gap):
                    return
                self.goal.progress("fitting into memory by regions")
                r = settled(self._with_prices({t: scale * p for t, p in self.prices.items()}), budget)
                if r is None:
                    return
                before, known = self.best, r.nearest(best.choice)
                for size in (FIRST, MOST):
                    known, _ = improve_regions(
                        r, known, size, 0.0, set(), budget, lambda c, r=r: self._meet(r.expand(c))
                    )
                best, gained = self.best or best, gained or self.best is not before

    def _exactly(self) -> None:
        """What prices leave open, closed where few choices are left, or among the best few.

        A plan with a choice costs at least the bound under prices and what the choice has to spare.
        """
        if self.goal.problem.pairs > _MOST_PAIRS and not self.goal.thorough and self._is_fine:
            return
        exactly, whole = self.goal.problem.pairs <= _FEW_PAIRS or self.goal.thorough, self.goal.budget
        budget = whole.some(self._seconds(_EXACT_SECONDS), part=1.0 if self.goal.thorough else _IN_ALL)
        gap = self.goal.gap if exactly else max(self.goal.gap, _ROUND_GAP)
        proving = budget.some(part=0.5)
        if proving_work(self.goal.problem) > proving.work:  # nothing would be left to search with what it proves
            return
        priced = self._with_prices(self.prices)
        floor, spare = spares(priced, proving)
        floor -= self.limit * sum(self.prices.values())
        while not self._closed(gap):
            self.goal.progress(f"fitting into memory exactly, {len(self.points)} points")
            most = math.inf if self.goal.thorough else _MOST_LEFT
            best = None if self.best is None else self.best.choice
            before, kept = self._aim, sparing_few(spare, self._aim - floor, best, self.goal.problem, most, _BEST_FEW)
            proven = self._within(kept, gap, budget, _ROUNDS)
            out = min(float(np.delete(s, k).min(initial=math.inf)) for s, k in zip(spare, kept.kept, strict=True))
            if proven is not None:
                # What is struck costs more than that, or than the best plan.
                self.bound = max(self.bound, min(proven, floor + out, self._aim))
            if self._aim == before or not math.isfinite(out) or budget.over or self.was_stopped:
                return
