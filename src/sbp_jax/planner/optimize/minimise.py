"""The search for the cheapest plan within a memory limit.

Presolve; prices for bytes with messages that go on from each other (``multipliers.py``), which gives a bound, plans,
and what each choice costs at least beyond the bound; then programs of the choices that cost least beyond it, with a
memory row where one is needed. What such a program leaves out costs more than its threshold, so that its optimum is a
bound as well. The prices of its rows begin the next round. Every plan that fits is improved by single moves.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..budget import Budget
from .arrays import Flat, by_node, flat
from .instance import Instance, at_peaks
from .kernel import Impossible, Kernel, kernel_of
from .memory_rows import Program
from .messages import Messages
from .multipliers import Multipliers
from .neighbourhood import around, freed, neighbours_of
from .polish import Polish

# Set by hand, like what follows; benchmarks/results/contest.txt shows what it leads to.
# The budget unless the caller sets one: about a minute on one core.
_WORK = 5e9
# Sweeps before bytes get prices; sweeps at each price of the first plan, whose prices begin at this part of the bound
# for the whole limit.
_FREE_SWEEPS = 10
_FIRST_SWEEPS = 3
_FIRST_PRICE = 20.0
# Prices of the first plan, each ten times the one before.
_MOST_FIRST = 8
# Pairs of choices and nodes of the first restricted program, doubled each time; parts of the budget for prices before
# it and before the next ones.
_FIRST_PAIRS = 120_000
_FIRST_NODES = 200
_FIRST_PRICES = 0.3
_MORE_PRICES = 0.1
# Steps of prices that no longer raise the bound: with a plan, without one.
_IDLE = 40
_LONG_IDLE = 150
# Another restricted program begins where so many times as much of the budget is left as the last one took; after one
# that took less than this part, with twice as many pairs.
_WORTH = 1.5
_SHORT = 0.08
# Moves: their part of the budget in each round, pairs of choices, nodes of the program.
_MOVES = 0.15
_FIRST_MOVED = 10_000
_LEAST_MOVED = 1_000
_MOST_MOVED = 60_000
_MOVE_NODES = 20
_MOVE_SECONDS = 10.0
# How much larger the next neighbourhood is after one solved to the end, or smaller after one that was not.
_GROW = 1.3
# Of the seconds left, if there is a limit, for one program.
_BRANCH = 0.5
# Work: what one entry of a matrix costs in a sweep; what the fixed cost of a node is beside.
_NODE_WORK = 400


@dataclass(frozen=True, slots=True)
class Minimum:
    """The cheapest plan found (None: no plan fits, or none was found), its cost, and a proven lower bound.

    ``impossible``: it is proven that no plan fits.
    """

    choice: tuple[int, ...] | None
    cost: float
    bound: float
    impossible: bool = False


def minimise(
    instance: Instance, budget: Budget | None = None, gap: float = 1e-5,
    progress: Callable[[str], None] = lambda words: None,
) -> Minimum:  # fmt: skip
    """The cheapest plan of an instance, to a gap that is proven, or as good as the budget allows."""
    budget = budget or Budget(work=_WORK)
    kernel = kernel_of(at_peaks(instance))
    try:
        kernel.presolve()
    except Impossible:
        return Minimum(None, np.inf, np.inf, True)
    budget.spend(kernel.work)
    if (kernel.base > kernel.limit_bytes).any():
        return Minimum(None, np.inf, np.inf, True)
    search = _Search(kernel, budget, gap, progress)
    search.run()
    if search.best is None:
        return Minimum(None, np.inf, search.bound, search.bound == np.inf)
    expanded = kernel.expand(by_node(search.f, search.best))
    choice = tuple(expanded[i] for i in range(len(instance.costs)))
    cost = instance.evaluate(choice)
    return Minimum(choice, cost, min(search.bound, cost))


class _Search:
    """The state of a search on a kernel."""

    def __init__(self, kernel: Kernel, budget: Budget, gap: float, progress: Callable[[str], None]) -> None:
        self.kernel, self.budget, self.gap, self.progress = kernel, budget, gap, progress
        self.f: Flat = flat(kernel)
        self.messages = Messages(self.f)
        self.polish = Polish(self.f, self.messages)
        self.multipliers = Multipliers(self.f, self.messages, self.offer)
        self.best: np.ndarray | None = None
        self.reduced: np.ndarray | None = None
        self.neighbours = neighbours_of(self.f)
        # The last node whose neighbourhood was solved, and how many pairs of choices the next one may have.
        self.seed, self.move_pairs = 0, _FIRST_MOVED
        # The part of the budget that the last restricted program took.
        self.took = 0.0
        self.cost, self.bound = np.inf, -np.inf
        self.sweep_work = self.messages.work + _NODE_WORK * len(self.f.nodes)
        self.most_cost = self.f.most_cost

    @property
    def done(self) -> bool:
        """Whether the gap is closed, or nothing is left to spend."""
        if self.budget.over or self.bound == np.inf:
            return True
        return self.best is not None and self.budget.closes(self.cost, self.bound, self.gap)

    def say(self, words: str) -> None:
        self.progress(f"{words}: cost {self.cost:.8g} bound {self.bound:.8g} part {self.budget.part:.3f}")

    def offer(self, choice: np.ndarray, profile: np.ndarray) -> float:
        """Improve a plan that fits, and keep the best; the cost of the best plan."""
        if profile.max(initial=0.0) <= self.f.limit_bytes:
            cost = self.f.evaluate(choice)
            if cost < np.inf and (self.best is None or cost < 1.5 * self.cost):
                better = self.polish.run(choice)
                self.budget.spend(self.sweep_work)
                cost = self.f.evaluate(better)
                if cost < self.cost:
                    self.best, self.cost = better, cost
        return self.cost

    def run(self) -> None:
        f = self.f
        if not f.nodes:
            self.best, self.cost, self.bound = np.zeros(0, np.int64), f.constant, f.constant
            return
        self._settle(_FREE_SWEEPS)
        self._first_plan()
        pairs, nodes, share = _FIRST_PAIRS, _FIRST_NODES, _FIRST_PRICES
        while not self.done:
            self._price(self.budget.part + share)
            if self.done:
                return
            before = self.budget.part
            if 1.0 - before > _WORTH * self.took:
                self._restricted(pairs, nodes)
                self.took = self.budget.part - before
                if self.took < _SHORT:  # the next may be larger
                    pairs, nodes = 2 * pairs, 2 * nodes
            share = _MORE_PRICES
            if self.best is not None:
                self._move(self.budget.part + _MOVES)

    def _move(self, until: float) -> None:
        """Solve neighbourhoods of the best plan, one after the other over all nodes."""
        f = self.f
        if self.reduced is None:
            return
        moved = 0
        while self.budget.part < until and not self.done:
            keep = self.reduced <= self.cost - self.bound
            count = np.add.reduceat(keep.astype(np.int64), f.offsets[:-1])
            self.seed = (self.seed + max(1, int(0.382 * len(f.nodes)))) % len(f.nodes)
            while count[self.seed] <= 1 and (count > 1).any():
                self.seed = (self.seed + 1) % len(f.nodes)
            assert self.best is not None
            free = around(f, self.seed, self.neighbours, count, self.move_pairs)
            kernel = freed(f, self.best, free, keep)
            try:
                kernel.presolve()
            except Impossible:  # not with the plan's own choices among them, but for costs that are infinite in sum
                return
            small = flat(kernel)
            self.budget.spend(kernel.work + self.sweep_work)
            known = self.cost
            if not small.nodes:
                self._offer_moved(kernel, small, np.zeros(0, np.int64))
            else:
                program = Program(small)
                program.add_rows(np.flatnonzero(self.multipliers.best_prices).tolist())
                choice = program.branch(self.budget, self.gap / 10, None, _MOVE_NODES, _MOVE_SECONDS)
                if choice is not None:
                    self._offer_moved(kernel, small, choice)
                factor = _GROW if program.is_optimal else 1 / _GROW
                self.move_pairs = int(min(max(self.move_pairs * factor, _LEAST_MOVED), _MOST_MOVED))
            moved += 1
            if self.cost < known:
                self.say(f"moved {len(free)} nodes, {small.costs.size} choices")
        self.say(f"{moved} moves of {self.move_pairs} pairs")

    def _offer_moved(self, kernel: Kernel, small: Flat, choice: np.ndarray) -> None:
        assert self.best is not None
        whole = self.best.copy()
        for i, k in kernel.expand(by_node(small, choice)).items():
            whole[i] = k
        self.offer(whole, self.f.profile(whole))

    def _first_plan(self) -> None:
        """A plan that fits, if not a good one: every byte has a price of its own, which grows until one is found."""
        f, m = self.f, self.messages
        m.set_prices(self.multipliers.prices)
        choice = m.read()
        self.offer(choice, f.profile(choice))
        if self.best is not None or not len(f.table_node):
            return
        held = np.bincount(f.entry_choice, f.table_bytes, len(f.costs))
        price = max(abs(self.bound), 1.0) / max(f.limit_bytes, 1.0) / _FIRST_PRICE
        for _ in range(_MOST_FIRST):
            m.costs = f.costs + price * held
            for _ in range(_FIRST_SWEEPS):
                m.bound(1)
            for forwards in (True, False):
                choice = m.read(forwards)
                self.offer(choice, f.profile(choice))
            self.budget.spend((2 * _FIRST_SWEEPS + 2) * self.sweep_work)
            if self.best is not None or self.budget.over:
                break
            price *= 10.0
        m.given[:] = 0.0
        m.set_prices(self.multipliers.prices)
        self.say("first plan")

    def _settle(self, sweeps: int) -> None:
        """Sweeps without a change of prices."""
        m = self.messages
        m.set_prices(self.multipliers.prices)
        for _ in range(sweeps):
            self.bound = max(self.bound, m.bound(1))
            self.budget.spend(2 * self.sweep_work)
            if self.budget.over:
                break

    def _price(self, until: float) -> None:
        """Change prices until a part of the budget is spent, or the bound grows no more."""
        x, since, last = self.multipliers, 0, -np.inf
        x.alpha = max(x.alpha, 0.2)
        while self.budget.part < until and not self.done:
            if not x.step():
                since += 5
            self.budget.spend(4 * self.sweep_work)
            self.bound = max(self.bound, x.bound)
            if self.bound > self.most_cost:  # no plan fits
                self.bound = np.inf
                return
            since = 0 if x.bound > last + 1e-4 * abs(last) or last == -np.inf else since + 1
            if since == 0:
                last = x.bound
            if since > (_IDLE if self.best is not None else _LONG_IDLE):
                break
        self.say(f"prices (alpha {x.alpha:.3f}, {int((x.best_prices > 0).sum())} points)")

    def _restricted(self, most_pairs: int, most_nodes: int) -> None:
        """Solve the program of the choices that cost least beyond the bound."""
        f, m, x = self.f, self.messages, self.multipliers
        m.set_prices(x.best_prices)
        low = max(m.bound(1) for _ in range(4))
        before = max(m.sweep(True), low)
        m.sweep(False)
        reduced = self.reduced = m.reduced_costs()
        self.bound = max(self.bound, before)
        x.bound = max(x.bound, before)
        self.budget.spend(12 * self.sweep_work)
        most = self.cost - before if self.best is not None else np.inf
        threshold = self._threshold(reduced, most, most_pairs)
        k, keep = self.kernel.copy(), reduced <= threshold
        if self.best is not None:
            keep[f.offsets[:-1] + self.best] = True
        k.log = []
        try:
            for i, n in enumerate(f.nodes):
                mask = keep[f.offsets[i] : f.offsets[i + 1]]
                if not mask.all():
                    k.keep(n, mask)
            k.presolve()
        except Impossible:
            self.bound = max(self.bound, min(before + threshold, self.cost))
            return
        self.budget.spend(k.work)
        small = flat(k)
        sizes = f"{len(f.costs)} -> {int(keep.sum())} -> {len(small.costs)} choices, {k.pairs} pairs"
        self.say(f"restricted (threshold {threshold:.3g} of {most:.3g}, {sizes})")
        if not small.nodes:
            self._offer_restricted(k, small, np.zeros(0, np.int64))
            self.bound = max(self.bound, min(before + threshold, k.constant, self.cost))
            return
        program = Program(small)
        program.add_rows(np.flatnonzero(x.best_prices).tolist())
        part = program.relax(self.budget)
        self.say(f"relaxed ({program.n_columns} columns, {len(program.points)} rows, bound {program.bound:.8g})")
        proven = program.bound
        if part is not None and program.bound < np.inf:
            x.restart(program.prices, 0.1)
            seconds = _BRANCH * self.budget.seconds_left
            choice = program.branch(self.budget, self.gap, None, most_nodes, seconds)
            proven = max(proven, program.bound)
            if choice is not None:
                self._offer_restricted(k, small, choice)
        self.bound = max(self.bound, min(before + threshold, proven, self.cost))
        self.say("branched")

    def _offer_restricted(self, k: Kernel, small: Flat, choice: np.ndarray) -> None:
        expanded = k.expand(by_node(small, choice))
        whole = np.array([expanded[n] for n in self.f.nodes], np.int64)
        self.offer(whole, self.f.profile(whole))

    def _threshold(self, reduced: np.ndarray, most: float, most_pairs: int) -> float:
        """The largest reduced cost, up to ``most``, up to which there are about so many pairs of choices."""
        f = self.f

        def pairs(threshold: float) -> int:
            count = np.add.reduceat((reduced <= threshold).astype(np.int64), f.offsets[:-1])
            return int((count[f.ends[:, 0]] * count[f.ends[:, 1]]).sum())

        if pairs(most) <= most_pairs:
            return most
        values = np.unique(reduced[(reduced > 0) & (reduced < most)])
        few = bisect.bisect_right(values, most_pairs, key=lambda x: pairs(float(x)))
        return float(values[max(few - 1, 0)]) if len(values) else most
