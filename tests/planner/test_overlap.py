"""What hides is not paid: plans judged by their simulated step, and what is claimed of them."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
import zoo
from sbp_jax.planner import exposed, make_plan, overlap, prepare
from sbp_jax.planner.costs.slack import exposed as stick_out
from sbp_jax.planner.optimize import fit
from sbp_jax.planner.optimize.goal import Start
from sbp_jax.simulate import simulate

ZOO: dict[str, Callable[[], Any]] = {
    "mlp": lambda: zoo.build("mlp", hidden=1024, features=1024, batch=4096, dropout=0.0),
    "lstm": lambda: zoo.build("lstm"),
    "resnet": lambda: zoo.build("resnet", batch=256),
    "gpt accumulating": lambda: zoo.build("gpt", batch=16, hidden=256, grad_accumulation=4, dropout=0.0),
}
EXPERTS = ("data_parallel", "megatron", "zero2", "zero3")
CASES = [("mlp", (8,), "h100"), ("mlp", (2, 4), "a100-80"), ("lstm", (2, 4), "h100"), ("resnet", (8,), "h100"),
         ("resnet", (2, 4), "h100"), ("gpt accumulating", (8,), "h100")]  # fmt: skip


@functools.cache
def planned(name: str, mesh: tuple[int, ...] = (8,), cluster: str = "h100", **options: Any) -> sbp.Plan:
    case = ZOO[name]()
    where = sbp.placement.abstract(mesh, axis_names=("dp", "tp")[: len(mesh)], cluster=cluster)
    config = sbp.AutoParallelConfig(**options)
    return sbp.plan(case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0, config=config)


def simulated(plan: sbp.Plan) -> float:
    return plan.simulate().step_seconds


@pytest.mark.slow
def test_the_simulated_step_is_never_longer_and_shorter_on_some() -> None:
    ratios = {}
    for case in CASES:
        found, of_sum = planned(*case), planned(*case, overlap=False)
        ratios[case] = simulated(found) / simulated(of_sum)
        assert of_sum.priced == "sum" and of_sum.objective == pytest.approx(of_sum.step_seconds, rel=1e-3)
        assert found.priced == ("exposed" if ratios[case] < 1 else "sum")
        assert ratios[case] <= 1
    assert sum(r < 0.95 for r in ratios.values()) >= 3, ratios


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_no_experts_step_is_shorter(case: Any) -> None:
    found = simulated(planned(*case))
    for solver in EXPERTS:
        # Megatron's family is searched to within 2 % there, and plans of one sum may differ in what hides.
        assert found <= simulated(planned(*case, solver=solver)) * (1.001 if solver != "megatron" else 1.02), solver


@pytest.mark.parametrize("case", [c for c in CASES if c[0] != "lstm"], ids=str)
def test_what_is_claimed_is_true(case: Any) -> None:
    """The objective lies between what is computed and the plain sum, the bound below it; notes and statistics agree."""
    found, of_sum = planned(*case), planned(*case, overlap=False)
    assert found.priced == "exposed"
    assert found.compute_seconds * (1 - 1e-6) <= found.objective < found.step_seconds
    assert 0 < found.bound <= found.objective
    # The sum's plan costs no more at these prices than its sum, and no plan costs less than the bound.
    assert found.bound <= of_sum.objective
    assert found.statistics["simulated_seconds"] == pytest.approx(simulated(found), rel=1e-9)
    assert found.statistics["simulated_seconds_of_sum"] == pytest.approx(simulated(of_sum), rel=1e-9)
    assert sum("what hides is not paid" in n for n in found.notes) == 1
    assert "at prices of what sticks out of compute" in str(found)


def test_alternatives_are_of_the_same_objective() -> None:
    """Where the plan is optimal at its prices no single change is cheaper."""
    found = planned("resnet", (2, 4))
    assert found.priced == "exposed" and found.optimality_gap < 0.01
    worst = min(a.seconds for d in found.insight.decisions for a in d.alternatives)
    assert worst >= -0.01 * found.objective


def test_prices() -> None:
    seconds = np.array([[0.0, 3.0], [np.inf, 1.0]])
    np.testing.assert_allclose(stick_out(seconds, np.array([2.0]), 0.0), [[0, 1], [np.inf, 0]])
    np.testing.assert_allclose(stick_out(seconds, np.array([2.0]), 0.5), [[0, 2], [np.inf, 0.5]])
    np.testing.assert_allclose(stick_out(seconds, np.array([2.0, 0.0]), 0.0), [[0, 2], [np.inf, 0.5]])  # the mean
    assert stick_out(seconds, np.zeros(3), 0.0) is seconds


def test_cover_is_the_compute_between() -> None:
    """A weight that is used last can be gathered beside all that comes before; what is used at once has no cover."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jnp.tanh(x @ x)
        return x @ w

    where = sbp.placement.abstract((8,), axis_names=("d",), cluster="h100")
    shape = jax.ShapeDtypeStruct((4096, 4096), "float32")
    function = sbp.auto_parallel(step, placement=where, config=sbp.AutoParallelConfig(overlap=False))
    seen: dict[str, Any] = {}

    def spy(program: Any, plan: Any, *_: Any) -> Any:
        seen.update(program=program, plan=plan)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sbp_jax.api.function.hide_boxing", spy)
        function.plan(shape, shape)
    program, plan = seen["program"], seen["plan"]
    covers = exposed._Covers(program, 2e-6).of(plan)
    last = max(op.index for op in program.nodes if op.name == "dot_general")
    w, x = (op.outs[0].id for op in program.input_ops)
    before = sum(plan.timeline.costs[c].seconds for n, c in plan.timeline.runs if n < last)
    assert covers[w, last] == pytest.approx(before) and before > 0
    assert min(s for (i, _), s in covers.items() if i == x) == 0.0


