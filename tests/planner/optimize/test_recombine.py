"""Plans put together from parts of others: which nodes become one, and that costs and numbers stay what they are."""

import itertools

import numpy as np
import pytest

from sbp_jax.planner.costs.cost_graph import CostGraph, Subset
from sbp_jax.planner.optimize.recombine import Pool, Seen, chosen, sparing, together


def graph(seed: int, n: int = 7) -> CostGraph:
    random = np.random.default_rng(seed)
    nodes = [random.random(int(random.integers(2, 5))) for _ in range(n)]
    edges = {(a, b): random.random((len(nodes[a]), len(nodes[b]))) for a in range(n) for b in range(a + 1, n)
             if random.random() < 0.4}  # fmt: skip
    return CostGraph(nodes, edges)


def plans_of(g: CostGraph, seed: int, count: int = 3) -> list[tuple[int, ...]]:
    random = np.random.default_rng(seed)
    return [tuple(int(random.integers(len(c))) for c in g.nodes) for _ in range(count)]


def all_of(choices: Subset, g: CostGraph) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(c)) for c in choices.of(g).nodes)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("which", ["chosen", "together"])
def test_costs_and_numbers_are_those_of_the_whole(seed: int, which: str) -> None:
    g = graph(seed)
    plans = plans_of(g, seed)
    choices = chosen(plans) if which == "chosen" else together(plans, g)
    part = choices.of(g)
    for own in all_of(choices, g):
        wide = choices.widen(own)
        assert part.evaluate(own) == pytest.approx(g.evaluate(wide))
        assert choices.number(wide) == own
    for plan in plans:
        own = choices.number(plan)
        assert own is not None and choices.widen(own) == plan


def test_neighbours_that_tell_the_same_plans_apart_are_one() -> None:
    zeros = np.zeros((3, 3))
    g = CostGraph([np.zeros(3) for _ in range(6)], {(0, 1): zeros, (1, 2): zeros, (3, 4): zeros, (4, 5): zeros})
    # 0 and 1 tell the first plan from the others, 2 the last; 3 and 5 do the same and are no neighbours; 4 is fixed.
    choices = together([(0, 2, 1, 0, 1, 0), (1, 0, 1, 2, 1, 1), (1, 0, 2, 2, 1, 1)], g)
    assert choices.followers == {1}
    assert [len(c) for c in choices.of(g).nodes] == [2, 1, 2, 2, 1, 2]
    assert choices.number((0, 2, 2, 2, 1, 0)) is not None, "parts of several plans"
    assert choices.number((0, 0, 1, 0, 1, 0)) is None, "half of a part"


def test_the_nearest_plans_come_first() -> None:
    pool = Pool()
    memory = {(0,): [4.0, 1.0], (1,): [1.0, 1.0], (2,): [0.0, 0.0]}
    for choice, seconds in {(0,): 1.0, (1,): 2.0, (2,): 9.0}.items():
        pool.add(Seen(choice, seconds, np.array(memory[choice])))
    assert pool.nearest(3.0, {}, limit=2.0) == [(0,), (1,)]
    assert pool.nearest(3.0, {0: 1.0}, limit=2.0) == [(1,), (0,)], "1 + 2 bytes too many against 2 - 1 to spare"
    assert (2,) in pool and (3,) not in pool


def test_choices_that_cost_little_and_those_of_a_plan() -> None:
    spare = [np.array([0.0, 1.0, 5.0]), np.array([3.0, 0.0])]
    assert [k.tolist() for k in sparing(spare, 1.0).kept] == [[0, 1], [1]]
    assert [k.tolist() for k in sparing(spare, 1.0, known=[2, 0]).kept] == [[0, 1, 2], [0, 1]]
