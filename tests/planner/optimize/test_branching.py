"""Branch and bound on bytes: what prices leave open, against trying everything."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from sbp_jax.planner.budget import Budget
from sbp_jax.planner.costs.cost_graph import CostGraph
from sbp_jax.planner.optimize.branching import Branch, Branching
from sbp_jax.planner.optimize.program import solve
from sbp_jax.planner.optimize.recombine import Seen


def indivisible(seed: int) -> tuple[CostGraph, CostGraph]:
    """Seconds and bytes: fast choices hold much, in several equal ways, and neighbours want to choose alike."""
    random = np.random.default_rng(seed)
    n = 6
    large = random.integers(4, 12, n).astype(float)
    seconds = [np.array([1.0, 1.001, 3.0 + s, 3.001 + s]) for s in random.uniform(0, 3, n)]
    edges = {(a, a + 1): np.where(np.equal.outer([0, 0, 1, 1], [0, 0, 1, 1]), 0.0, 0.7) for a in range(n - 1)}
    return CostGraph(seconds, edges), CostGraph([np.array([x, x, 1.0, 1.0]) for x in large], {})


@dataclasses.dataclass
class Case:
    """A problem with everything tried: the cheapest plan that fits, and the best bound of any price for bytes."""

    seed: int
    plans: list[Seen] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.problem, self.held = indivisible(self.seed)
        self.limit = 0.55 * sum(c.max() for c in self.held.nodes)
        every = list(itertools.product(range(4), repeat=len(self.held.nodes)))
        costs, excess = (np.array([x.evaluate(c) for c in every]) for x in (self.problem, self.held))
        self.cheapest = costs[excess <= self.limit].min()
        self.at_any_price = max((costs + price * (excess - self.limit)).min() for price in np.linspace(0, 1.5, 301))
        for choice in (every[0], every[-1]):  # all that is fast, all that is small
            self.offer(choice)
        free = solve(self.problem)
        assert free is not None
        self.free, self.unit = free.objective, free.objective / self.limit

    def offer(self, choice: Sequence[int]) -> None:
        held = np.array([self.held.evaluate(choice)])
        self.plans.append(Seen(tuple(choice), self.problem.evaluate(choice), held))

    def aim(self) -> float:
        return min((p.seconds for p in self.plans if p.peak <= self.limit), default=np.inf)

    def branching(self) -> Branching:
        return Branching(self.problem, lambda _: self.held, self.limit, self.unit, self.plans, [0], self.offer,
                         lambda _: None, self.aim, lambda: 1e-6)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_branches_prove_what_prices_leave_open(seed: int) -> None:
    case = Case(seed)
    assert case.aim() != case.cheapest
    bound = case.branching().run(case.free, {0: 0.3 * case.unit}, Budget())
    assert case.at_any_price < 0.995 * case.cheapest
    assert case.aim() == pytest.approx(case.cheapest, rel=1e-6)
    assert 0.998 * case.cheapest < bound <= case.cheapest * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_without_branches_the_bound_is_that_of_the_best_prices(seed: int) -> None:
    case = Case(seed)
    whole = case.branching().undivided(case.free, {0: 0.3 * case.unit}, Budget(), 1.0)
    assert 0.99 * case.at_any_price < whole.bound <= 1.001 * case.at_any_price
    # Its prices are those that prove it.
    (price,) = whole.prices.values()
    every = itertools.product(range(4), repeat=len(case.held.nodes))
    least = min(case.problem.evaluate(c) + price * (case.held.evaluate(c) - case.limit) for c in every)
    assert whole.bound <= least * (1 + 1e-9)
    # Nothing is done where nothing may be spent.
    assert case.branching().undivided(case.free, {0: 1.0}, Budget(work=0.0), 1.0).prices == {0: 1.0}


def test_a_branch_without_a_plan_has_no_bound() -> None:
    problem, held = indivisible(0)
    problem.edges[0, 1] = np.where(np.equal.outer([0, 0, 1, 1], [0, 0, 1, 1]), 0.0, 1e6)
    branching = Branching(
        problem, lambda _: held, 10.0, 1.0, [], [0], lambda _: None, lambda _: None, lambda: np.inf, float
    )
    none = Branch({0: np.array([1, 1, 0, 0], bool), 1: np.array([0, 0, 1, 1], bool)}, 0.0, {})
    assert branching.raised(none, {}, Budget()).bound == np.inf