def test_what_a_search_is_made_from_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    cluster_ops = prepare.cluster_ops
    monkeypatch.setattr(prepare, "cluster_ops", lambda *args: (made.append(args[0]), cluster_ops(*args))[1])
    found = planned.__wrapped__("mlp", (8,))
    assert found.priced == "exposed" and len(made) == 1
    s = found.statistics
    assert 0 < s["build_seconds"] and s["build_seconds"] + s["solve_seconds"] <= found.planning_seconds


def test_twice_the_same() -> None:
    first, again = planned("resnet", (2, 4)), planned.__wrapped__("resnet", (2, 4))

    def text(plan: sbp.Plan) -> str:
        data = plan.to_json()
        left_out = "planning_seconds", "statistics"
        return json.dumps({k: v for k, v in data.items() if k not in left_out})

    assert text(first) == text(again)


def test_a_thorough_search_looks_at_the_plan_by_default_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it minimises is a model of the step: more of it proven may be a longer step."""
    looked: list[tuple[bool, float]] = []

    def remembered(program: Any, request: Any, name: str) -> Any:
        plan = make_plan(program, request, name)
        looked.append((request.thorough, simulate(plan, request.cluster).step_seconds))
        return plan

    monkeypatch.setattr(overlap, "make_plan", remembered)
    found = planned.__wrapped__("mlp", effort="thorough")
    assert [thorough for thorough, _ in looked] == [False, True]
    assert simulated(found) == pytest.approx(min(seconds for _, seconds in looked))


def test_memory_stays_within_the_limit() -> None:
    limit = 0.9 * planned("mlp").memory_per_device
    tight = planned("mlp", memory_limit=limit)
    assert tight.memory_per_device <= limit
    assert simulated(tight) <= simulated(planned("mlp", memory_limit=limit, overlap=False))


def test_a_pass_begins_with_the_plan_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the least sum; here what hides best holds more than the limit."""
    began: list[float] = []
    begin = fit.Fitting.begin

    def begin_and_tell(self: fit.Fitting, start: Start) -> None:
        begin(self, start)
        if self.best is not None:
            began.append(self.best.peak)

    limit = 0.8 * planned("mlp").memory_per_device
    of_sum = planned("mlp", overlap=False, memory_limit=limit)
    monkeypatch.setattr(fit.Fitting, "begin", begin_and_tell)
    planned.__wrapped__("mlp", memory_limit=limit)
    assert of_sum.memory_per_device in began


@pytest.mark.parametrize("options", [
    {"computation_cost_ratio": 0.5}, {"wait_time": 1e-6}, {"solver": "zero3"}, {"solver": "greedy"},
    {"prefer_less_memory": True}, {"overlap": False},
], ids=str)  # fmt: skip
def test_what_asks_for_something_else_is_left_alone(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "make_plan", lambda *_: pytest.fail("searched again"))
    assert planned.__wrapped__("mlp", **options).priced == "sum"


def test_hardware_that_overlaps_nothing_takes_no_second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "make_plan", lambda *_: pytest.fail("searched again"))
    assert planned.__wrapped__("mlp", cluster="cpu").priced == "sum"


def test_it_runs_and_is_verified(tmp_path: Path) -> None:
    def step(w: Any, x: jax.Array) -> Any:
        def loss(w: Any) -> jax.Array:
            return jnp.mean(functools.reduce(lambda y, k: jnp.tanh(y @ w[k]), sorted(w), x) ** 2)

        value, g = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda a, b: a - 0.1 * b, w, g), value

    keys = jax.random.split(jax.random.key(0), 4)
    w = {n: 0.1 * jax.random.normal(k, (128, 128)) for n, k in zip("abc", keys, strict=False)}
    x = jax.random.normal(keys[3], (64, 128))
    expected = jax.jit(step)(w, x)
    where = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    slow = sbp.cluster.get("h100")
    function = sbp.auto_parallel(step, placement=where, config=sbp.AutoParallelConfig(cluster=slow))
    plan = function.plan(w, x)
    assert plan.verify().ok
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), function(w, x), expected)
    plan.save(tmp_path / "plan.json")
    again = sbp.Plan.load(tmp_path / "plan.json")
    assert again.priced == plan.priced and again.simulate() == plan.simulate()


def test_a_saved_plan_says_what_its_objective_is(tmp_path: Path) -> None:
    plan = planned("mlp")
    plan.save(tmp_path / "plan.json")
    again = sbp.Plan.load(tmp_path / "plan.json")
    assert again.priced == "exposed" and again.optimality_gap == plan.optimality_gap
    data = json.loads((tmp_path / "plan.json").read_text())
    del data["priced"]  # written before there were two
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert sbp.Plan.load(tmp_path / "plan.json").priced == "sum"
