"""What a plan's notes say is true: of time where time was up, of memory where it was short, of meshes, of families."""

import functools
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
import sbp_jax.cluster as clusters
from sbp_jax.plan import Recomputed
from sbp_jax.planner import Request, decide, meshes
from sbp_jax.planner.budget import Budget
from sbp_jax.planner.catalogue import lookup
from sbp_jax.planner.effort import budget_for
from sbp_jax.planner.memory.infeasible import OutOfTime, TooSmall
from sbp_jax.planner.methods import Task, ilp
from sbp_jax.planner.optimize import fit
from sbp_jax.planner.optimize import search as search_module
from sbp_jax.planner.optimize.search import Found
from sbp_jax.planner.remat import search as remat

MESH = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="a100-80")
LINE = sbp.placement.abstract((8,), cluster="a100-80")


def step(state, x):
    def loss(w):
        return jnp.mean((jnp.tanh(jnp.tanh(x @ w["a"]) @ w["b"]) @ w["a"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


ARGS = {"a": f32(256, 1024), "b": f32(1024, 256)}, f32(4096, 256)


def holding(memory_bytes: float) -> sbp.Cluster:
    """A cluster whose devices hold so much."""
    known = clusters.get("a100-80")
    return replace(known, device=replace(known.device, memory_bytes=memory_bytes))


def plan(where: Any = MESH, pins: Any = None, **config: Any) -> sbp.Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return sbp.plan(step, *ARGS, placement=where, donate_argnums=0, in_sbp=pins,
                        config=sbp.AutoParallelConfig(**{"cluster": "a100-80", **config}))  # fmt: skip


@pytest.fixture(scope="module")
def searched() -> Task:
    """The task that a search method is given for the step."""
    seen: list[Task] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            decide,
            "lookup",
            lambda _: replace(lookup("ilp"), run=lambda task: seen.append(task) or lookup("ilp").run(task)),
        )
        plan()
    return seen[0]


def late(solve: Callable[..., Any]) -> Callable[..., Any]:
    """A solver that takes longer than 0.1 s and any number of work, whatever the budget."""

    def slow(problem: Any, gap: float, budget: Budget, *rest: Any, **options: Any) -> Any:
        time.sleep(0.2)
        budget.spend(budget.work_left)
        return solve(problem, gap, None, *rest, **options)

    return slow


def short(thorough: bool) -> Budget:
    """A user's time limit, or what a search may do by default."""
    return Budget(seconds=0.1) if thorough else Budget(work=1e9)


@pytest.mark.parametrize("thorough", [False, True])
def test_nothing_is_fitted_into_memory_where_there_is_enough(
    thorough: bool, searched: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model takes a thousandth of the memory, and the search all of its time: its plan and its proof stand."""
    exact = lookup("ilp").run(searched)
    task = replace(searched, budget=short(thorough), limit_bytes=80e9, thorough=thorough)
    monkeypatch.setattr(search_module, "solve", late(search_module.solve))
    found = search_module.search(task)
    assert found is not None and exact is not None and not found.memory_is_short
    assert found.notes == () and found.seconds == pytest.approx(exact.seconds) == found.bound


@pytest.fixture(scope="module")
def limited(searched: Task) -> tuple[float, Any]:
    """A limit a little below what the free plan holds, and a plan that fits into it."""
    free = lookup("ilp").run(replace(searched, limit_bytes=None))
    assert free is not None
    limit = 0.97 * float(searched.footprint.over_time(free.solution.choice).max())
    fits = lookup("ilp").run(replace(searched, limit_bytes=limit))
    assert fits is not None
    return limit, fits.solution.choice


@pytest.mark.parametrize("thorough", [False, True])
def test_time_is_said_to_be_the_users_where_it_is(
    thorough: bool, searched: Task, limited: tuple[float, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, fits = limited
    run = fit.Fitting.run

    def after_one_that_fits(fitting: fit.Fitting) -> Any:
        fitting.offer(fits)
        return run(fitting)

    monkeypatch.setattr(fit.Fitting, "run", after_one_that_fits)
    monkeypatch.setattr(search_module, "solve", late(search_module.solve))
    found = search_module.search(replace(searched, limit_bytes=limit, budget=short(thorough), thorough=thorough))
    assert found is not None and found.memory_is_short and len(found.notes) == 1
    assert ("time_limit was up" in found.notes[0]) is thorough
    assert ("by default was done" in found.notes[0]) is not thorough and "fitting into memory" in found.notes[0]


def test_a_search_too_short_says_whose_time_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfinished(task: Task) -> Found | None:
        found = lookup("greedy").run(task)
        solution = found and replace(found.solution, timed_out=True)
        return found and replace(found, solution=solution, seconds=1e9, notes=("of a plan that is not taken",))

    monkeypatch.setattr(decide, "lookup", lambda _: replace(lookup("ilp"), run=unfinished))
    asked, free = plan(time_limit=5.0, overlap=False), plan(overlap=False)
    assert any(n.startswith("time_limit=5 s is too short to search") for n in asked.notes)
    assert any(n.startswith("the work that a search does by default was done") for n in free.notes)
    assert not any("time_limit=6" in n or "time_limit=4" in n for n in free.notes)
    assert not any("not taken" in n for p in (asked, free) for n in p.notes)


def test_a_time_limit_that_is_not_kept_is_told(searched: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """No strategy's plan is known: the search goes on until it finds one."""
    monkeypatch.setattr(decide, "fallback", lambda _: None)
    task = replace(searched, limit_bytes=None, budget=Budget(work=0.0))
    for asked, notes in ((0.0, ("time_limit=0 s was exceeded: no plan was found within it",)), (None, ())):
        request = Request(MESH, clusters.get("a100-80"), time_limit=asked)
        found = decide.decide(task, request)
        assert found is not None and found.found.notes == notes


@pytest.mark.parametrize("is_short", [False, True])
def test_a_family_is_said_to_fit_where_memory_is_short(
    is_short: bool, searched: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = lookup("ilp").run(searched)
    assert exact is not None
    stopped = replace(exact, seconds=2 * exact.seconds, bound=0.0, memory_is_short=is_short)
    monkeypatch.setattr(ilp, "search", lambda _: stopped)
    task = replace(searched, limit_bytes=80e9)
    found = lookup("ilp").run(task)
    assert found is not None
    assert ("found that fits is of the family" in found.notes[-1]) is is_short
    assert ("plan found is of the family" in found.notes[-1]) is not is_short


def test_what_fits_is_not_said_not_to(searched: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was found in time within the device's memory; the plan found without a limit fits all the same."""
    method = lookup("ilp").run

    def in_vain(task: Task) -> Found | None:
        if task.limit_bytes is not None:
            raise OutOfTime("nothing was found in time", 1.0)
        return method(task)

    monkeypatch.setattr(decide, "lookup", lambda _: replace(lookup("ilp"), run=in_vain))
    request = Request(MESH, clusters.get("a100-80"), limit_is_firm=False)
    found = decide.decide(replace(searched, limit_bytes=80e9), request)
    assert found is not None and found.found.notes == ()
    found = decide.decide(replace(searched, limit_bytes=1e5), request)
    assert found is not None and found.found.notes == ("does not fit by the memory model: nothing was found in time",)


def test_what_a_search_in_vain_took_is_not_missing_afterwards(searched: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fits into the device's memory, and all the work went there: the plan is the one without a limit."""
    method = lookup("ilp").run
    free = method(searched)
    assert free is not None

    def in_vain(task: Task) -> Found | None:
        if task.limit_bytes is not None:
            task.budget.spend(task.budget.work_left)
            raise TooSmall("no plan fits", 2.0)
        return method(task)

    monkeypatch.setattr(decide, "lookup", lambda _: replace(lookup("ilp"), run=in_vain))
    request = Request(MESH, clusters.get("a100-80"), limit_is_firm=False)
    task = replace(searched, limit_bytes=1.0, budget=budget_for("default", None))
    found = decide.decide(task, request)
    assert found is not None and found.found.seconds == free.seconds
    assert found.found.notes == ("does not fit by the memory model: no plan fits",)


def test_a_plan_over_the_devices_memory_is_noted_once() -> None:
    found = plan(cluster=holding(1e5), prefer_less_memory=True)
    assert found.memory_per_device > 1e5
    assert sum(n.startswith("does not fit by the memory model: no plan was found that fits") for n in found.notes) == 1


def test_less_memory_that_was_not_found_is_not_given_as_a_number() -> None:
    config = sbp.AutoParallelConfig(prefer_less_memory=True)
    found = sbp.plan(lambda x: x.sum(), f32(8, 8), placement=MESH, config=config)
    assert "less memory preferred: no plan found within 5% of the least seconds holds even 0.1% less" in found.notes


def test_meshes_passed_over_are_named_and_costs_are_seconds() -> None:
    weighed = plan(8, computation_cost_ratio=0.01)
    told = next(n for n in weighed.notes if n.startswith("mesh "))
    assert f"{weighed.step_seconds * 1e3:.4g} ms (weighed: {weighed.objective * 1e3:.4g})" in told
    physical = plan(8)
    told = next(n for n in physical.notes if n.startswith("mesh "))
    assert f"{physical.step_seconds * 1e3:.4g} ms" in told and "weighed" not in told and "passed over" not in told
    pinned = plan(8, pins=({"a": "B, S(1)", "b": None}, None))
    assert "; 8 passed over: pins that it does not fit" in pinned.notes[-1]
    places = meshes.candidates(8, "gpu", 0, "a100-80")

    def plan_on(where: sbp.Placement) -> Any:
        if where.ndim == 1:
            raise TooSmall("no plan was found that fits", 1.0)
        return plan(where)

    assert "; 8 passed over: no plan was found that fits into memory" in meshes.best_of(places, plan_on).notes[-1]


def test_what_is_made_again_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a mix does is told of it; it is to fit where holding all does not."""

    def layers(state, x):
        def loss(ws):
            return jnp.mean(functools.reduce(lambda h, w: jax.nn.relu(h @ w), ws, x) ** 2)

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, d: w - 0.1 * d, state, grads), value

    def planned(limit: float | None = None) -> sbp.Plan:
        config = sbp.AutoParallelConfig(memory_limit=limit, cluster="a100-80", overlap=False)
        return sbp.plan(layers, [f32(1024, 1024)] * 6, f32(8192, 1024), placement=LINE, donate_argnums=0, config=config)

    tight = planned(0.7 * planned().memory_per_device)
    assert tight.recomputed is not None and not tight.recomputed.nodes
    (note,) = (n for n in tight.notes if "backward part" in n)
    assert "arguments are read anew in the backward part, nothing is computed again" in note
    assert note.startswith(("to fit, ", "memory is short: "))
    choice, again = object.__new__(remat._Choice), Recomputed(5, (1, 2, 3))
    choice.program = cast(Any, None)
    choice.refusals = cast(Any, [SimpleNamespace(origin=None)])  # holding all
    monkeypatch.setattr(remat, "read_anew", lambda *_: [])
    assert choice.told(again).startswith("to fit, 3 nodes are run again in the backward part; the gap")
    choice.refusals = cast(Any, [SimpleNamespace(origin=[0])])
    monkeypatch.setattr(remat, "read_anew", lambda *_: ["w"])
    choice.held_all = True
    told = choice.told(again)
    assert told.startswith("memory is short: arguments are read anew in the backward part, 3 nodes")
    assert "cheaper than holding all" in told
