"""The steps that both presolves take, against everything tried."""

import itertools

import numpy as np
import pytest

from sbp_jax.planner.optimize.reductions import best_answers, unbeaten


@pytest.mark.parametrize("sizes", [(), (3,), (3, 4)], ids=str)
def test_best_answers_are_the_best_for_each_choice_of_the_neighbours(sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    cost = random.random(5)
    edges = [random.random((n, 5)) for n in sizes]
    least, best = best_answers(cost, *edges)
    assert np.shape(least) == np.shape(best) == sizes
    for at in itertools.product(*map(range, sizes)):
        totals = [cost[k] + sum(m[a, k] for m, a in zip(edges, at, strict=True)) for k in range(5)]
        assert np.isclose(least[at], min(totals)) and best[at] == np.argmin(totals)


def test_of_choices_that_beat_each_other_one_stays() -> None:
    alike = ~np.eye(3, dtype=bool)
    assert unbeaten(np.array([1.0, 2.0, 1.0]), alike).tolist() == [False, False, True]
    only_by_the_second = np.zeros((3, 3), bool)
    only_by_the_second[2, 1] = True
    assert unbeaten(np.array([1.0, 1.0, 1.0]), only_by_the_second).tolist() == [True, True, False]
    assert unbeaten(np.zeros(2), np.zeros((2, 2), bool)).all()


def test_what_beat_a_choice_may_go_only_for_something_as_good() -> None:
    """Who beats whom is passed on: what beats the one that beats a choice, beats that."""
    random = np.random.default_rng(1)
    for _ in range(50):
        worth = random.integers(0, 4, 6)
        beaten_by = worth[:, None] >= worth[None, :]
        np.fill_diagonal(beaten_by, False)
        assert worth[unbeaten(random.random(6), beaten_by)].tolist() == [worth.min()]
