"""Elimination on few assignments, and regions: the optimum where it is within the slack, never a worse plan."""

import numpy as np
import pytest
from small_graphs import cheapest as by_trying
from small_graphs import problem

from sbp_jax.planner.budget import Budget
from sbp_jax.planner.costs.cost_graph import IMPOSSIBLE, CostGraph
from sbp_jax.planner.optimize import closing as closing_in
from sbp_jax.planner.optimize import elimination
from sbp_jax.planner.optimize.bounds import PresolvedMessages, consistent
from sbp_jax.planner.optimize.closing import Closing
from sbp_jax.planner.optimize.elimination import TooMany, cheapest, prune
from sbp_jax.planner.optimize.presolve import Presolved, presolve, without_presolve
from sbp_jax.planner.optimize.program import improve
from sbp_jax.planner.optimize.regions import around, improve_regions


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_if_it_is_within_the_slack(seed: int) -> None:
    p = problem(seed, dense=(seed % 4 + 1) / 4, forbid=0.1 * (seed % 3))
    r, best = without_presolve(p), by_trying(p)
    if best >= IMPOSSIBLE:
        return
    need = best - r.floor()
    found = cheapest(r, need, 10_000, Budget())
    assert found is not None
    assert p.evaluate(r.expand(found)) == pytest.approx(best)
    more = cheapest(r, 2 * need + 1, 10_000, Budget())
    assert more is not None and p.evaluate(r.expand(more)) == pytest.approx(best)
    if need > 0:
        assert cheapest(r, need - 0.5, 10_000, Budget()) is None


@pytest.mark.parametrize("seed", range(20))
def test_after_messages_and_strikes(seed: int) -> None:
    """The costs are others, choices are renumbered: plans are those of the problem all the same."""
    p = problem(seed, n=8, dense=0.5)
    r = presolve(p)
    if not r.nodes:
        return
    messages = PresolvedMessages(r)
    for _ in range(5):
        messages.sweep(forwards=True)
        messages.sweep(forwards=False)
    messages.move()
    best = by_trying(p)
    assert prune(r, best + 1e-9, Budget())
    found = cheapest(r, best - r.floor() + 1e-9, 10_000, Budget())
    assert found is not None
    assert p.evaluate(r.expand(found)) == pytest.approx(best)


def test_too_many_assignments() -> None:
    p = problem(1, n=7, dense=1.0)
    with pytest.raises(TooMany):
        cheapest(without_presolve(p), 1000.0, 20, Budget())
    with pytest.raises(TooMany):
        cheapest(without_presolve(p), 1000.0, 100_000, Budget(work=1.0))


def test_keys_of_more_values_than_a_number_has(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(5, n=7, dense=1.0)
    monkeypatch.setattr(elimination, "_MOST_KEYS", 20)
    r = without_presolve(p)
    found = cheapest(r, 1000.0, 100_000, Budget())
    assert found is not None and p.evaluate(r.expand(found)) == pytest.approx(by_trying(p))


def blocks(n: int, size: int) -> CostGraph:
    """Rings of nodes that cost less with 1 than with 0, but only all of a ring together."""
    nodes, edges = [], {}
    for b in range(n):
        nodes += [np.array([1.0, 0.0]) for _ in range(size)]
        for k in range(size):
            one, other = sorted((b * size + k, b * size + (k + 1) % size))
            edges[one, other] = np.array([[0.0, 3.0], [3.0, 0.0]])
        if b:
            edges[b * size - 1, b * size] = np.array([[0.0, 0.1], [0.1, 0.0]])
    return CostGraph(nodes, edges)


def moved(p: CostGraph) -> Presolved:
    r = without_presolve(p)
    messages = PresolvedMessages(r)
    for _ in range(10):
        messages.sweep(forwards=True)
        messages.sweep(forwards=False)
    messages.move()
    return r


def test_a_region_changes_as_a_whole() -> None:
    p = blocks(6, 8)
    r = moved(p)
    start = dict.fromkeys(r.nodes, 0)
    assert improve(r, dict(start)) == start  # one at a time nothing is gained
    better, whole = improve_regions(r, start, 12, 0.0, set(), Budget())
    assert whole
    assert p.evaluate(r.expand(better)) == 0.0
    few, done = improve_regions(r, start, 12, 0.0, set(), Budget(work=1.0))
    assert (few, done) == (start, False)


@pytest.mark.parametrize("seed", range(20))
def test_never_worse(seed: int) -> None:
    p = problem(seed, n=9, dense=0.4)
    r = moved(p)
    start = {n: 0 for n in r.nodes}
    better, whole = improve_regions(r, start, 4, 0.0, set(), Budget())
    assert whole
    assert by_trying(p) - 1e-9 <= p.evaluate(r.expand(better)) <= p.evaluate(r.expand(start))
    best, _ = improve_regions(r, start, len(r.nodes), 0.0, set(), Budget())
    assert p.evaluate(r.expand(best)) == pytest.approx(by_trying(p))


def test_a_region_is_connected_and_as_large_as_asked() -> None:
    r = without_presolve(blocks(6, 8))
    region = around(r, 20, 12)
    assert len(region) == 12 and 20 in region
    reached, waiting = {20}, [20]
    while waiting:
        new = (r.around[waiting.pop()] & region) - reached
        reached |= new
        waiting += new
    assert reached == region


@pytest.mark.parametrize("seed", range(30))
def test_closing_in_from_both_sides(seed: int) -> None:
    """Without the 0-1 program: rounds, regions, eliminations alone."""
    p = problem(seed, n=8, dense=(seed % 4 + 1) / 4)
    best, r = by_trying(p), without_presolve(p)
    closing = Closing(p.evaluate, improve, None, 0.0, Budget())
    assert consistent(r)
    closing.offer(r.expand({n: 0 for n in r.nodes}))
    floor = r.floor()
    closing.run(r, -1)
    assert closing.objective == pytest.approx(best)
    assert max(floor, 0.9 * best) <= closing.bound <= best + 1e-9


def test_it_ends_without_a_budget_and_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(*_: object) -> None:
        raise TooMany

    monkeypatch.setattr(closing_in, "cheapest", too_many)
    monkeypatch.setattr(closing_in, "_LARGE", 0)
    monkeypatch.setattr(closing_in, "_MOST_ROUNDS", 15)
    random = np.random.default_rng(0)
    edges = {(a, b): random.random((6, 6)) for a in range(14) for b in range(a + 1, 14)}
    p = CostGraph([np.zeros(6) for _ in range(14)], edges)
    r = without_presolve(p)
    closing = Closing(p.evaluate, improve, lambda *_: (None, -np.inf), 0.0, Budget())
    closing.offer(r.expand({n: 0 for n in r.nodes}))
    closing.run(r, -1)
    assert 0 < closing.bound < closing.objective


def test_the_same_whatever_the_order_of_edges() -> None:
    p = problem(11, n=9, dense=0.5)
    other = CostGraph(p.nodes, dict(reversed(p.edges.items())))
    plans = []
    for graph in (p, other):
        r = without_presolve(graph)
        found = cheapest(r, 500.0, 100_000, Budget())
        assert found is not None
        plans.append(r.expand(found))
    assert plans[0] == plans[1]
