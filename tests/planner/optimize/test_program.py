"""The search finds the optimum: reductions and 0-1 program against trying everything."""

import itertools

import numpy as np
import pytest
from small_graphs import cheapest, problem

from sbp_jax.planner.costs.cost_graph import IMPOSSIBLE
from sbp_jax.planner.optimize.bounds import PresolvedMessages
from sbp_jax.planner.optimize.presolve import _may_beat, presolve, without_presolve
from sbp_jax.planner.optimize.program import solve


@pytest.mark.parametrize("seed", range(60))
def test_equal_to_trying_everything(seed: int) -> None:
    p = problem(seed, dense=(seed % 4 + 1) / 4)
    solution = solve(p)
    assert solution is not None
    assert solution.objective == pytest.approx(cheapest(p))
    assert p.evaluate(solution.choice) == pytest.approx(solution.objective)
    assert solution.bound == pytest.approx(solution.objective)


@pytest.mark.parametrize("seed", range(20))
def test_with_choices_that_cannot_be(seed: int) -> None:
    p = problem(seed, forbid=0.3)
    best, solution = cheapest(p), solve(p)
    if best >= IMPOSSIBLE:
        assert solution is None
    else:
        assert solution is not None and solution.objective == pytest.approx(best)


@pytest.mark.parametrize("seed", range(20))
def test_reductions_keep_the_optimum(seed: int) -> None:
    p = problem(seed, n=8, dense=0.3)
    r = presolve(p)
    kernel = [
        dict(zip(r.nodes, choice, strict=True))
        for choice in itertools.product(*(range(len(c)) for c in r.nodes.values()))
    ]
    assert min(p.evaluate(r.expand(k)) for k in kernel) == pytest.approx(cheapest(p))


def test_a_chain_reduces_to_nothing() -> None:
    p = problem(0, n=6, dense=0.0)
    for a in range(5):
        p.edges[a, a + 1] = np.random.default_rng(a).random((len(p.nodes[a]), len(p.nodes[a + 1])))
    assert presolve(p).nodes == {}


@pytest.mark.parametrize("seed", range(20))
def test_the_cheap_comparison_leaves_out_only_choices_that_are_not_beaten(seed: int) -> None:
    random = np.random.default_rng(seed)
    cost = random.integers(0, 6, size=9).astype(float)
    matrices = [random.integers(0, 4, size=(9, k)).astype(float) for k in random.integers(1, 5, size=seed % 4)]
    worse = cost[:, None] - cost[None, :] + sum((m[:, None, :] - m[None, :, :]).min(axis=2) for m in matrices)
    np.fill_diagonal(worse, -1.0)
    beaten = set(zip(*np.nonzero(worse >= 0), strict=True))
    assert beaten  # else nothing is compared
    assert beaten <= set(zip(*_may_beat(cost, matrices, 1e-12), strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_sweeps_raise_a_bound_that_holds(seed: int) -> None:
    p = problem(seed)
    messages, best = PresolvedMessages(without_presolve(p)), cheapest(p)
    bounds = [messages.sweep(forwards=k % 2 == 0) for k in range(12)]
    separate = sum(float(c.min()) for c in [*p.nodes, *p.edges.values()])
    assert all(before <= after + 1e-9 for before, after in itertools.pairwise(bounds))
    assert separate - 1e-9 <= bounds[-1] <= best + 1e-9


def test_one_sweep_proves_the_optimum_of_a_chain() -> None:
    p = problem(3, n=6, dense=0.0)
    random = np.random.default_rng(0)
    p.edges = {(k, k + 1): random.random((len(p.nodes[k]), len(p.nodes[k + 1]))) * 30 for k in range(5)}
    messages = PresolvedMessages(without_presolve(p))
    assert messages.sweep(forwards=True) == pytest.approx(cheapest(p))
