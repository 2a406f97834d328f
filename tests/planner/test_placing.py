"""Placing whole ops on unlike devices: the simulator, every method compared with the proven best, runs that give fn's
numbers."""

import functools
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.planner.catalogue import lookup
from sbp_jax.planner.placing import (
    OpGraph,
    Placing,
    PlacingTask,
    Policy,
    Simulator,
    Tensor,
    dnn_partitioning,
    ftpipe,
    gdp,
    pesto,
    placeto,
    regal,
    sample_graph,
)
from sbp_jax.planner.placing.coarsen import coarsened
from sbp_jax.planner.placing.partition import greedy
from sbp_jax.planner.placing.policy import judged_devices
from sbp_jax.planner.placing.task import finished

# Of graphs alone; what cuts the ops of programs is in ``test_ratios.py``.
METHODS = [name for name in sbp.planner.solvers().of("placing") if name != "accpar_ratios"]
DEVICES = sbp.Devices.of("a100-80", "v100", "host")
LEARNED = {"colocrl", "hdp", "gdp", "placeto", "spotlight", "tapp", "heterps", "regal"}
# Small budgets: what is tested is that answers are placements and repeat themselves.
SHORT: dict[str, dict[str, Any]] = {name: {"steps": 3, "samples": 4} for name in LEARNED}
SHORT["regal"] |= {"generations": 10}


def found(name: str, graph: OpGraph, devices: sbp.Devices = DEVICES, **options: Any) -> Placing:
    method = lookup(name, "placing")
    return method.run(PlacingTask(graph, devices, method.checked(options)))


def orders(graph: OpGraph) -> list[tuple[int, ...]]:
    """All orders in which the ops can run."""
    every: list[tuple[int, ...]] = []

    def grow(taken: tuple[int, ...]) -> None:
        if len(taken) == len(graph):
            every.append(taken)
        for v in range(len(graph)):
            if v not in taken and all(u in taken for u in graph.before[v]):
                grow((*taken, v))

    grow(())
    return every


def least_of_all(graph: OpGraph, devices: sbp.Devices) -> float:
    """The shortest run over all placements and orders, all placements of an order at once."""
    n = len(devices)
    device = np.array(list(itertools.product(range(n), repeat=len(graph))))
    rows = np.arange(len(device))
    costs = [devices.transfer_seconds(t.size_bytes) for t in graph.tensors]
    best = np.inf
    for order in orders(graph):
        free, link = np.zeros((len(device), n)), np.zeros((len(device), n, n))
        finish = np.zeros((len(device), len(graph)))
        there = np.full((len(graph.tensors), len(device), n), np.nan)
        for v in order:
            d = device[:, v]
            start = free[rows, d]
            for k in graph.reads[v]:
                u = graph.tensors[k].maker
                e = device[:, u]
                sends = (e != d) & np.isnan(there[k, rows, d])
                arrive = np.maximum(link[rows, e, d], finish[:, u]) + costs[k][e, d]
                link[rows, e, d] = np.where(sends, arrive, link[rows, e, d])
                there[k, rows, d] = np.where(e == d, finish[:, u], np.where(sends, arrive, there[k, rows, d]))
                start = np.maximum(start, there[k, rows, d])
            finish[:, v] = free[rows, d] = start + graph.seconds[v][d]
        best = min(best, float(finish.max(axis=1).min()))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_search_finds_the_least_of_all(seed: int) -> None:
    graph = sample_graph(seed, 3 + seed % 4, DEVICES, apart=(0.05, 0.5, 2.0)[seed % 3])
    answer = found("pesto", graph)
    assert answer.seconds == pytest.approx(least_of_all(graph, DEVICES), rel=1e-9)
    assert answer.bound_seconds == answer.seconds


def test_a_branch_is_given_up_only_for_one_that_is_nowhere_later() -> None:
    """Of branches with the same ops done the one that is later now may end first, where an operand is there earlier."""
    graph = sample_graph(7, 7, DEVICES, apart=1.0)
    assert found("pesto", graph).seconds == pytest.approx(least_of_all(graph, DEVICES), rel=1e-9)


def test_the_exact_search_counts_a_result_that_is_read_once() -> None:
    """x makes 4 bytes, a result; y reads them and makes 2: 6 in all while y runs."""
    graph = OpGraph(("x", "y"), np.ones((2, 1)), (Tensor(0, 4, (1,), True), Tensor(1, 2, (), True)), np.zeros(2))
    for memory, fits in ((6, True), (5.9, False)):
        search = pesto._Search(Simulator(graph, replace(unit_devices(1), memory_bytes=(memory,))), 10)
        search.placed[0], search.taken = 0, [0]
        assert search.has_room(1, 0) == fits


def test_the_exact_search_finds_the_least_of_all_for_eight_ops() -> None:
    seeds = [s for s in range(60) if len(orders(sample_graph(s, 8, DEVICES))) < 60][:2]
    assert seeds
    for seed in seeds:
        graph = sample_graph(seed, 8, DEVICES)
        assert found("pesto", graph).seconds == pytest.approx(least_of_all(graph, DEVICES), rel=1e-9), seed


