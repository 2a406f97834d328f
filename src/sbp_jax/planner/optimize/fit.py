"""Bringing a plan within a memory limit: prices for bytes, plans combined, then limits as rows of the 0-1 program.

Rounds of prices (``known.py``) lead to bounds and plans. What fits is put together from parts of all plans that are met
on the way (``recombine.py``) and improved region by region (``regions.py``). What is left open between the two, the
program with a row for each point closes, without the choices that the prices prove to be too expensive.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..budget import WORK_A_SECOND, Budget
from ..costs.cost_graph import Subset
from ..memory.infeasible import NoneCheaper
from .bounds import proving_work, spares
from .branching import Branching
from .bundle import LEVEL
from .known import RELAXED_SECONDS, ROUND_GAP, Known
from .program import Solution
from .recombine import chosen, sparing_few, together
from .regions import FIRST, MOST, improve_regions, settled
from .smallest_limit import CLOSE, Least, Smallest, out_of_time, too_small

# Set by hand; docs/decisions/0015 to 0017 measure what it leads to. Rounds of prices, points added at the end.
_ROUNDS = 40
# Prices of every other round as multiples of those for the bound; where a plan overflows most its price is doubled.
_OVER = 1.5
# Seconds here are of work (``budget.py``). A thorough search takes half of its budget for the rounds instead.
_SECONDS = 4.0
# So many times as long while the gap is more than this, or without any plan that fits, or for so many rounds like the
# longest.
_LONGER, _LONGEST = 1.5, 3.75
_AT_LEAST = 4.0
# After half of the work a round that closes less than this part of the gap is the last.
_WORTH = 0.05
# For what every plan holds where the cheapest overflows; at the prices that are begun with, which are good ones: among
# 15 million pairs of choices bounds grow by 4 % from the 4th to the 8th second.
_LEAST_SECONDS, _FIRST_SECONDS = 2.0, 10.0
# How many of the plans seen are put together, and for how long: neighbours decided together, first of few plans, then
# of many; once node by node, of few.
_COMBINED = (5, 20, 80)
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
# For plans that fit where prices found none.
_FEASIBLE_SECONDS = 10.0
# A plan that holds at most so many times the limit may be mended with parts of others.
_NEARLY = 1.1
# What is left open is closed, as far as some seconds do (all that are left, if thorough), where so few pairs of choices
# are left; else the best plan is looked for among the best few. Beyond so many pairs of choices a fine gap is let be.
_MOST_PAIRS = 200_000
_MOST_LEFT = 50_000
_BEST_FEW = 20_000
# A thorough search solves the linear relaxation of so many pairs of the choices that cost least at known prices, then
# of more at the prices that it led to, in this part of what is left; then looks for plans in as large a part.
_RELAXED_PAIRS = (40_000, 80_000, 160_000)
_RELAXATION_PART = 0.5
# What is not thorough takes at most this part of what is left: others may be waiting.
_IN_ALL = 0.7
_EXACT_SECONDS = 4.0
# Regions: seconds, the part of what is left, prices as parts of those that gave the bound.
_REGIONS_SECONDS, _REGIONS_PART = 2.0, 0.5
_SCALES = (1.0, 0.5, 2.0, 0.25)


@dataclass(slots=True)
class Fitting(Known):
    """The search for the cheapest plan within ``limit`` bytes a device.

    It ends after some work with a gap that is proven, or goes on until the budget is over or no gap is left, if
    thorough; or when it is proven that nothing that fits takes less than ``below`` seconds.
    """

    _least: float = 0.0

    def run(self) -> Solution | None:
        """The best plan found and its bound; None where none is worth while.

        Raises ``TooSmall`` with the smallest limit found possible, if none fits; ``OutOfTime`` where time was up.
        """
        self.bound = self.free.bound
        free = self.offer(self.free.choice)
        smallest = Smallest(self.goal, self.bytes_at)
        lowest = None
        if not self.is_over():
            lowest = smallest.holding_least({self.points[0]: 1.0}, free.peak, self.goal.budget.some(_LEAST_SECONDS))
        if lowest is not None:
            self.offer(lowest.choice)
            smallest.least = self._least = max(lowest.bound, 0.0) * free.peak
            if smallest.least > self.limit * (1 + 1e-6):  # nothing can fit: what comes nearest?
                if self.is_known:
                    return None
                raise too_small(self.limit, self._nearest(smallest, lowest), self.goal.footprint)
        find_start = None if self.is_over() else self.goal.find_start
        if find_start is not None and (start := find_start()) is not None:
            self.begin(start)
        if not (self.is_dearer or self._begun_near):
            self._rounds(smallest)
        if self.best is None and not self.closed(self.goal.gap) and not self.is_known and not self.is_over():
            self._any_plan(smallest)
        # A fine gap of layers that change all at once is what stays between two plans.
        ends_here = self.is_fine and self.goal.shares_layers and not self.goal.thorough
        by_parts = (self._spread, self._combine_by_node, self._by_regions)
        local = () if ends_here else (self._by_relaxation, self._by_branching, *by_parts)
        for step in (*local, self._combine, self._exactly):
            if not self.closed(self.goal.gap):
                step()
        if self.is_dearer and not self.is_known:
            raise NoneCheaper(f"no plan within {self.limit:.0f} bytes takes less than {self.known_seconds:.6g} s")
        if self.best is None:
            if self.is_known:
                return None
            tells = self.goal.tell_smallest and lowest is not None
            if self.goal.budget.seconds_left <= 0 or (self.was_stopped and not tells):
                raise out_of_time(self.limit, min(p.peak for p in self.plans))
            nearest = self._nearest(smallest, lowest)
            if nearest.peak > self.limit:
                raise too_small(self.limit, nearest, self.goal.footprint)
            self.best = self.offer(nearest.solution.choice)
        bound = min(self.bound, self.best.seconds)
        seen = tuple(self.near()[:_PASSED_ON])
        return replace(
            self.free, choice=self.best.choice, objective=self.best.seconds, bound=bound, timed_out=False, seen=seen
        )

    @property
    def _begun_near(self) -> bool:
        """Whether a plan to begin with will do; what is put together from it may be better yet."""
        return self.begun and self.aim - self.bound <= self.goal.start_gap * self.aim

    def _any_plan(self, smallest: Smallest) -> None:
        """A plan that fits, where prices found none, whatever it costs."""
        self.goal.progress("looking for any plan that fits")
        self._mix(smallest)
        if self.best is None:
            smallest.feasible.search(self.limit, self.goal.budget.some(self._seconds(_FEASIBLE_SECONDS)), self.offer)
        if self.best is None:
            self.offer(smallest.run(self.smallest_seen(), self.limit).solution.choice)
        if self.best is not None:
            self._combine()

    def _nearest(self, smallest: Smallest, lowest: Solution | None) -> Least:
        """The smallest plan. Where it is to be told it is looked for in the same way and as long whatever the limit is:
        a limit that an error names has a plan then, too. What was proven on the way counts. Not where nobody named the
        limit, and nothing fits: the smallest plan is told of roughly then."""
        seen = self.smallest_seen()
        if lowest is None or not self.goal.tell_smallest:
            return smallest.nearest(seen)
        if smallest.least > self.limit and not self.goal.names_limit:
            return smallest.run(seen, enough=self.limit)
        anew = Smallest(replace(self.goal, budget=self.goal.budget.unbounded()), self.bytes_at, self._least)
        memory = self.goal.footprint.over_time
        found = anew.nearest([(x, memory(x.choice)) for x in (self.free, lowest)])
        known, held = seen[0]
        is_near = found.peak <= (1 + CLOSE) * held.max(initial=0.0)
        plan = (found.solution, found.memory) if is_near else (known, held)
        return Least(*plan, max(found.bound, smallest.least))

    def _mix(self, smallest: Smallest) -> None:
        """What the few plans seen that hold least choose, node by node, put together for a plan that fits."""
        mixed, _ = smallest.mixed(self.smallest_seen(), self.points, 0.0, self.limit)
        if tuple(mixed.choice) not in self.pool:
            self.offer(mixed.choice)

    def _seconds(self, unless_thorough: float) -> float:
        """Of work, for a part of the search."""
        return math.inf if self.goal.thorough else unless_thorough * self.goal.patience

    def _by_relaxation(self) -> None:
        """Prices from the linear relaxation of the choices that cost least beyond the bound, with a row for each point;
        then the best plan of the choices that it takes a part of (RENS: Berthold, Math. Prog. Comp. 6(1), 2014). In a
        thorough search alone: it takes some ten seconds, and good prices to begin with (docs/decisions/0017)."""
        if self.best is None or not (self.goal.thorough and self.prices) or self.is_small or self.is_over():
            return
        budget = self.goal.budget.some(part=_RELAXATION_PART)
        parts = None
        for few in _RELAXED_PAIRS:
            if proving_work(self.goal.problem) > budget.work_left or self.closed(self.goal.gap):
                break
            self.goal.progress("fitting into memory by the linear relaxation")
            floor, spare = spares(self.with_prices(self.prices), budget)
            most = self.aim - (floor - self.limit * sum(self.prices.values()))
            known = self.best.choice
            found = self.relaxed(sparing_few(spare, most, known, self.goal.problem, few, few), budget)
            if found is None:
                break
            prices, parts = found
            self.priced(prices, budget)
        if parts is not None and not self.closed(self.goal.gap):
            mine = Subset([np.union1d(k, [c]).astype(int) for k, c in zip(parts.kept, self.best.choice, strict=True)])
            self.within(mine, ROUND_GAP, self.goal.budget.some(part=_RELAXATION_PART), _ROUNDS)

    def _by_branching(self) -> None:
        """Bounds and plans by branch and bound (``branching.py``), where so many branches may close the gap."""
        if self.best is None or self.is_small or not (self.prices and self._may_branch) or self.is_over():
            return
        some = self.goal.budget.some(_BRANCH_SECONDS * max(1.0, self.goal.patience), part=_BRANCH_PART)
        proven = self._branching(self.offer).run(self.bound, self.prices, some)
        self.bound = max(self.bound, proven)

    @property
    def _may_branch(self) -> bool:
        """Whether as many branches as there is work for may close the gap."""
        few = self.goal.problem.pairs <= _BRANCHED_PAIRS
        return few or self.bound > (1 - _BRANCHED_GAP) * self.aim

    def _branching(self, offer: Callable[[Sequence[int]], object]) -> Branching:
        unit = self.free.objective / self.limit
        return Branching(self.goal.problem, self.bytes_at, self.limit, unit, self.plans, self.points, offer,
                         self.meet, lambda: self.aim, lambda: self.enough)  # fmt: skip

    def _raise_bound(self) -> None:
        """More rounds at the prices that promise the best bound, and plans put together from what these lead to."""
        some = self.goal.budget.some(self._seconds(_RAISE_SECONDS), part=_RAISE_PART)

        def offer(choice: Sequence[int]) -> None:
            self.offer(choice)
            self._combine(some)

        whole = self._branching(offer).undivided(self.bound, self.prices, some, RELAXED_SECONDS)
        self.bound, self.prices = whole.bound, whole.prices

    def _rounds(self, smallest: Smallest) -> None:
        """Price, solve, combine, until the gap is closed, nothing more can be hoped for, or time is up."""
        level, raised = LEVEL, dict[int, float]()
        gap, stalled, longest = np.inf, False, 0.0
        whole, start = self.goal.budget.some(part=0.5), self.goal.budget.spent
        for round_number in range(_ROUNDS):
            given = self.first_prices if round_number == 0 else {}
            prices = given or self.next_prices(level)
            spent = (self.goal.budget.spent - start) / WORK_A_SECOND
            longer = _LONGEST if self.best is None else _LONGER
            allowed = self._seconds(_SECONDS if self.is_fine else max(longer * _SECONDS, _AT_LEAST * longest))
            is_stuck = stalled and self.best is not None and spent > 0.5 * allowed
            if prices is None or spent > allowed or is_stuck or whole.over or self.is_over():
                break
            self.goal.progress(f"fitting into memory, round {round_number + 1}")
            beyond = round_number % 2 == 1
            if beyond:  # what bounds ask for, and more: for a plan that fits
                prices = {t: max(_OVER * prices.get(t, 0.0), raised.get(t, 0.0)) for t in prices | raised}
            if given:
                solution = self.priced(prices, whole.some(_FIRST_SECONDS), _FIRST_SECONDS)
            else:
                solution = self.priced(prices, whole.some(allowed))
            if solution is None or self.is_dearer:
                break
            longest = max(longest, (self.goal.budget.spent - start) / WORK_A_SECOND - spent)
            # Prices under which a plan comes again were too near to the last ones.
            met = any(p.choice == tuple(solution.choice) for p in self.plans)
            level = 0.5 * (1.0 + level) if met else LEVEL
            points, plan = len(self.points), self.offer(solution.choice)
            if beyond and plan.peak > self.limit:
                worst = int(plan.memory.argmax())
                raised = prices | {worst: 2 * max(prices.get(worst, 0.0), self.free.objective / self.limit)}
            if self.best is None and not met and plan.peak <= _NEARLY * self.limit:
                self._mix(smallest)
            # Where parts of some plans do not fit together, those of one more hardly do.
            if not met and (self.best is not None or round_number & (round_number - 1) == 0):
                self._combine()
            if self.closed(max(self.goal.gap, ROUND_GAP)):
                break
            before, gap = gap, self.aim - self.bound
            stalled = gap > (1 - _WORTH) * before and len(self.points) == points

    def _spread(self) -> None:
        """More plans to put together, from other prices: ones that raise the bound, where it is far from the plan."""
        if self.best is not None and self.prices and not (self._may_branch or self.is_over()):
            self._raise_bound()
            return
        some, prices, idle = self.goal.budget.some(self._seconds(_SPREAD_SECONDS)), self.prices, 0
        for scale in _SPREAD if prices else ():
            if some.over or self.is_over() or self.closed(self.goal.gap) or idle >= _MOST_IDLE:
                return
            before = self.aim, self.bound
            solution = self.priced({t: scale * p for t, p in prices.items()}, some)
            if solution is None:
                return
            self.offer(solution.choice)
            self._combine(some)
            idle = 0 if (self.aim, self.bound) != before else idle + 1

    def _combine(self, budget: Budget | None = None) -> None:
        """The best plan that fits, put together from parts of those seen."""
        near, tried = self.near(), 1
        some = (budget or self.goal.budget).some(_COMBINE_SECONDS * max(1.0, self.goal.patience))
        for most in _COMBINED:
            if len(near[:most]) > tried:
                tried = len(near[:most])
                self.within(together(near[:most], self.goal.problem), ROUND_GAP, some, _MORE_POINTS)

    def _combine_by_node(self) -> None:
        """The best plan that fits of what a few of the best plans choose, node by node."""
        some = self.goal.budget.some(self._seconds(_BY_NODE_SECONDS))
        near = self.near()[:_BY_NODE]
        if near and (choices := chosen(near)).pairs(self.goal.problem) <= _BY_NODE_PAIRS:
            self.within(choices, ROUND_GAP, some, _MORE_POINTS)

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
                if budget.over or self.closed(self.goal.gap):
                    return
                self.goal.progress("fitting into memory by regions")
                r = settled(self.with_prices({t: scale * p for t, p in self.prices.items()}), budget)
                if r is None:
                    return
                before, known = self.best, r.nearest(best.choice)
                for size in (FIRST, MOST):
                    known, _ = improve_regions(
                        r, known, size, 0.0, set(), budget, lambda c, r=r: self.meet(r.expand(c))
                    )
                best, gained = self.best or best, gained or self.best is not before

    def _exactly(self) -> None:
        """What prices leave open, closed where few choices are left, or among the best few.

        A plan with a choice costs at least the bound under prices and what the choice has to spare.
        """
        if self.goal.problem.pairs > _MOST_PAIRS and not self.goal.thorough and self.is_fine:
            return
        exactly, whole = self.is_small or self.goal.thorough, self.goal.budget
        budget = whole.some(self._seconds(_EXACT_SECONDS), part=1.0 if self.goal.thorough else _IN_ALL)
        gap = self.goal.gap if exactly else max(self.goal.gap, ROUND_GAP)
        proving = budget.some(part=0.5)
        if proving_work(self.goal.problem) > proving.work:  # nothing would be left to search with what it proves
            return
        priced = self.with_prices(self.prices)
        floor, spare = spares(priced, proving)
        floor -= self.limit * sum(self.prices.values())
        while not self.closed(gap):
            self.goal.progress(f"fitting into memory exactly, {len(self.points)} points")
            most = math.inf if self.goal.thorough else _MOST_LEFT
            best = None if self.best is None else self.best.choice
            before, kept = self.aim, sparing_few(spare, self.aim - floor, best, self.goal.problem, most, _BEST_FEW)
            proven = self.within(kept, gap, budget, _ROUNDS)
            out = min(float(np.delete(s, k).min(initial=math.inf)) for s, k in zip(spare, kept.kept, strict=True))
            if proven is not None:
                # What is struck costs more than that, or than the best plan.
                self.bound = max(self.bound, min(proven, floor + out, self.aim))
            if self.aim == before or not math.isfinite(out) or budget.over or self.was_stopped:
                return
