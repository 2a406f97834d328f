"""Striking by bounds never loses the optimum."""

import itertools

import numpy as np
import pytest

from sbp_jax.planner import solve as solving
from sbp_jax.planner import tighten
from sbp_jax.planner.problem import IMPOSSIBLE, Problem
from sbp_jax.planner.reduce import reduce


def random_problem(seed: int, nodes: int, choices: int, density: float, impossible: float) -> Problem:
    random = np.random.default_rng(seed)
    sizes = random.integers(2, choices + 1, nodes)
    problem = Problem([random.random(k) for k in sizes], {}, nodes, [], [])
    for a, b in itertools.combinations(range(nodes), 2):
        if random.random() < density:
            m = random.random((sizes[a], sizes[b])) * random.choice([0.1, 1.0, 3.0])
            m[random.random(m.shape) < impossible] = IMPOSSIBLE
            problem.connect(a, b, m)
    return problem


@pytest.mark.parametrize("seed", range(30))
def test_the_optimum_stays(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(seed, 7, 5, density=0.8, impossible=0.1 * (seed % 3))
    best = min(map(problem.evaluate, itertools.product(*(range(len(c)) for c in problem.nodes))))
    monkeypatch.setattr(tighten, "_FEW_PAIRS", 0)
    found = solving.solve(problem)
    if best >= IMPOSSIBLE:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_allclose([found.objective, found.bound], best, rtol=1e-6)
        np.testing.assert_allclose(problem.evaluate(found.choice), best, rtol=1e-9)


def test_much_is_struck_where_bounds_are_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tighten, "_FEW_PAIRS", 0)
    problem = random_problem(1, 24, 12, density=0.15, impossible=0.0)
    kernel = reduce(problem, strike=False)
    before = sum(map(len, kernel.nodes.values()))
    assert before > 20
    tighten.tighten(kernel, solving.improve)
    assert sum(map(len, kernel.nodes.values())) < 0.7 * before
