"""A kernel closed in on from both sides: bounds by message passing, plans read off it, what neither needs struck.

Costs may be moved between a node's choices and its edges without changing what any plan costs; the sum of all separate
minima is then a lower bound. Sequential tree-reweighted message passing (TRW-S: Kolmogorov, IEEE TPAMI 28(10), 2006)
moves them node by node, there and back, so that the bound only grows. With a plan of cost U, a choice whose every plan
provably costs more than U goes (reduced-cost fixing); after a few sweeps each time, so that the next ones have less to
do. Most often the bound is nearly tight long before the best plan is read off: so a guess below U takes its place on a
copy, which then is small enough to be solved exactly. Either its plan is the best of all, or none is so cheap, the
guess is a bound, and its plan most likely a good one. Plans are recombined (fusion moves: Lempitsky, Rother, Roth and
Blake, IEEE TPAMI 32(8), 2010) and improved region by region (``regions.py``), and where few assignments are left within
the gap, elimination ends the search (``elimination.py``).
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..budget import EQUAL, WORK_A_SECOND, Budget
from ..costs.cost_graph import IMPOSSIBLE
from .bounds import Choice, PresolvedMessages, consistent
from .elimination import TooMany, cheapest
from .presolve import Presolved
from .regions import FIRST, MOST, improve_regions

# Sweeps of messages in a round, and rounds. Set by hand, like what follows; docs/decisions/0016 measures what it leads
# to.
_SWEEPS = 5
_ROUNDS = 40
# With many pairs of choices, if the budget has no end.
_MOST_ROUNDS = 200
# A round is worth another where it leaves at most this part of the gap, or of the pairs.
_WORTH = 0.99
# So many in a row that are not worth another are the last.
_IDLE = 3
# With more pairs of choices the program is not likely to end: rounds and regions go on for this part of the budget.
_LARGE = 150_000
_ENOUGH = 0.5
# A round that leaves more than this part of the pairs is slow. Then the program takes over with so many times as many
# pairs as otherwise: it needs about 4 microseconds for each, a round on a small transformer's step 0.2 seconds.
_SLOW = 0.7
_FEW_IF_SLOW = 2.5
# A guess is this far from the bound to the best plan: the first that leaves so few pairs of choices.
_GUESSES = (0.6, 0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.015, 0.008, 0.004, 0.002, 0.001, 0.0005, 0.0)
_FEW_GUESSED = 40_000
# Of work, for the program of one guess.
_GUESS_SECONDS = 3.0
# So many of the last plans are recombined, with what costs least by the messages where that is so few pairs of choices;
# work for the program of one.
_RECOMBINED = 8
_FEW_RECOMBINED = 12_000
_RECOMBINE_SECONDS = 0.5
# Steps beside rounds get so many times the work of all rounds.
_RECOMBINATIONS, _REGIONS, _ELIMINATIONS, _GUESSES_SHARE = 1.0, 2.0, 1.5, 3.0
# Until bounds settle, less than this part of the choices is not struck.
_WORTH_STRIKING = 0.05
# Bounds are settled when a round raises them by less than this part.
_SETTLED = 0.003
# Eliminations are within this part of the gap at first, and have so many assignments at once.
_FIRST_PART = 1 / 16
_MOST_ROWS = 100_000
# After one of too many assignments the next comes when so much of the gap is left.
_AGAIN = 0.5


@dataclass(slots=True)
class Closing:
    """The best plan seen (``choice`` of the whole problem, its ``objective``) and the bound of what presolve left.

    ``evaluate`` costs a whole plan, ``improve`` makes a kernel's choice better one node at a time,
    ``exact`` solves a small kernel within a budget: its choice, and a bound without the constant (None: no guesses).
    """

    evaluate: Callable[[list[int]], float]
    improve: Callable[[Presolved, Choice], Choice]
    exact: Callable[[Presolved, Budget], tuple[Choice | None, float]] | None
    gap: float
    budget: Budget
    choice: list[int] | None = None
    objective: float = IMPOSSIBLE
    bound: float = -math.inf
    # A bound of so much says enough, whatever the gap.
    enough: float = math.inf
    seen: list[list[int]] = field(default_factory=list)
    # Of the last sweeps: a bound, what each choice costs beyond it at least, and which choices those are.
    there: float = -math.inf
    spare: dict[int, np.ndarray] = field(default_factory=dict)
    kept: dict[int, np.ndarray] = field(default_factory=dict)
    # The messages of the last sweeps, unless they are in the costs already.
    messages: PresolvedMessages | None = None
    # The plan that message passing gave last; work until now, by step.
    read: list[int] = field(default_factory=list)
    in_rounds: float = 0.0
    in_steps: dict[str, float] = field(default_factory=dict)
    # The plan that regions go on from, how many nodes one has, the nodes that were in one without a gain.
    current: list[int] | None = None
    region_size: int = FIRST
    tried: set[int] = field(default_factory=set)
    # From this gap to the best plan on there were too many assignments for an elimination.
    too_many: float = math.inf

    def offer(self, choice: list[int]) -> None:
        """Take a plan if it is the best."""
        self.seen.append(choice)
        cost = self.evaluate(choice)
        if cost < self.objective:
            self.choice, self.objective = choice, cost

    @property
    def done(self) -> bool:
        """Whether the gap is closed, or the bound says enough."""
        return self.bound >= self.enough or self.budget.closes(self.objective, self.bound, self.gap)

    def run(self, r: Presolved, few_pairs: int, is_enough: Callable[[Presolved], bool] = lambda _: False) -> None:
        """Strike and reduce in place until the gap is closed, few pairs are left, little is gained or time is up.

        ``is_enough`` says of what is left that it need not get smaller.
        """
        self._rounds(r, few_pairs, is_enough)
        if not self.done:
            self._strike(r)

    def _rounds(self, r: Presolved, few_pairs: int, is_enough: Callable[[Presolved], bool]) -> None:
        last_gap, last_pairs, idle = math.inf, math.inf, 0
        for k in itertools.count():
            # With messages that are not in the costs yet, it is the kernel of the round before.
            if not r.nodes or (self.messages is None and not consistent(r)):
                self.bound = max(self.bound, self.objective if r.nodes else min(self.objective, r.constant))
                if not r.nodes:
                    self.offer(r.expand({}))
                return
            before = r.pairs
            # One round is worth it in any case: with few pairs it often closes the gap.
            if (before <= few_pairs and k > 0) or self.budget.over or is_enough(r):
                return
            known, spent = self.bound, self.budget.spent
            self.bound = max(self.bound, self._round(r))
            # Before bounds settle they say little of where a plan may gain.
            settled = self.bound - known <= _SETTLED * abs(self.bound)
            self._strike(r, 0.0 if settled else _WORTH_STRIKING)
            self.in_rounds += self.budget.spent - spent
            if settled and self.exact is not None:
                self._in_turn(self._recombine, r, _RECOMBINATIONS)
                self._in_turn(self._regions, r, _REGIONS)
                self._in_turn(self._eliminate, r, _ELIMINATIONS)
            if r.pairs > few_pairs:
                self._in_turn(self._guess, r, _GUESSES_SHARE)
            if self.done:
                return
            gap, left = self.objective - self.bound, r.pairs
            idle = 0 if gap <= _WORTH * last_gap or left <= _WORTH * last_pairs else idle + 1
            may_end = self.exact is None or left <= _LARGE or self.budget.part >= _ENOUGH
            if k >= _MOST_ROUNDS or (may_end and (idle >= _IDLE or k >= _ROUNDS)):
                return
            if left <= _FEW_IF_SLOW * few_pairs and left > _SLOW * before:
                return
            last_gap, last_pairs = gap, left

    def _in_turn(self, step: Callable[[Presolved, Budget], None], r: Presolved, share: float) -> None:
        """A step that may take ``share`` times the work of all rounds until now, if it has not yet."""
        name = step.__name__
        spare = (share * self.in_rounds - self.in_steps.get(name, 0.0)) / WORK_A_SECOND
        if self.done or not r.nodes or spare <= 0 or self.budget.over:
            return
        some = self.budget.some(spare)
        step(r, some)
        self.in_steps[name] = self.in_steps.get(name, 0.0) + some.spent

    def _round(self, r: Presolved) -> float:
        """A few sweeps, and the plan read off; the bound."""
        m = self.messages = self.messages or PresolvedMessages(r)
        there = back = -math.inf
        for _ in range(_SWEEPS):
            there, back = m.sweep(forwards=True), m.sweep(forwards=False)
            self.budget.spend(2 * m.work)
            if self.budget.over:
                break
        self.read = r.expand(self.improve(r, m.read()))
        self.offer(self.read)
        self.there, self.spare = there + r.constant, {n: t - t.min() for n, t in m.total.items()}
        self.kept = {n: r.kept[n] for n in r.nodes}
        return back + r.constant

    def _strike(self, r: Presolved, least: float = 0.0) -> None:
        """Strike what costs more than the best plan, if that is this part of the choices at least.

        The messages go into the costs then: to begin with new ones takes as long as four sweeps.
        """
        if (m := self.messages) is None:
            return
        most = self.objective - self.there + EQUAL * abs(self.objective) if self.objective < IMPOSSIBLE else math.inf
        left = m.within(most)
        if sum(int(k.sum()) for k in left.values()) > (1.0 - least) * m.choices:
            return
        m.move()
        self.messages = None
        changed = [n for n, keep in left.items() if not keep.all()]
        for n in changed:
            r.keep(n, left[n])
        if changed:
            r.shrink_for_bounds(self.budget, [n for c in changed for n in (c, *r.around[c])])

    def _recombine(self, r: Presolved, budget: Budget) -> None:
        """The best plan of what the last ones choose, node by node, and of what costs least by the messages."""
        if self.choice is None or self.exact is None:
            return
        plans = [r.nearest(p) for p in (self.choice, *self.seen[-_RECOMBINED:])]
        chosen = {n: np.unique([p[n] for p in plans]) for n in r.nodes}
        least = {n: np.union1d(chosen[n], np.flatnonzero(self.spare[n][k] <= 0.0)) for n, k in self._rows(r)}
        few = r.among(least)
        if few.pairs > _FEW_RECOMBINED:
            few = r.among(chosen)
        few.shrink(budget)
        if not consistent(few):
            return
        choice, _ = self.exact(few, budget.some(_RECOMBINE_SECONDS)) if few.nodes else ({}, 0.0)
        if choice is not None:
            self.offer(few.expand(choice))

    def _regions(self, r: Presolved, budget: Budget) -> None:
        """Better plans by regions of the kernel: first than the best one, then than what messages read off last."""
        if self.choice is None:
            return
        start = self.improve(r, r.nearest(self.current or self.choice))
        gap = max(self.gap, self.budget.small_gap)
        better, whole = improve_regions(r, start, self.region_size, gap, self.tried, budget)
        gained = r.value(better) < r.value(start)
        self.current = r.expand(better)
        self.offer(self.current)
        if gained:
            self.region_size = FIRST
        elif whole:
            self.region_size *= 2
        if self.region_size > MOST:
            self.region_size, self.current = FIRST, self.read

    def _eliminate(self, r: Presolved, budget: Budget) -> None:
        """Find the best plan of a kernel, or a better bound, as far as few assignments are within the gap."""
        floor, part = r.floor(), _FIRST_PART
        gap = self.objective - floor
        if not gap < _AGAIN * self.too_many:
            return
        found = None
        try:
            while found is None and part <= 1.0 and not self.done:
                found = cheapest(r, part * gap, _MOST_ROWS, budget)
                self.bound = max(self.bound, min(floor + part * gap, self.objective))
                part *= 2
        except TooMany:
            self.too_many = part * gap / _FIRST_PART
        if found is not None:
            self.offer(r.expand(found))
            self.bound = max(self.bound, min(r.value(found), self.objective))

    def _rows(self, r: Presolved) -> list[tuple[int, np.ndarray]]:
        return [(n, np.searchsorted(self.kept[n], r.kept[n])) for n in r.nodes]

    def _guess(self, r: Presolved, budget: Budget) -> None:
        """Solve exactly what a plan may have that is cheaper than a guess."""
        gap = self.objective - self.bound
        if self.exact is None or not gap < IMPOSSIBLE / 2:
            return
        parts = np.array(_GUESSES)
        most_spare = self.bound + parts * gap - self.there
        spare = {n: self.spare[n][k] for n, k in self._rows(r)}
        at = {n: k for k, n in enumerate(spare)}
        # How many choices each node has within each guess.
        count = np.array([np.searchsorted(np.sort(x), most_spare, side="right") for x in spare.values()])
        ends = np.array([(at[a], at[b]) for a, b in r.edges], int).reshape(-1, 2)
        left = (count[ends[:, 0]] * count[ends[:, 1]]).sum(axis=0)
        few = np.flatnonzero(left <= _FEW_GUESSED)
        if not len(few):
            return
        most = self.bound + float(parts[few[0]]) * gap
        kept = {n: x <= most - self.there for n, x in spare.items()}
        trial = r.copy()
        for n, k in kept.items():
            if not k.any():
                self.bound = max(self.bound, most)
                return
            trial.keep(n, k)
        if not consistent(trial):
            self.bound = max(self.bound, most)
            return
        trial.shrink(budget)
        choice, bound = self.exact(trial, budget.some(_GUESS_SECONDS))
        if choice is not None:
            self.offer(trial.expand(choice))
        # No plan is cheaper than the guess, or the best of those is found.
        self.bound = max(self.bound, min(bound + trial.constant, most, self.objective))
