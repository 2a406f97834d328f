"""Every search method on one interface and one cost: the exact one is never beaten, and everything tried agrees."""

import itertools
import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.planner.budget import Budget
from sbp_jax.planner.catalogue import lookup
from sbp_jax.planner.costs.cost_graph import IMPOSSIBLE, CostGraph
from sbp_jax.planner.memory.infeasible import OutOfTime
from sbp_jax.planner.memory.protocol import MemoryTable
from sbp_jax.planner.methods import Task, dp, ilp
from sbp_jax.planner.optimize import presolve as presolve_module
from sbp_jax.planner.optimize import program as solve_module
from sbp_jax.planner.optimize.closing import Closing
from sbp_jax.planner.optimize.goal import Start
from sbp_jax.planner.optimize.presolve import Presolved, without_presolve
from sbp_jax.planner.optimize.program import improve
from sbp_jax.planner.optimize.smallest_limit import Smallest
from sbp_jax.planner.optimize.sweep import sweep
from zoo import mlp, resnet

from .optimize.small_graphs import cheapest, problem


class Bytes:
    """What choices hold, at a few points: a random amount for each choice."""

    def __init__(self, problem: CostGraph, seed: int, points: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.problem, self.n_nodes = problem, points
        self.tables = [random.integers(0, 20, size=(points, len(c))).astype(float) for c in problem.nodes]

    def over_time(self, choice):
        return np.array([sum(t[p, k] for t, k in zip(self.tables, choice, strict=True)) for p in range(self.n_nodes)])

    def at(self, point: int) -> CostGraph:
        return CostGraph([t[point].copy() for t in self.tables], {})

    def held(self, choice, point):
        return []

    def by_interval(self):
        return (MemoryTable(n, -1, t[p], p, p + 1) for n, t in enumerate(self.tables) for p in range(self.n_nodes))


def task(seed: int, limit: float | None = None, n: int = 7, dense: float = 0.5) -> Task:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, size=n)
    nodes = [random.integers(0, 20, size=k).astype(float) for k in sizes]
    edges = {
        (a, b): random.integers(0, 20, size=(sizes[a], sizes[b])).astype(float)
        for a, b in itertools.combinations(range(n), 2)
        if random.random() < dense
    }
    problem = CostGraph(nodes, edges)
    footprint: object = Bytes(problem, seed)
    return Task(problem, footprint, limit, 0.0, Budget().some(5.0), lambda _: None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", range(60))
def test_exact_equals_everything_tried(seed: int) -> None:
    found = {name: lookup(name).run(task(seed)) for name in ("ilp", "exhaustive", "greedy", "dp")}
    best = found["exhaustive"]
    assert best is not None
    for name, one in found.items():
        assert one is not None and one.seconds == pytest.approx(task(seed).problem.evaluate(one.solution.choice))
        assert one.seconds >= best.seconds - 1e-9 and one.bound <= best.seconds + 1e-9, name
    for exact in ("ilp", "dp"):
        one = found[exact]
        assert one is not None and one.seconds == pytest.approx(best.seconds) == one.bound


@pytest.mark.parametrize("seed", range(140))
def test_within_memory(seed: int) -> None:
    """Prices, and rows where they leave a gap: the best plan that fits, or the word that none does."""
    free = lookup("exhaustive").run(task(seed))
    assert free is not None
    limit = (0.95, 0.85, 0.7)[seed % 3] * float(task(seed).footprint.over_time(free.solution.choice).max())
    try:
        best = lookup("exhaustive").run(task(seed, limit))
    except sbp.PlanError:
        with pytest.raises(sbp.PlanError, match="no plan was found that fits"):
            lookup("ilp").run(task(seed, limit))
        return
    found = lookup("ilp").run(task(seed, limit))
    assert best is not None and found is not None
    assert task(seed).footprint.over_time(found.solution.choice).max() <= limit
    assert found.seconds == pytest.approx(best.seconds)
    assert found.bound == pytest.approx(best.seconds)


def train_step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * g, loss


def test_the_solvers_plan_programs() -> None:
    listed = sbp.planner.solvers().of("signatures")
    assert {"data_parallel", "dp", "exhaustive", "greedy", "ilp", "megatron", "zero2", "zero3"} <= set(listed)
    where = sbp.placement.abstract((4,), cluster="h100")
    shapes = jax.ShapeDtypeStruct((512, 512), np.float32), jax.ShapeDtypeStruct((512, 512), np.float32)

    def plan(fn, solver: str) -> sbp.Plan:
        config = sbp.AutoParallelConfig(solver=solver, overlap=False)
        return sbp.plan(fn, *shapes, placement=where, donate_argnums=0, config=config)

    plans = {
        name: plan(train_step, name) for name in listed if name not in ("exhaustive", "gspmd", "neo", "adaptive_paddle")
    }
    for name, one in plans.items():
        assert one.solver == name and one.bound <= plans["ilp"].objective * (1 + 1e-9)
        assert one.objective >= plans["ilp"].objective * (1 - 1e-9)
    assert plans["ilp"].optimality_gap == plans["dp"].optimality_gap == 0
    small = [plan(lambda w, x: w * x.sum(), name) for name in ("exhaustive", "ilp", "dp")]
    assert len({round(p.objective * 1e12) for p in small}) == 1 and all(p.optimality_gap == 0 for p in small)


def test_elimination_with_small_tables_only_is_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes fixed where a table would be too large even of what striking leaves: a plan, and a bound that holds."""
    monkeypatch.setattr(dp, "MOST_ENTRIES", 30)
    unproven = 0
    for seed in range(40):
        tasks = [task(seed, n=12, dense=0.8) for _ in range(2)]
        one, best = lookup("dp").run(tasks[0]), lookup("ilp").run(tasks[1])
        assert one is not None and best is not None
        assert one.seconds >= best.seconds - 1e-9 and 0 < one.bound <= best.seconds + 1e-9
        assert one.seconds == pytest.approx(tasks[0].problem.evaluate(one.solution.choice))
        unproven += one.bound < one.seconds - 1e-9
    assert 0 < unproven < 40


@pytest.mark.parametrize("name", ["dp", "optcnn", "pase"])
def test_what_is_struck_before_elimination_is_in_no_best_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph is sent through striking first, whatever its tables; answers stay exact, impossible choices too."""
    monkeypatch.setattr(dp, "_MOST_IN_ALL", 0)
    monkeypatch.setattr(dp, "presolve", without_presolve)  # it leaves nothing of graphs so small
    for seed in range(40):
        graph = problem(seed, n=8, dense=0.6, forbid=0.1)
        footprint: object = Bytes(graph, seed)
        found = lookup(name).run(replace(task(seed), problem=graph, footprint=footprint))  # pyright: ignore[reportArgumentType]
        best = cheapest(graph)
        assert (found is None) == (best >= IMPOSSIBLE)
        if found is not None:
            assert found.seconds == pytest.approx(best) == found.bound


@pytest.mark.parametrize("seed", range(30))
def test_message_passing_bounds_and_never_strikes_the_best(seed: int) -> None:
    """On problems sent through it whatever their size: bounds hold, the best plan survives, the end is exact."""
    t = task(seed, n=8)
    best = lookup("exhaustive").run(t)
    assert best is not None
    r = without_presolve(t.problem)

    def exact(kernel: Presolved, budget: Budget) -> tuple[dict[int, int] | None, float]:
        return None, -math.inf

    found = Closing(t.problem.evaluate, improve, exact, 0.0, Budget())
    found.run(r, 0)
    assert found.bound <= best.seconds + 1e-9 and found.objective >= best.seconds - 1e-9
    assert found.done or all(best.solution.choice[n] in r.kept[n] for n in r.nodes)


@pytest.mark.parametrize("seed", range(30))
def test_exact_by_way_of_message_passing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_module, "_SMALL", 0)
    found, best = solve_module.solve(task(seed, n=9).problem), lookup("dp").run(task(seed, n=9))
    assert found is not None and best is not None
    assert found.objective == pytest.approx(best.seconds) == found.bound