@pytest.mark.parametrize(("part", "odd"), [(0.9, 53), (0.7, 6), (0.5, 146), (0.3, 10)])
def test_the_exact_search_finds_the_least_of_all_that_fit(part: float, odd: int) -> None:
    """``odd``: where the branch that is nowhere later holds too much later on."""
    for seed in (0, 1, 2, odd):
        graph = sample_graph(seed, 5, DEVICES, apart=0.5)
        if seed == 1:  # what is read is a result, too: held to the end, and once
            graph = replace(graph, tensors=tuple(replace(t, is_result=t.maker >= 0) for t in graph.tensors))
        if seed == 2:  # ops that take no time, and hold more while they do not
            seconds = graph.seconds * (np.arange(5) % 2)[:, None]
            graph = replace(graph, seconds=seconds, scratch_bytes=np.arange(5) * graph.own_bytes.mean())
        needed = Simulator(graph, DEVICES).timeline([0] * 5).peak_bytes[0]
        devices = sbp.Devices.of("a100-80", "v100", "host", memory_bytes=[part * needed, needed * 0.6, needed * 0.6])
        s, least = Simulator(graph, devices), np.inf
        for device in itertools.product(range(3), repeat=5):
            for order in orders(graph):
                t = s.timeline(device, order)
                if t.seconds < least and (t.peak_bytes <= s.limits).all():
                    least = t.seconds
        if least < np.inf:
            assert found("pesto", graph, devices).seconds == pytest.approx(least, rel=1e-9)
        else:
            with pytest.raises(sbp.PlanError, match="there is no placement of these ops that fits"):
                found("pesto", graph, devices)


@functools.cache
def small_graphs() -> list[tuple[OpGraph, float]]:
    graphs = [sample_graph(seed, 8, DEVICES, apart=0.4) for seed in (3, 4)]
    return [(g, found("pesto", g).seconds) for g in graphs]


@pytest.mark.parametrize("name", METHODS)
def test_answers_are_placements_that_repeat_themselves(name: str) -> None:
    options = SHORT.get(name, {})
    for graph, best in small_graphs():
        first = found(name, graph, **options)
        t = Simulator(graph, DEVICES).timeline(first.device, first.order)
        longest = [0.0] * len(graph)  # a chain of ops, each where it is fastest, and nothing sent
        for v, before in enumerate(graph.before):
            longest[v] = max((longest[u] for u in before), default=0.0) + float(graph.seconds[v].min())
        assert first.seconds >= max(longest) * (1 - 1e-9)
        worst = max(Simulator(graph, DEVICES).seconds([d] * len(graph)) for d in range(3))
        assert first.seconds <= worst * (1 + 1e-9) or name in ("random", "neo_tables")
        assert t.seconds == pytest.approx(first.seconds, rel=1e-12) and t.seconds >= best * (1 - 1e-9)
        assert first.bound_seconds <= best * (1 + 1e-9)
        assert found(name, graph, **options) == first


def unit_devices(n: int, **links: Any) -> sbp.Devices:
    """Devices with memory for everything, and links of a byte a second if not said otherwise."""
    ones: Any = [1.0] * n
    return sbp.Devices.by_speed(
        [f"d{k}" for k in range(n)], flops_per_second=ones, memory_bytes_per_second=ones, memory_bytes=[1e9] * n,
        **{"bytes_per_second": 1.0, "latency_seconds": 0.0, **links},
    )  # fmt: skip


