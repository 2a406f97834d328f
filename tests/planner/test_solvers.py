"""Every search method on one interface and one cost: the exact one is never beaten, and everything tried agrees."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.planner.problem import Problem
from sbp_jax.planner.solvers import Task, lookup


class Bytes:
    """What choices hold, at a few points: a random amount for each choice."""

    def __init__(self, problem: Problem, seed: int, points: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.problem, self.n_nodes = problem, points
        self.tables = [random.integers(0, 20, size=(points, len(c))).astype(float) for c in problem.nodes]

    def over_time(self, choice):
        return np.array([sum(t[p, k] for t, k in zip(self.tables, choice, strict=True)) for p in range(self.n_nodes)])

    def at(self, point: int) -> Problem:
        return Problem([t[point].copy() for t in self.tables], {}, len(self.tables), [], [1] * len(self.tables))


def task(seed: int, limit: float | None = None, n: int = 7) -> Task:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, size=n)
    nodes = [random.integers(0, 20, size=k).astype(float) for k in sizes]
    edges = {
        (a, b): random.integers(0, 20, size=(sizes[a], sizes[b])).astype(float)
        for a, b in itertools.combinations(range(n), 2)
        if random.random() < 0.5
    }
    problem = Problem(nodes, edges, n, [], [1] * n)
    footprint: object = Bytes(problem, seed)
    return Task(problem, footprint, limit, 0.0, 5.0, lambda _: None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", range(60))
def test_exact_equals_everything_tried(seed: int) -> None:
    found = {name: lookup(name)(task(seed)) for name in ("ilp", "exhaustive", "greedy")}
    best = found["exhaustive"]
    assert best is not None
    for name, one in found.items():
        assert one is not None and one.seconds == pytest.approx(task(seed).problem.evaluate(one.solution.choice))
        assert one.seconds >= best.seconds - 1e-9 and one.bound <= best.seconds + 1e-9, name
    assert found["ilp"] is not None and found["ilp"].seconds == pytest.approx(best.seconds)


@pytest.mark.parametrize("seed", range(140))
def test_within_memory(seed: int) -> None:
    """Prices, and rows where they leave a gap: the best plan that fits, or the word that none does."""
    free = lookup("exhaustive")(task(seed))
    assert free is not None
    limit = (0.95, 0.85, 0.7)[seed % 3] * float(task(seed).footprint.over_time(free.solution.choice).max())
    try:
        best = lookup("exhaustive")(task(seed, limit))
    except sbp.PlanError:
        with pytest.raises(sbp.PlanError, match="no plan was found that fits"):
            lookup("ilp")(task(seed, limit))
        return
    found = lookup("ilp")(task(seed, limit))
    assert best is not None and found is not None
    assert task(seed).footprint.over_time(found.solution.choice).max() <= limit
    assert found.seconds == pytest.approx(best.seconds)
    assert found.bound == pytest.approx(best.seconds)


def test_the_solvers_plan_programs() -> None:
    assert sbp.planner.solvers() == ["exhaustive", "greedy", "ilp"]
    where = sbp.placement.abstract((4,), cluster="h100")

    def step(w, x):
        return jnp.tanh(x @ w).sum()

    shapes = np.zeros((512, 512), np.float32), np.zeros((512, 512), np.float32)
    plans = {
        name: sbp.plan(step, *shapes, placement=where, config=sbp.AutoParallelConfig(solver=name))
        for name in sbp.planner.solvers()
    }
    best = plans["exhaustive"]
    assert plans["ilp"].objective == pytest.approx(best.objective) and plans["ilp"].optimality_gap == 0
    assert plans["greedy"].objective >= best.objective - 1e-12
    assert {p.solver for p in plans.values()} == set(plans)


def test_too_many_plans_to_try() -> None:
    with pytest.raises(sbp.PlanError, match=r"tries every plan, and there are .*use solver='ilp'"):
        lookup("exhaustive")(task(0, n=30))