@pytest.mark.parametrize("seed", range(10))
def test_exact_where_few_choices_are_struck_before_bounds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_module, "_SMALL", 0)
    monkeypatch.setattr(presolve_module, "_FEW_PAIRS", 0)
    monkeypatch.setattr(presolve_module, "_LEAST_COMPARED", 150)
    problem = task(seed, n=9).problem
    few, all_of_it = without_presolve(problem), without_presolve(problem)
    few.shrink_for_bounds(Budget())
    all_of_it.shrink(Budget())
    assert few.pairs >= all_of_it.pairs
    found, best = solve_module.solve(problem), lookup("dp").run(task(seed, n=9))
    assert found is not None and best is not None
    assert found.objective == pytest.approx(best.seconds) == found.bound


@pytest.mark.parametrize("seed", range(20))
def test_the_last_plans_are_recombined(seed: int) -> None:
    """Exactly: no plan that takes each node's choice from one of them costs less."""
    problem = task(seed, n=10).problem
    random = np.random.default_rng(seed)
    one, other = ([int(random.integers(len(c))) for c in problem.nodes] for _ in range(2))
    r = without_presolve(problem)

    def exact(kernel: Presolved, budget: Budget) -> tuple[dict[int, int] | None, float]:
        return solve_module._Program(kernel).solve(0.0, budget)

    closing = Closing(problem.evaluate, lambda _, choice: choice, exact, 0.0, Budget())
    closing._round(r)
    closing.seen = [one, other]
    closing.choice, closing.objective = one, problem.evaluate(one)
    closing._recombine(r, Budget())
    mixed = min(problem.evaluate(list(mix)) for mix in itertools.product(*zip(one, other, strict=True)))
    assert closing.objective <= mixed + 1e-9
    assert closing.choice is not None and problem.evaluate(closing.choice) == pytest.approx(closing.objective)


