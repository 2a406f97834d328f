"""Branch and bound on bytes: what prices leave open, against trying everything."""

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


@pytest.mark.parametrize("seed", range(4))
def test_branches_prove_what_prices_leave_open(seed: int) -> None:
    problem, held = indivisible(seed)
    limit = 0.55 * sum(c.max() for c in held.nodes)
    every = list(itertools.product(range(4), repeat=len(held.nodes)))
    cheapest = min(problem.evaluate(c) for c in every if held.evaluate(c) <= limit)
    plans: list[Seen] = []

    def offer(choice: Sequence[int]) -> None:
        plans.append(Seen(tuple(choice), problem.evaluate(choice), np.array([held.evaluate(choice)])))

    def aim() -> float:
        return min((p.seconds for p in plans if p.peak <= limit), default=np.inf)

    for choice in (every[0], every[-1]):  # all that is fast, all that is small
        offer(choice)
    free = solve(problem)
    assert free is not None and not aim() == cheapest
    unit = free.objective / limit
    branching = Branching(problem, lambda _: held, limit, unit, plans, [0], offer, lambda _: None, aim)
    bound = branching.run(free.bound, {0: 0.3 * unit}, 1e-6, Budget())
    costs, excess = (np.array([x.evaluate(c) for c in every]) for x in (problem, held))
    at_any_price = max((costs + price * (excess - limit)).min() for price in np.linspace(0, 1.5, 61))
    assert at_any_price < 0.995 * cheapest
    assert aim() == pytest.approx(cheapest, rel=1e-6)
    assert 0.998 * cheapest < bound <= cheapest * (1 + 1e-9)


def test_a_branch_without_a_plan_has_no_bound() -> None:
    problem, held = indivisible(0)
    problem.edges[0, 1] = np.where(np.equal.outer([0, 0, 1, 1], [0, 0, 1, 1]), 0.0, 1e6)
    branching = Branching(problem, lambda _: held, 10.0, 1.0, [], [0], lambda _: None, lambda _: None, lambda: np.inf)
    none = Branch({0: np.array([1, 1, 0, 0], bool), 1: np.array([0, 0, 1, 1], bool)}, 0.0, {})
    assert branching.raised(none, {}, 0.0, Budget()).bound == np.inf
