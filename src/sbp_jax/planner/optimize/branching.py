"""Branch and bound on bytes: it closes the gap that comes from large values that are held whole or not at all.

Prices for bytes leave a gap (the dual's own) where what fits best on average is a mix: a fifth of a plan that holds a
large value, four fifths of one that does not. At the best prices the cheapest mix of the plans seen that keeps to the
limit on average shows it (Dantzig and Wolfe, Operations Research 8, 1960). If one choice of one node is forbidden,
another one that holds the same takes its place, and the bound stays. So a branch divides all choices of a node by the
bytes that they hold, at the prices: those below the mean of the mix, those above it. The node is the one whose mix
varies most, in seconds. (Branch and bound: Land and Doig, Econometrica 28, 1960; branching on sets of choices: Beale
and Tomlin, Proc. 5th Int. Conf. on Operational Research, 1970.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..budget import Budget
from ..costs.cost_graph import IMPOSSIBLE, CostGraph, penalised
from .bounds import consistent
from .bundle import LEVEL, better, mixed
from .presolve import without_presolve
from .program import solve
from .recombine import Seen
from .sums import dot

# Set by hand; docs/decisions/0025 measures what it leads to. Solutions at prices for a branch; the gap to which each is
# solved, and its seconds of work.
_ROUNDS = 3
_GAP = 1e-3
_SECONDS = 2.0
# Work of a solution beside its own: some small programs. From this level on plans come again whatever the prices.
_SOLUTION_WORK = 1_000_000
_HIGHEST = 0.9999
# A mix varies if it does by more than this part of the step.
_VARIES = 1e-5
# Prices are at most so many times the step's seconds for the whole limit.
_CAP = 100.0


@dataclass(frozen=True, slots=True)
class Branch:
    """What nodes may choose (masks; no node: anything), a bound, the prices that prove it, the level of the next ones
    (``bundle.py``)."""

    allowed: dict[int, np.ndarray]
    bound: float
    prices: dict[int, float]
    level: float = LEVEL

    def has(self, plan: Seen) -> bool:
        """Whether a plan is one of its plans."""
        return all(mask[plan.choice[n]] for n, mask in self.allowed.items())


@dataclass(slots=True)
class Branching:
    """Branches of a problem whose plans hold at most ``limit`` bytes at the ``points``.

    ``bytes_at`` gives the bytes at a point, ``unit`` the order of prices (seconds a byte), ``aim`` the seconds of the
    best plan known, ``enough`` the gap to it that is small enough as of now. ``offer`` is given each branch's cheapest
    plans and adds them to ``plans``, and points where they overflow to ``points``; ``meet`` is given other plans that
    are met.
    """

    problem: CostGraph
    bytes_at: Callable[[int], CostGraph]
    limit: float
    unit: float
    plans: list[Seen]
    points: list[int]
    offer: Callable[[Sequence[int]], object]
    meet: Callable[[Sequence[int]], object]
    aim: Callable[[], float]
    enough: Callable[[], float]

    def run(self, bound: float, prices: dict[int, float], budget: Budget) -> float:
        """Divide branches until the gap is closed or the budget is over; the bound of all plans."""
        waiting, done = [Branch({}, bound, prices)], np.inf
        while True:
            proven = min([self.aim(), done, *(b.bound for b in waiting)])
            if not waiting or budget.over or budget.closes(self.aim(), proven, self.enough()):
                return proven
            branch = waiting.pop(min(range(len(waiting)), key=lambda k: (waiting[k].bound, k)))
            halves = self._halves(branch)
            if halves is None:  # a mix of one plan, or of none that was seen: better prices, or this is the bound
                found = self._next_prices(branch)
                if found is None or branch.level > _HIGHEST:
                    done = min(done, branch.bound)
                else:
                    waiting.append(self.raised(branch, found, budget))
                continue
            n, first = halves
            before = branch.allowed.get(n, np.ones(len(first), bool))
            for half in (first & before, ~first & before):
                if half.any():
                    child = replace(branch, allowed=branch.allowed | {n: half})
                    waiting.append(self.raised(child, branch.prices, budget))

    def undivided(self, bound: float, prices: dict[int, float], budget: Budget, seconds: float) -> Branch:
        """The problem as it is, with the best prices that the budget leads to; ``seconds`` of work for a solution."""
        whole = Branch({}, bound, prices)
        while not budget.over and not budget.closes(self.aim(), whole.bound, self.enough()) and whole.level <= _HIGHEST:
            found = self._next_prices(whole)
            if found is None:
                break
            whole = self.raised(whole, found, budget, seconds)
        return whole

    def raised(self, branch: Branch, prices: dict[int, float], budget: Budget, seconds: float = _SECONDS) -> Branch:
        """A branch with better prices, beginning at some."""
        nodes = list(self.problem.nodes)
        for n, mask in branch.allowed.items():
            nodes[n] = np.where(mask, nodes[n], IMPOSSIBLE)
        problem = replace(self.problem, nodes=nodes)
        for _ in range(_ROUNDS):
            if budget.over:
                break
            graph = penalised(problem, [(p, self.bytes_at(t)) for t, p in prices.items()])
            budget.spend(graph.pairs * (1 + len(prices)) + _SOLUTION_WORK)
            known = [p.choice for p in self.plans if branch.has(p)]
            solution = solve(graph, _GAP, budget.some(seconds), known, relaxed=True)
            if solution is None:
                if not consistent(without_presolve(problem)):
                    branch = replace(branch, bound=np.inf)  # it has no plan
                break
            proven = solution.bound - self.limit * sum(prices.values())
            if proven > branch.bound:
                branch = replace(branch, bound=proven, prices=prices)
            for choice in solution.seen:
                self.meet(choice)
            # Prices under which a plan comes again were too near to the last ones.
            met = tuple(solution.choice) in known
            branch = replace(branch, level=0.5 * (1.0 + branch.level) if met else LEVEL)
            self.offer(solution.choice)
            if budget.closes(self.aim(), branch.bound, self.enough()):
                break
            found = self._next_prices(branch)
            if found is None:
                break
            prices = found
        return branch

    def _rows(self, branch: Branch) -> tuple[list[Seen], np.ndarray, np.ndarray]:
        plans = [p for p in self.plans if branch.has(p)]
        costs = np.array([p.seconds for p in plans])
        rows = np.array([p.memory[self.points] - self.limit for p in plans]).reshape(len(plans), -1) * self.unit
        return plans, costs, rows

    def _next_prices(self, branch: Branch) -> dict[int, float] | None:
        plans, costs, rows = self._rows(branch)
        if not plans:
            return None
        centre = np.array([branch.prices.get(t, 0.0) for t in self.points]) / self.unit
        prices = better(costs, rows, centre, branch.bound, self.aim(), branch.level, _GAP, _CAP)
        return prices if prices is None else dict(zip(self.points, (prices * self.unit).tolist(), strict=True))

    def _halves(self, branch: Branch) -> tuple[int, np.ndarray] | None:
        """The node whose mix of bytes varies most, in seconds, and its choices of less than the mean."""
        plans, costs, rows = self._rows(branch)
        parts = mixed(costs, rows, _CAP) if plans else None
        if parts is None or parts.sum() <= 0:
            return None
        parts = parts / parts.sum()
        priced = CostGraph([np.zeros(len(c)) for c in self.problem.nodes], {})
        held = penalised(priced, [(p, self.bytes_at(t)) for t, p in branch.prices.items()])
        mix = [np.zeros(len(c)) for c in self.problem.nodes]
        for part, plan in zip(parts, plans, strict=True):
            if part > 0:
                for n, k in enumerate(plan.choice):
                    mix[n][k] += part
        seconds = list(held.nodes)
        for (a, b), u in held.edges.items():
            seconds[a] = seconds[a] + dot(u, mix[b])
            seconds[b] = seconds[b] + dot(u.T, mix[a])
        means = [float(dot(x, s)) for x, s in zip(mix, seconds, strict=True)]
        varies = [float(dot(x, (s - m) ** 2)) for x, s, m in zip(mix, seconds, means, strict=True)]
        n = int(np.argmax(varies))
        if varies[n] <= (_VARIES * self.aim()) ** 2:
            return None
        return n, seconds[n] <= means[n]