@pytest.mark.parametrize(("work", "seconds"), [(0.0, math.inf), (1e5, math.inf), (1e6, math.inf), (math.inf, 1e-4)])
def test_an_end_keeps_its_word(work: float, seconds: float) -> None:
    """Whatever is left undone: the choice is what it says it costs, the bound is one."""
    for seed in range(20):
        p = task(seed, n=9).problem
        found, best = solve_module.solve(p, 0.0, Budget(work, seconds)), lookup("dp").run(task(seed, n=9))
        assert found is not None and best is not None
        assert found.objective == pytest.approx(p.evaluate(found.choice)) and found.bound <= best.seconds + 1e-9


EXPERTS = ("data_parallel", "megatron", "zero2", "zero3")


@pytest.mark.parametrize(
    ("model", "mesh"), [pytest.param("mlp", (8,), marks=pytest.mark.slow), ("mlp", (2, 4)), ("resnet", (8,)),
                        pytest.param("resnet", (2, 4), marks=pytest.mark.slow)], ids=str,
)  # fmt: skip
def test_no_expert_is_better(model: str, mesh: tuple[int, ...]) -> None:
    """Not on a small zoo, and not where memory is short. (All of it: benchmarks/solvers.py.)"""
    case = {"mlp": lambda: mlp.build("tiny", hidden=1024, features=1024, batch=2048, dropout=0.0),
            "resnet": lambda: resnet.build("tiny", batch=64)}[model]()  # fmt: skip
    where = sbp.placement.abstract(mesh, axis_names=("dp", "tp")[: len(mesh)], cluster="a100-80")
    args = jax.eval_shape(case.init), case.batch(0)

    def plan(solver: str, limit: float | None = None) -> sbp.Plan | None:
        config = sbp.AutoParallelConfig(solver=solver, memory_limit=limit, overlap=False)
        try:
            return sbp.plan(case.step, *args, placement=where, donate_argnums=0, config=config)
        except sbp.PlanError:
            return None

    free = plan("ilp")
    assert free is not None
    for limit in (None, 0.8 * free.memory_per_device) if model == "mlp" and len(mesh) == 1 else (None,):
        best = free if limit is None else plan("ilp", limit)
        assert best is not None
        for name in EXPERTS:
            one = plan(name, limit)
            assert one is None or one.objective >= best.bound * (1 - 1e-9)
            assert one is None or best.objective <= one.objective * (1 + 1e-4)
            assert one is None or limit is None or one.memory_per_device <= limit


def signatures(plan: sbp.Plan, part: str) -> set[str]:
    return {str(leaf.signature) for leaf in plan.inputs if part in f"|{leaf.path}" and leaf.shape}


