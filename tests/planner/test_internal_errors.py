"""An internal failure, wherever it happens, reaches the user: no other plan is quietly put in its place."""

import importlib
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
from sbp_jax.cli.base import blaming
from sbp_jax.errors import InternalError
from sbp_jax.planner import decide, meshes
from sbp_jax.planner.catalogue import lookup
from sbp_jax.planner.memory.infeasible import OutOfTime, TooSmall
from sbp_jax.planner.methods import Task, experts, ilp
from sbp_jax.planner.methods import less_memory as lean
from sbp_jax.planner.optimize.search import Found
from sbp_jax.planner.remat import search as remat

FAULTS = [sbp.PlanError("broken"), sbp.SignatureError("broken"), ValueError("broken"), InternalError("broken")]
faults = pytest.mark.parametrize("fault", FAULTS, ids=lambda e: type(e).__name__)


def fail(fault: Exception, after: int = 0) -> Any:
    """A function that raises from its call number ``after`` on, and says so: ``broken`` is not to be taken for less."""
    left = [after]

    def failing(*args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            raise fault
        left[0] -= 1
        return lookup("greedy").run(*args, **kwargs)

    return failing


def step(state, x):
    def loss(w):
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


ARGS = {"a": f32(256, 1024), "b": f32(1024, 256)}, f32(512, 256)
MESH = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="a100-80")


def plan(where: Any = MESH, pins: Any = None, **config: Any) -> sbp.Plan:
    return sbp.plan(step, *ARGS, placement=where, donate_argnums=0, in_sbp=pins,
                    config=sbp.AutoParallelConfig(cluster="a100-80", **config))  # fmt: skip


def searched(monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task that a search method is given for the step."""
    seen: list[Task] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            decide,
            "lookup",
            lambda _: replace(lookup("ilp"), run=lambda task: seen.append(task) or lookup("ilp").run(task)),
        )
        plan()
    return seen[0]


def test_an_internal_error_is_nobodys_mistake() -> None:
    """``except ValueError`` around a call of the library is for what the caller got wrong."""
    error = InternalError("no strategy of op 3")
    assert not isinstance(error, ValueError | sbp.SbpError)
    assert "no strategy of op 3. This is a fault of sbp_jax" in str(error)
    with pytest.raises(InternalError), blaming("importing model.py"):
        raise error


@faults
def test_where_the_limit_is_only_the_devices_own(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "lookup", lambda _: replace(lookup("ilp"), run=fail(fault)))
    with pytest.raises(type(fault), match="broken"):
        plan()


@faults
def test_in_a_search_with_an_end(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ilp, "search", fail(fault))
    with pytest.raises(type(fault), match="broken"):
        plan()


@faults
def test_in_less_memory(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    task = searched(monkeypatch)
    best = lookup("ilp").run(task)
    assert best is not None
    with pytest.raises(type(fault), match="broken"):
        lean.less_memory(task, best, fail(fault, after=1))


@faults
@pytest.mark.parametrize("search", ["cheapest", "cheapest_strategy", "coarsest"])
def test_in_a_family(search: str, fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    task = searched(monkeypatch)
    monkeypatch.setattr(experts, "best_of_family", fail(fault))
    with pytest.raises(type(fault), match="broken"):
        getattr(experts, search)(task)


@faults
@pytest.mark.parametrize("after", [0, 1])
def test_in_rematerialisation(after: int, fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the program as it is, and at the first that makes something again."""
    make, calls = remat.make_plan, [0]

    def make_plan(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise fault
        return make(*args)

    limit = 0.97 * plan().memory_per_device
    monkeypatch.setattr(remat, "make_plan", make_plan)
    with pytest.raises(type(fault), match="broken"):
        plan(memory_limit=limit, remat="auto")
    assert calls[0] == after + 1


@faults
def test_on_one_mesh_of_several(fault: Exception) -> None:
    places = meshes.candidates(8, "gpu", 0, "a100-80")

    def plan_on(where: sbp.Placement) -> Any:
        if where.shape == (4, 2):
            raise fault
        return plan(where)

    with pytest.raises(type(fault), match="broken"):
        meshes.best_of(places, plan_on)


@faults
def test_in_an_eager_op(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    where = sbp.placement("cpu", ranks=[0, 1])
    x = sbp.ones(4, 6, placement=where, sbp="S(0)")

    def broken(*_: Any) -> Any:
        raise fault

    monkeypatch.setattr(importlib.import_module("sbp_jax.tensor.engine"), "make_plan", broken)
    with pytest.raises(type(fault), match="broken") as raised:
        sbp.apply(lambda x: x * 3, x)
    assert raised.value is fault


def test_what_is_meant_is_still_caught() -> None:
    """Meshes that pins do not fit, or nothing fits on, are passed over; what a function gets wrong is said by name."""
    two = plan(8, pins=({"a": "B, S(1)", "b": None}, None))
    assert two.placement.ndim == 2 and "chosen of" in two.notes[-1] and ": 8 " not in two.notes[-1]
    with pytest.raises(sbp.SignatureError, match="in_sbp of 0/a"):
        plan(8, pins=({"a": "B, B, S(1)", "b": None}, None))
    with pytest.raises(sbp.PlanError, match="does not have the structure"):
        plan(8, pins=({"a": "B"}, None))
    with pytest.raises(sbp.PlanError, match="no plan was found that fits"):
        plan(8, memory_limit=1000)
    with pytest.raises(sbp.SignatureError, match="not a valid JAX type"):
        sbp.apply(lambda x: "text", sbp.ones(4, placement=sbp.placement("cpu", ranks=[0, 1])))


def test_nothing_found_in_time_is_not_that_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact search falls back on the fixed strategies where its own time was up, not where nothing fits."""

    def none(error: TooSmall) -> Any:
        def search(_: Task) -> Found | None:
            raise error

        return search

    monkeypatch.setattr(ilp, "search", none(OutOfTime("in vain", 1.0)))
    assert plan().solver == "ilp"
    monkeypatch.setattr(ilp, "search", none(TooSmall("nothing fits", 1.0)))
    with pytest.raises(TooSmall, match="nothing fits"):
        plan(memory_limit=1e12)


def test_what_takes_longer_than_the_planner_counts_is_said_to() -> None:
    """A model of a cluster, planned for a laptop's devices: no fault of this library, and no conflict of pins."""

    def huge(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=10_000)[0]

    where = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="cpu")
    args = f32(1_000_000, 50_000), f32(50_000, 50_000)
    with pytest.raises(sbp.PlanError, match=r"would take .* s a step on cluster 'cpu'.*cluster='h100'") as caught:
        sbp.plan(huge, *args, placement=where, config=sbp.AutoParallelConfig(memory_limit=1e18))
    assert not isinstance(caught.value, InternalError)
    config = sbp.AutoParallelConfig(memory_limit=1e18, cluster="h100")
    assert sbp.plan(huge, *args, placement=where, config=config).objective > 1000