def test_heft_goes_by_the_papers_ranks() -> None:
    """The example of Topcuoglu, Hariri and Wu, figure 2 and tables 1 to 3: the order of its upward ranks."""
    seconds = [[14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10], [13, 16, 9], [7, 15, 11],
               [5, 11, 14], [18, 12, 20], [21, 7, 16]]  # fmt: skip
    sent = {(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27,
            (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13}  # fmt: skip
    tensors = tuple(Tensor(a - 1, n, (b - 1,)) for (a, b), n in sent.items())
    graph = OpGraph(tuple(map(str, range(1, 11))), np.array(seconds, float), tensors, np.zeros(10))
    order = [v + 1 for v in Simulator(graph, unit_devices(3)).mean_order]
    assert order[:1] + sorted(order[1:3]) + order[3:] == [1, 3, 4, 2, 5, 6, 9, 7, 8, 10], "3 and 4 have rank 80 both"


def test_heft_waits_for_links_and_fills_gaps() -> None:
    def placed(seconds: list[list[float]], tensors: tuple[Tensor, ...]) -> Placing:
        names = tuple(map(str, range(len(seconds))))
        return found("heft", OpGraph(names, np.array(seconds), tensors, np.zeros(len(seconds))), unit_devices(2))

    # Both readers would be done on the second device first, were its link not busy with the other's operand until 5.
    answer = placed([[1, np.inf], [10, 1], [8, 1]], (Tensor(0, 4, (1,)), Tensor(0, 4, (2,))))
    assert answer.device == (0, 1, 0) and answer.seconds == 9
    # The last op is done before the second begins, on the same device.
    answer = placed([[1, np.inf], [np.inf, 5], [6, 2]], (Tensor(0, 4, (1,)),))
    assert answer.device == (0, 1, 1) and answer.order == (0, 2, 1) and answer.seconds == 10


def test_heft_leaves_what_does_not_fit_to_other_devices() -> None:
    graph = OpGraph(("x", "y"), np.array([[1.0, 9.0], [1.0, 9.0]]), (Tensor(-1, 6, (0,)), Tensor(-1, 6, (1,))),
                    np.zeros(2))  # fmt: skip
    assert found("heft", graph, replace(unit_devices(2), memory_bytes=(12, 12))).device == (0, 0)
    short = found("heft", graph, replace(unit_devices(2), memory_bytes=(11, 11)))
    assert short.device == (0, 1) and not short.notes, "found so, not moved later"


def test_blocks_are_shared_out_longest_first_and_then_moved_to_their_neighbours() -> None:
    alike = unit_devices(3)
    amounts = [7.0, 6, 5, 5, 4, 3, 3, 2, 1]
    graph = OpGraph(tuple(map(str, range(9))), np.repeat(np.array(amounts)[:, None], 3, axis=1), (), np.zeros(9))
    s = Simulator(graph, alike)
    assert ftpipe._longest_first(graph, s) == greedy(amounts, 3)

    # A pair that exchanges bytes comes together where no device gets busier than the busiest was.
    def refined(device: list[int], of_a: float, of_b: float) -> list[int]:
        tensors = Tensor(0, of_a, (2,)), Tensor(1, of_b, (2,))
        graph = OpGraph(tuple("abc"), np.repeat([[4.0], [2.0], [1.0]], 2, axis=1), tensors, np.zeros(3))
        return ftpipe._refined(graph, device, Simulator(graph, unit_devices(2)))

    assert refined([0, 1, 1], 5, 3) == [0, 1, 1], "with a, device 0 would be busier than the busiest was"
    assert refined([0, 1, 0], 3, 5) == [0, 1, 1]


def test_tables_go_to_the_device_that_is_quickest_with_them_and_readers_follow() -> None:
    seconds = np.array([[9.0, 4.5], [8.0, 4.0], [1.0, 0.5], [1.0, 0.5], [3.0, 3.0]])
    arguments = tuple(Tensor(-1, 100 if k < 2 else 1, (k,)) for k in range(4))
    for larger in (0, 1):
        read = Tensor(larger, 9, (4,)), Tensor(1 - larger, 1, (4,))
        answer = found("neo_tables", OpGraph(tuple("abcde"), seconds, arguments + read, np.zeros(5)), unit_devices(2))
        a, b, *small, reader = answer.device
        assert (a, b) == (1, 0), "a table each; the one with more work where it is quickest"
        assert small == [1, 1], "of a byte: no tables; they are finished there first"
        assert reader == (a, b)[larger], "where the larger of what it reads is"


def test_contiguous_splits_have_the_least_load_of_all() -> None:
    """Every way to give each device, in any turn, an interval of ideals; devices alike are not told apart."""
    for kinds in (("v100", "v100", "host"), ("a100-80", "v100", "host")):
        devices = sbp.Devices.of(*kinds)
        for seed in range(3):
            graph = sample_graph(seed, 6, devices, apart=0.2)
            if kinds[0] == kinds[1]:
                graph = replace(graph, seconds=graph.seconds[:, [0, 0, 2]])
            s = Simulator(graph, devices)
            splits = dnn_partitioning._Splits(s, dnn_partitioning._ideals(s, 1000))
            ideals = splits.ideals
            for largest in (True, False):
                least = np.inf
                for a, b in itertools.combinations_with_replacement(range(len(ideals)), 2):
                    chain = [0, a, b, len(ideals) - 1]
                    if any((ideals[x] & ~ideals[y]).any() for x, y in itertools.pairwise(chain)):
                        continue
                    loads = [splits.loads(y, np.array([x]))[:, 0] if x != y else np.zeros(3)
                             for x, y in itertools.pairwise(chain)]  # fmt: skip
                    for turn in itertools.permutations(range(3)):
                        each = [load[d] for load, d in zip(loads, turn, strict=True)]
                        least = min(least, max(each) if largest else sum(each))
                device = np.array(splits.best(largest))
                found = []
                for d in range(3):
                    own = device == d
                    enters = [t.maker >= 0 and not own[t.maker] and any(own[list(t.readers)]) for t in graph.tensors]
                    leaves = [t.maker >= 0 and own[t.maker] and not all(own[list(t.readers)]) for t in graph.tensors]
                    crosses = np.array([a or b for a, b in zip(enters, leaves, strict=True)])
                    inner = np.array([t.maker >= 0 for t in graph.tensors])
                    found.append(graph.seconds[own, d].sum() + splits.tensor_seconds[d, crosses[inner]].sum())
                assert (max(found) if largest else sum(found)) == pytest.approx(least, rel=1e-9)


def test_chance_and_one_device_are_what_they_say() -> None:
    graph = sample_graph(0, 12, DEVICES)
    draws = [found("random", graph, seed=k) for k in range(4)]
    assert len({x.device for x in draws}) == 4
    assert found("random", graph, tries=64).seconds < min(x.seconds for x in draws)
    alone = [Simulator(graph, DEVICES).seconds([d] * 12) for d in range(3)]
    assert min(alone) < 0.9 * max(alone) and found("one_device", graph).seconds <= min(alone)


def test_ops_move_where_memory_is_exceeded_and_only_then() -> None:
    """All three ops are quickest on one device, which has room for two."""
    tensors = tuple(Tensor(-1, 4, (k,)) for k in range(3))
    graph = OpGraph(tuple("abc"), np.array([[1.0, 9.0], [1.0, 5.0], [1.0, 7.0]]), tensors, np.zeros(3))
    short = PlacingTask(graph, replace(unit_devices(2), memory_bytes=(8, 4)))
    answer = finished(short, [0, 0, 0])
    assert answer.device == (0, 1, 0) and answer.notes == ("1 ops moved to fit in memory",)
    assert finished(PlacingTask(graph, unit_devices(2)), [0, 0, 0]).device == (0, 0, 0)
    # What does not fit scores worse than all that fits, and the worse the more it exceeds.
    s = short.simulator
    assert s.score([1, 1, 1]) > s.score([0, 0, 0]) > s.score([0, 1, 0]) == 5


def test_many_devices_alike_are_quick_and_many_unlike_are_refused() -> None:
    alike = sbp.Devices.of(*["v100"] * 24)
    graph = sample_graph(0, 8, sbp.Devices.of("v100", "v100"))
    same = OpGraph(graph.names, np.repeat(graph.seconds[:, :1], 24, axis=1), graph.tensors, graph.scratch_bytes)
    assert len(found("dnn_partitioning", same, alike).device) == 8
    unlike = sbp.Devices.by_speed(
        [f"d{k}" for k in range(12)], flops_per_second=[1e12 * (k + 1) for k in range(12)],
        memory_bytes_per_second=[1e11] * 12, memory_bytes=[1e10] * 12,
    )  # fmt: skip
    with pytest.raises(sbp.PlanError, match=r"up to 10 unlike ones.*12 of 12 kinds"):
        found("dnn_partitioning", sample_graph(0, 8, unlike), unlike)


@pytest.mark.parametrize("name", METHODS)
def test_graphs_without_ops_are_placed(name: str) -> None:
    placed = sbp.place_ops(lambda x: x, jnp.ones(3), devices=DEVICES, solver=name, solver_options=SHORT.get(name))
    assert placed.seconds == 0 and placed.run(jnp.ones(3)).tolist() == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gdp", "placeto"])
def test_a_trained_policy_places_graphs_that_it_has_not_seen(name: str) -> None:
    """It is better than the best device, and than as many draws by chance; its first choice alone than chance.

    Whether the first choice alone is better than the best device, too, hangs on rounding in training: with JAX 0.10.2
    GDP's is, with 0.12 it is not.
    """
    train = {"gdp": gdp.train, "placeto": placeto.train}[name]
    policy = train([sample_graph(k, 14, DEVICES) for k in range(8)], DEVICES, steps=800)
    unseen = [sample_graph(1000 + k, 14, DEVICES) for k in range(10)]
    first = [policy.place(g, samples=1).seconds for g in unseen]
    one = [found("one_device", g).seconds for g in unseen]
    chance = [np.mean([found("random", g, seed=k).seconds for k in range(5)]) for g in unseen]
    assert sum(first) < 0.5 * sum(chance)
    several = [policy.place(g) for g in unseen]
    assert sum(x.seconds for x in several) < 0.97 * sum(one)
    assert sum(a.seconds < b * (1 - 1e-9) for a, b in zip(several, one, strict=True)) >= 5
    assert sum(x.seconds for x in several) < 0.8 * sum(found("random", g, tries=16).seconds for g in unseen)
    assert all(x.seconds <= a * (1 + 1e-9) for x, a in zip(several, first, strict=True))
    assert several[0] == policy.place(unseen[0])
    w, x = inputs()
    placed = sbp.place_ops(model, w, x, devices=DEVICES, solver=policy, ops=12)
    assert placed.solver == name and placed.bound == 0
    with pytest.raises(sbp.PlanError, match="trained for 3 devices, and there are 2"):
        sbp.place_ops(model, w, x, devices=sbp.Devices.of("v100", "host"), solver=policy)
    with pytest.raises(sbp.PlanError, match="takes none"):
        sbp.place_ops(model, w, x, devices=DEVICES, solver=policy, solver_options={"steps": 3})
    untrained = train([sample_graph(0, 14, DEVICES)], DEVICES, steps=1)
    assert sum(first) < sum(untrained.place(g, samples=1).seconds for g in unseen)


@pytest.mark.slow
def test_learned_priors_of_the_genetic_search_serve_graphs_not_seen() -> None:
    """With few generations, priors that were trained on other graphs find more than uniform ones."""
    graphs = [sample_graph(k, 12, DEVICES) for k in range(6)]
    policy = regal.train(graphs, DEVICES, steps=60, samples=6, generations=5, population=12)
    unseen = [sample_graph(1000 + k, 12, DEVICES) for k in range(8)]
    with_priors = [policy.place(g, samples=1).seconds for g in unseen]
    alone = [found("regal", g, priors="uniform", generations=5, population=12).seconds for g in unseen]
    assert sum(with_priors) < sum(alone)


def test_policies_refuse_what_they_cannot_be_trained_on() -> None:
    graph = sample_graph(0, 6, DEVICES)
    for train in (gdp.train, placeto.train, regal.train):
        with pytest.raises(sbp.PlanError, match="at least 1 step of at least 2 samples; got 1 graphs, steps=0"):
            train([graph], DEVICES, steps=0)
        with pytest.raises(sbp.PlanError, match="got 0 graphs"):
            train([], DEVICES)
    policy = Policy("gdp", None, None, DEVICES, judged_devices)
    with pytest.raises(sbp.PlanError, match="samples=0"):
        policy.place(graph, samples=0)
    with pytest.raises(sbp.PlanError, match="are for 2 devices, and there are 3"):
        policy.place(sample_graph(0, 6, sbp.Devices.of("v100", "v100")))


def answers_under(seed: str, options: dict[str, dict[str, Any]]) -> str:
    """What methods answer in a process of another hash seed."""
    code = (
        "import sbp_jax as sbp; from sbp_jax.planner.catalogue import lookup\n"
        "from sbp_jax.planner.placing import PlacingTask, sample_graph\n"
        "D = sbp.Devices.of('a100-80', 'v100', 'host'); g = sample_graph(7, 10, D)\n"
        f"for n, o in {options!r}.items():\n"
        "    m = lookup(n, 'placing'); x = m.run(PlacingTask(g, D, m.checked(o))); print(n, x.device, x.order)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_learned_answers_are_the_same_whatever_the_hash_seed() -> None:
    options = {n: SHORT[n] for n in sorted(LEARNED)}
    first = answers_under("1", options)
    assert first == answers_under("2", options) and len(first.splitlines()) == len(LEARNED)


def test_a_run_by_hand() -> None:
    """Two ops that read a third's result on another device: sent once; a second tensor waits for the link."""
    devices = sbp.Devices.by_speed(
        ["a", "b"], flops_per_second=[1, 1], memory_bytes_per_second=[1, 1], memory_bytes=[100, 100],
        bytes_per_second=2.0, latency_seconds=1.0,
    )  # fmt: skip
    tensors = (Tensor(0, 4, (1, 2)), Tensor(0, 2, (2,)), Tensor(-1, 7, (0, 1)), Tensor(1, 1, (), True))
    graph = OpGraph(("x", "y", "z"), np.array([[1.0, 5.0], [2.0, 2.0], [1.0, 1.0]]), tensors, np.zeros(3))
    s = Simulator(graph, devices)
    t = s.timeline([0, 1, 1], [0, 1, 2])
    # x until 1; 4 bytes from 1 to 4; 2 bytes from 4 to 6; y from 4 to 6; z from 6 to 7.
    assert t.start_seconds.tolist() == [0, 4, 6] and t.seconds == 7 == s.seconds([0, 1, 1], [0, 1, 2])
    assert [(x.start_seconds, x.finish_seconds) for x in t.transfers] == [(1, 4), (4, 6)]
    # a: the argument, and both tensors until they are sent. b: the argument, 4 + 2 received, y's result.
    assert t.peak_bytes.tolist() == [13, 14]
    assert graph.edges == [(0, 1, 4.0), (0, 2, 6.0)]
    assert s.timeline([0, 0, 0]).seconds == 4 and s.timeline([0, 0, 0]).peak_bytes.tolist() == [14, 0]
    # An op after x on its device, which makes 5: what is being sent is held until then, 4 until 4, 2 until 6.
    later = replace(graph, names=("x", "y", "z", "w"), seconds=np.vstack([graph.seconds, [[0.5, 0.5]]]),
                    tensors=(*graph.tensors, Tensor(3, 5, ())), scratch_bytes=np.zeros(4))  # fmt: skip
    assert Simulator(later, devices).timeline([0, 1, 1, 0], [0, 1, 2, 3]).peak_bytes.tolist() == [18, 14]
    # A link has the speed of its direction.
    pair = unit_devices(2, bytes_per_second=[[1, 4], [1, 1]], latency_seconds=[[0, 2], [0, 0]])
    s = Simulator(graph, pair)
    assert [x.finish_seconds for x in s.timeline([0, 1, 1]).transfers] == [4, 6.5]
    assert [x.finish_seconds for x in s.timeline([1, 0, 0]).transfers] == [9, 11]
    with pytest.raises(sbp.PlanError, match="comes before what it reads"):
        s.timeline([0, 0, 0], [1, 0, 2])
    with pytest.raises(sbp.PlanError, match="leaves out 1"):
        s.timeline([0, 0, 0], [0, 1])
    with pytest.raises(sbp.PlanError, match="a device of 0 to 1 for each"):
        s.timeline([0, 0, 2])


def test_ops_that_take_no_time_hold_what_they_need_and_let_go_of_it() -> None:
    """x makes 4 bytes; y reads them, makes 2 and takes no time, with 16 of scratch; z reads the 2 and makes 1."""
    devices = sbp.Devices.of("v100", "host", bytes_per_second=1.0, latency_seconds=0.0)
    tensors = Tensor(0, 4, (1,)), Tensor(1, 2, (2,)), Tensor(2, 1, (3,)), Tensor(3, 32, ())
    seconds = np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    s = Simulator(OpGraph(("x", "y", "z", "end"), seconds, tensors, np.array([0.0, 16, 0, 0])), devices)
    assert s.timeline([0, 0, 0, 0]).peak_bytes.tolist() == [33, 0]  # z's and end's, not y's scratch any more
    assert s.timeline([0, 0, 0, 1]).peak_bytes.tolist() == [22, 33]  # y: 4 + 2 + 16
    assert s.timeline([1, 0, 0, 1]).peak_bytes.tolist() == [22, 33]  # so where they were sent


def test_merged_ops_hold_what_passes_between_them() -> None:
    """No less than the ops one by one, in the merged order; ops that are fused hold nothing for each other."""
    for seed in range(10):
        graph = sample_graph(seed, 30, DEVICES)
        graph = replace(graph, scratch_bytes=np.random.default_rng(seed).random(30) * graph.own_bytes.max())
        small = coarsened(graph, 6)
        whole = Simulator(small, DEVICES).timeline([0] * len(small))
        apart = [k for v in whole.order for k in small.members[v]]
        alone = Simulator(graph, DEVICES).timeline([0] * 30, apart).peak_bytes[0]
        assert alone <= whole.peak_bytes[0] * (1 + 1e-9)
        assert whole.peak_bytes[0] <= alone + graph.own_bytes.sum() - graph.argument_bytes([0] * 30)[0]
    # No device can run both: not merged, however few are wanted.
    apart = OpGraph(("a", "b"), np.array([[1, np.inf, np.inf], [np.inf, 1, 1]]), (Tensor(0, 1, (1,)),), np.zeros(2))
    assert len(coarsened(apart, 1)) == 2
    chain = OpGraph(tuple("abc"), np.ones((3, 3)), (Tensor(0, 4, (1, 2)), Tensor(1, 2, (2,)), Tensor(2, 1, (), True)),
                    np.array([0.0, 8, 0]))  # fmt: skip
    assert coarsened(chain, 1).scratch_bytes.tolist() == [14], "4 + 2 + 8 while b runs"
    longer = replace(chain, tensors=(Tensor(0, 4, (1,)), Tensor(1, 2, (2,)), Tensor(2, 1, (), True)))
    assert coarsened(replace(longer, scratch_bytes=np.array([0.0, 0, 8])), 1).scratch_bytes.tolist() == [10], "2 + 8"
    assert coarsened(chain, 1, together=[0]).scratch_bytes.tolist() == [10], "the 4 are in no memory"


def odd_graphs() -> dict[str, tuple[OpGraph, sbp.Devices]]:
    graph = sample_graph(3, 5, DEVICES, apart=0.4)
    not_everywhere, idle = graph.seconds.copy(), graph.seconds.copy()
    not_everywhere[:, 1], not_everywhere[0, 0], not_everywhere[3, 2] = np.inf, np.inf, np.inf
    idle[::2] = 0.0
    speeds: dict[str, Any] = {"flops_per_second": [1e12] * 2, "memory_bytes_per_second": [1e11] * 2}
    alike, one = sbp.Devices.of("v100", "v100", "v100"), sbp.Devices.of("v100")
    # The diagonal of links is not read.
    linked = sbp.Devices.by_speed(
        ["a", "b"], **speeds, memory_bytes=[1e10] * 2, bytes_per_second=[[0, 1e9], [2e9, 0]],
        latency_seconds=[[np.nan, 1e-5], [0, np.nan]],
    )  # fmt: skip
    return {
        "one device": (sample_graph(3, 5, one), one),
        "devices alike": (replace(sample_graph(3, 5, alike), seconds=np.repeat(graph.seconds[:, :1], 3, 1)), alike),
        "links by pair": (sample_graph(3, 5, linked, apart=0.4), linked),
        "not everywhere": (replace(graph, seconds=not_everywhere), DEVICES),
        "some take no time": (replace(graph, seconds=idle), DEVICES),
        "none takes time": (replace(graph, seconds=0 * graph.seconds), DEVICES),
        "no bytes": (replace(graph, tensors=tuple(replace(t, size_bytes=0.0) for t in graph.tensors)), DEVICES),
        "nothing read": (replace(graph, tensors=()), DEVICES),
        "one op": (sample_graph(3, 1, DEVICES), DEVICES),
    }


def check_odd_graphs(names: list[str]) -> None:
    for words, (graph, devices) in odd_graphs().items():
        best = least_of_all(graph, devices)
        for name in names:
            answer = found(name, graph, devices, **SHORT.get(name, {}))
            t = Simulator(graph, devices).timeline(answer.device, answer.order)
            assert best * (1 - 1e-9) <= answer.seconds == pytest.approx(t.seconds), (words, name)
            assert answer.seconds < np.inf and answer.bound_seconds <= best * (1 + 1e-9), (words, name)
            if name == "pesto":
                assert answer.seconds == pytest.approx(best) == answer.bound_seconds, words
            if words == "one device":
                assert answer.seconds == pytest.approx(float(graph.seconds.sum())), name


def test_odd_graphs_are_placed() -> None:
    check_odd_graphs([n for n in METHODS if n not in LEARNED])


@pytest.mark.slow
def test_odd_graphs_are_placed_by_policies() -> None:
    check_odd_graphs(sorted(LEARNED))


def test_merged_graphs_have_no_circles_and_lose_nothing() -> None:
    for seed in range(10):
        graph = sample_graph(seed, 30, DEVICES)
        small = coarsened(graph, 8)
        assert len(small) <= 8 and sorted(k for m in small.members for k in m) == list(range(30))
        assert small.seconds.sum(axis=0) == pytest.approx(graph.seconds.sum(axis=0))
        assert small.argument_bytes([0] * len(small))[0] == pytest.approx(graph.argument_bytes([0] * 30)[0])
        where = np.random.default_rng(seed).integers(3, size=len(small))
        wide = np.zeros(30, int)
        for v, m in enumerate(small.members):
            wide[list(m)] = where[v]
        crossing = [n for a, b, n in small.edges if where[a] != where[b]]
        assert sum(n for a, b, n in graph.edges if wide[a] != wide[b]) >= sum(crossing) * (1 - 1e-9)


def model(w: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    h = jnp.tanh(x @ w["a"])
    k = jax.nn.softmax(x @ w["b"])
    total, parts = jax.lax.scan(lambda c, y: (c * 0.5 + y.sum(), c), jnp.zeros(()), h)
    z = jax.lax.cond(total > 0, lambda a: a * 2, lambda a: a - 1, k)
    table = jnp.asarray(np.linspace(0, 1, 64, dtype=np.float32))
    y = h @ w["c"] + z @ w["c"] * table * jnp.arange(64.0)
    return y, {"parts": parts, "given": w["a"], "ones": jnp.ones(3)}


def inputs() -> tuple[dict[str, jax.Array], jax.Array]:
    key = jax.random.split(jax.random.key(0), 4)
    w = {name: jax.random.normal(k, shape) for name, k, shape in
         zip("abc", key, [(64, 512), (64, 512), (512, 64)], strict=False)}  # fmt: skip
    return w, jax.random.normal(key[3], (256, 64))


@pytest.mark.parametrize("name", [n for n in METHODS if n not in LEARNED])
def test_a_placed_function_gives_its_numbers(name: str) -> None:
    w, x = inputs()
    placed = sbp.place_ops(model, w, x, devices=DEVICES, solver=name, ops=12, solver_options=SHORT.get(name))
    for ours, plain in zip(jax.tree.leaves(placed.run(w, x)), jax.tree.leaves(model(w, x)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=1e-5)
    assert set(placed.device_of.values()) <= set(DEVICES.names) and len(placed.device_of) == len(placed.graph) <= 12
    assert f"12 ops on 3 devices by {name!r}" in str(placed) and placed.to_svg().startswith("<svg")


def test_ops_run_on_the_devices_named() -> None:
    w, x = inputs()
    here = jax.devices()[4:7]
    devices = sbp.Devices.of("a100-80", "v100", "host", jax_devices=here)
    placed = sbp.place_ops(model, w, x, devices=devices, solver="random", ops=12)
    result, _ = placed.run(w, x)
    last = next(t.maker for t in placed.graph.tensors if t.is_result and t.size_bytes == 256 * 64 * 4)
    assert result.device == here[placed.timeline.device[last]]
    again, _ = placed.run(w, 2 * x)
    np.testing.assert_allclose(again, model(w, 2 * x)[0], rtol=2e-5, atol=1e-5)


def test_gradients_are_placed_too() -> None:
    w, x = inputs()

    def step(w: Any, x: jax.Array) -> Any:
        return jax.value_and_grad(lambda w: jnp.mean(model(w, x)[0] ** 2))(w)

    placed = sbp.place_ops(step, w, x, devices=DEVICES)
    for ours, plain in zip(jax.tree.leaves(placed.run(w, x)), jax.tree.leaves(step(w, x)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


def test_seconds_of_ops_are_the_cost_models() -> None:
    a, b = jnp.zeros((1024, 512)), jnp.zeros((512, 2048))
    placed = sbp.place_ops(jnp.matmul, a, b, devices=DEVICES)
    expected = [kind.matmul_seconds(1024, 2048, 512, "float32", 4) for kind in DEVICES.kinds]
    assert placed.graph.seconds[0] == pytest.approx(expected)
    assert placed.seconds == pytest.approx(min(expected))
    # A loop takes as long as its iterations, a conditional as long as its longest branch.
    square = jnp.zeros((512, 512))

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 10, lambda _, y: y @ x, x)

    def either(x: jax.Array) -> jax.Array:
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x @ x @ x, x)

    once = DEVICES.kinds[0].matmul_seconds(512, 512, 512, "float32", 4)
    for fn, times in ((loop, 10), (either, 2)):
        graph = sbp.place_ops(fn, square, devices=DEVICES).graph
        assert graph.seconds[:, 0].sum() == pytest.approx(times * once, rel=0.2), fn


@pytest.mark.parametrize("name", METHODS)
def test_memory_limits_are_kept(name: str) -> None:
    graph, _ = small_graphs()[0]
    needed = Simulator(graph, DEVICES).timeline([0] * len(graph)).peak_bytes[0]
    options = SHORT.get(name, {})
    for part in (0.8, 0.6, 0.45):
        devices = sbp.Devices.of("a100-80", "v100", "host", memory_bytes=[part * needed] * 3)
        try:
            answer = found(name, graph, devices, **options)
        except sbp.PlanError as error:
            assert "memory" in str(error)
            assert name != "pesto"
            continue
        s = Simulator(graph, devices)
        assert (s.timeline(answer.device, answer.order).peak_bytes <= s.limits).all()
    tiny = sbp.Devices.of("a100-80", "v100", "host", memory_bytes=[needed / 100] * 3)
    with pytest.raises(sbp.PlanError, match="memory"):
        found(name, graph, tiny, **options)


def test_bad_input_is_told_in_words() -> None:
    w, x = inputs()

    def place(**given: Any) -> Any:
        return sbp.place_ops(model, w, x, **{"devices": DEVICES, **given})

    with pytest.raises(sbp.PlanError, match=r"an op has one device.*sbp\.Pipeline\(stages='auto', search='dnn_repl"):
        place(solver="dnn_partitioning", solver_options={"replication": True})
    with pytest.raises(sbp.PlanError, match="did you mean 'heft'"):
        place(solver="hefty")
    with pytest.raises(sbp.PlanError, match=r"decides the signature of every value.*AutoParallelConfig.*Possible here"):
        place(solver="tofu")
    with pytest.raises(sbp.PlanError, match=r"name it in sbp\.place_ops"):
        sbp.AutoParallelConfig(solver="heft")
    with pytest.raises(sbp.PlanError, match="meant for graphs of up to 4 ops; this one has 12"):
        place(solver="pesto", solver_options={"most_ops": 4}, ops=12)
    with pytest.raises(sbp.PlanError, match="ops=0"):
        place(ops=0)
    with pytest.raises(sbp.PlanError, match=r"give sbp\.Devices"):
        place(devices=["a100-80"])
    for name in sorted(LEARNED):
        with pytest.raises(sbp.PlanError, match=r"steps=0.*at least 1"):
            place(solver=name, solver_options={"steps": 0})
    with pytest.raises(sbp.PlanError, match="run with"):
        place().run(w, x[:3])
    few = sbp.Devices.of(*["v100"] * 9)
    with pytest.raises(sbp.PlanError, match="JAX has 8"):
        place(devices=few).run(w, x)
    with pytest.raises(sbp.PlanError, match="has an effect"):
        sbp.place_ops(lambda x: jax.debug.print("{}", x) or x, x, devices=DEVICES)


def test_devices_without_a_cost_are_refused() -> None:
    speeds: dict[str, Any] = {"flops_per_second": [1e12, 1e12], "memory_bytes_per_second": [1e9, 1e9],
                              "memory_bytes": [1e9, 1e9]}  # fmt: skip
    sbp.Devices.by_speed(["a", "b"], **speeds)
    for what in speeds:
        for wrong in ([0.0, 1e9], [1e9], [float("nan"), 1e9]):
            with pytest.raises(sbp.PlanError, match=what):
                sbp.Devices.by_speed(["a", "b"], **{**speeds, what: wrong})
    with pytest.raises(sbp.PlanError, match="no link from 'a' to 'b'"):
        sbp.Devices.by_speed(["a", "b"], **speeds, bytes_per_second=[[1.0, 0.0], [1.0, 1.0]])
    with pytest.raises(sbp.PlanError, match=r"shape \(3, 3\); 2 devices"):
        sbp.Devices.by_speed(["a", "b"], **speeds, latency_seconds=[[0.0] * 3] * 3)
    with pytest.raises(sbp.PlanError, match="different names"):
        sbp.Devices.by_speed(["a", "a"], **speeds)
    with pytest.raises(sbp.SbpError, match="did you mean"):
        sbp.Devices.of("a100")
    with pytest.raises(sbp.PlanError, match="can run on none"):
        OpGraph(("x",), np.array([[np.inf]]), (), np.zeros(1))
    with pytest.raises(sbp.PlanError, match="are for 1 devices, and there are 3"):
        Simulator(OpGraph(("x",), np.ones((1, 1)), (), np.zeros(1)), DEVICES)