def test_what_experts_do() -> None:
    case = mlp.build("tiny", hidden=1024, features=1024, classes=64, batch=2048, dropout=0.0)
    where = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="a100-80")
    plans = {
        name: sbp.plan(case.step, jax.eval_shape(case.init), case.batch(0), placement=where, donate_argnums=0,
                       config=sbp.AutoParallelConfig(solver=name, overlap=False))
        for name in EXPERTS
    }  # fmt: skip
    assert signatures(plans["data_parallel"], "|0/") == {"B, B"}
    assert signatures(plans["data_parallel"], "|1/") <= {"S(0), S(0)", "S(1), S(1)"}
    assert {s.split(",")[0] for s in signatures(plans["megatron"], "|0/")} == {"B"}
    assert any("S" in s for s in signatures(plans["megatron"], "params"))
    assert signatures(plans["megatron"], "|1/") <= {"S(0), B", "S(1), B"}
    of = {leaf.path: leaf.signature for leaf in plans["megatron"].inputs}
    assert all(of[path] == of["0/params" + path.split("mu")[1]] for path in of if "/mu/" in path)
    assert signatures(plans["zero2"], "params") == {"B, B"}
    assert not any("B" in s for s in signatures(plans["zero2"], "opt_state"))
    assert not any("B" in s for s in signatures(plans["zero3"], "0/params"))
    assert not any("B" in s for s in signatures(plans["zero3"], "opt_state"))


def test_what_an_expert_cannot_split_stays_whole_and_is_noted() -> None:
    case = mlp.build("tiny", classes=7)
    where = sbp.placement.abstract((8,), cluster="a100-80")
    config = sbp.AutoParallelConfig(solver="zero3")
    p = sbp.plan(case.step, jax.eval_shape(case.init), case.batch(0), placement=where, donate_argnums=0, config=config)
    assert any("as nearly split as can be" in n and "/params/3/b (7)" in n for n in p.notes)


def test_too_many_plans_to_try() -> None:
    with pytest.raises(sbp.PlanError, match=r"tries every plan, and there are .*use solver='ilp'"):
        lookup("exhaustive").run(task(0, n=30))


@pytest.mark.parametrize(("gap", "told"), [(0.05, r"of the family of \w+$"), (0.75, "of the family of plans that")])
def test_an_expert_is_the_answer_where_the_search_stops_short(
    gap: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its strategy, or where the gap is wide the larger family around it."""
    case = mlp.build("tiny", dropout=0.0)
    where = sbp.placement.abstract((8,), axis_names=("dp",), cluster="a100-80")

    def plan(solver: str) -> sbp.Plan:
        config = sbp.AutoParallelConfig(solver=solver, memory_limit=1e12, overlap=False)
        return sbp.plan(
            case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0, config=config
        )

    experts = {name: plan(name) for name in EXPERTS}
    best = min(experts.values(), key=lambda p: p.objective)

    def hurried(task: Task):
        found = sweep(task.problem, task.footprint, None)
        assert found is not None
        return replace(found, seconds=1.02 * best.objective, bound=1.02 * best.objective * (1 - gap))

    monkeypatch.setattr(ilp, "search", hurried)
    found = plan("ilp")
    assert found.objective <= best.objective * (1 + 1e-9) and found.bound <= found.objective
    assert any(re.search(told, note) for note in found.notes)

    def in_vain(task: Task):
        raise OutOfTime("no plan was found in time", 1.0)

    monkeypatch.setattr(ilp, "search", in_vain)
    late = plan("ilp")
    assert late.objective <= best.objective * (1 + 1e-9) and late.bound <= late.objective


def test_the_smallest_limit_of_a_family_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told: on GPT-3 that took two minutes."""

    def in_vain(task: Task):
        raise OutOfTime("no plan was found in time", 1.0)

    monkeypatch.setattr(ilp, "search", in_vain)
    monkeypatch.setattr(Smallest, "nearest", lambda *_: pytest.fail("it is looked for"))
    case = mlp.build("tiny", dropout=0.0)
    where = sbp.placement.abstract((8,), axis_names=("dp",), cluster="a100-80")
    config = sbp.AutoParallelConfig(memory_limit=1000)
    with pytest.raises(sbp.PlanError, match="in time"):
        sbp.plan(case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0, config=config)


def test_where_a_plan_is_known_families_are_not_searched_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another form of the step has one: with no budget they took two minutes of a T5's search."""

    def in_vain(task: Task):
        raise OutOfTime("no plan was found in time", 1.0)

    monkeypatch.setattr(ilp, "search", in_vain)
    monkeypatch.setattr(ilp, "cheapest", lambda *_: pytest.fail("they are searched"))
    alone = replace(task(3, limit=1e12), find_start=lambda: Start([], known_seconds=1.0))
    with pytest.raises(OutOfTime):
        lookup("ilp").run(alone)


def test_that_nothing_fits_is_not_a_matter_of_time() -> None:
    with pytest.raises(sbp.PlanError, match="the smallest that one does is"):
        lookup("ilp").run(replace(task(3, limit=-1.0), budget=Budget(work=0.0)))
