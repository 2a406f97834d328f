"""Plans in a world of four processes: made by process 0, used by all; differences are errors on all of them."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax import processes
from sbp_jax.planner.memory.infeasible import TooSmall
from world import World

X = np.arange(256, dtype=np.float32).reshape(16, 16) / 100


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(processes=4, devices=2) as world:
        yield world


def everywhere() -> sbp.Placement:
    return sbp.placement("cpu", np.arange(8).reshape(4, 2), axis_names=("dp", "tp"))


def planned(fn: Callable[..., Any], config: Any = None, **options: Any) -> Any:
    return sbp.auto_parallel(fn, placement=everywhere(), config=config, **options)


def loss(x: jax.Array) -> jax.Array:
    return (jnp.tanh(x @ x.T) ** 2).mean()


def case_one_plan() -> Any:
    import sbp_jax.api.function as front

    made = []
    search = front.plan_or_rewrite
    front.plan_or_rewrite = lambda *args: (made.append(1), search(*args))[1]
    try:
        step = planned(loss)
        value = float(step(X))
    finally:
        front.plan_or_rewrite = search
    plan = step.plan(X)
    return value, len(made), json.dumps(plan.to_json()), str(plan), plan.verify().exact


def test_process_0_plans_and_all_run_its_plan(world: World) -> None:
    found = world.run(case_one_plan)
    assert [x[1] for x in found] == [1, 0, 0, 0]
    assert len({x[2] for x in found}) == 1 and len({x[3] for x in found}) == 1
    assert all(x[4] for x in found)
    np.testing.assert_allclose([x[0] for x in found], float(jax.jit(loss)(X)), rtol=1e-6)


def case_alternative() -> Any:
    """Another signature asked of a plan: planned by the process that asks, and by nobody else."""
    step = planned(lambda x: (x @ x.T).sum(), in_sbp="S(0), B")
    plan = step.plan(X)
    if jax.process_index() != 3:
        return ""
    line = next(d.title for d in plan.explain("0").items)
    return f"{line} {plan.anew is not None and plan.anew().function}"


def test_a_process_may_plan_once_more_by_itself(world: World) -> None:
    assert world.run(case_alternative)[3].endswith("<lambda>")


def case_cache(folder: str) -> Any:
    mine = Path(folder) / str(jax.process_index())
    config = sbp.AutoParallelConfig(cache=mine)
    first = planned(loss, config).plan(X)
    again = planned(loss, config).plan(X)
    return mine.is_dir(), "from_cache" in first.statistics, "from_cache" in again.statistics


def test_the_cache_is_process_0s(world: World, tmp_path: Path) -> None:
    found = world.run(case_cache, str(tmp_path))
    assert found == [[True, False, True], *[[False, False, True]] * 3]


def case_differing(what: str) -> Any:
    me = jax.process_index()
    odd = me in (1, 2)
    fn: Any = {
        "op": lambda x: jnp.cos(x) if odd else jnp.sin(x),
        "axis": lambda x: x.sum(int(odd)),
        "constant": lambda x: x * (1.0 + odd),
    }.get(what, jnp.sin)
    x = X[:8] if what == "shape" and odd else X.astype("int32") if what == "dtype" and odd else X
    config = sbp.AutoParallelConfig(pad=True) if what == "option" and odd else None
    options: dict[str, Any] = {"in_sbp": "S(0), B" if odd else "B, S(0)"} if what == "pin" else {}
    if what == "donated":
        options = {"donate_argnums": (0,) if odd else None}
    if what == "order":

        def step_a(x: Any) -> Any:
            return x + 1

        def step_b(x: Any) -> Any:
            return x * 2

        fn = step_b if odd else step_a
    with jax.enable_x64(what == "x64" and odd):
        planned(fn, config, **options)(x)


DIFFERENCES = {
    "op": (r"First difference, program: ranks 0, 3: op 1 \(test_agreed_plans.py:\d+ \(.*\)\): sin of", "cos of"),
    "axis": (r"reduce_sum axes=\(0\) of .*reduce_sum axes=\(1\) of", ""),
    "constant": (r"mul of %0:float32\[16, 16\], 1.0:float32.*; ranks 1, 2: .* 2.0:float32", ""),
    "shape": (r"First difference, argument: ranks 0, 3: 0 is float32\[16, 16\]; ranks 1, 2: 0 is float32\[8, 16\]", ""),
    "dtype": (r"0 is float32\[16, 16\]; ranks 1, 2: 0 is int32\[16, 16\]", ""),
    "option": (r"First difference, option: ranks 0, 3: nothing; ranks 1, 2: pad=True", ""),
    "pin": (r"First difference, pin: ranks 0, 3: \('B, S\(0\)'", "S(0), B"),
    "donated": (r"First difference, donated: ranks 0, 3: \[\]; ranks 1, 2: \[\(0, 0\)\]", ""),
    "order": (r"First difference, function: ranks 0, 3: step_a; ranks 1, 2: step_b", ""),
    "x64": (r"First difference, setting of JAX: ranks 0, 3: jax_enable_x64=False; ranks 1, 2: jax_enable_x64=True", ""),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_is_named_on_every_process(world: World, what: str) -> None:
    pattern, also = DIFFERENCES[what]
    found = world.errors(case_differing, what, timeout=60)
    assert len({str(x) for x in found}) == 1, found
    assert found[0] is not None and found[0][0] == "ProcessError"
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(found[0][1])
    assert also in found[0][1]


def case_failing(what: str) -> Any:
    me = jax.process_index()
    if what == "trace":

        def step(x: Any) -> Any:
            if me == 2:
                raise RuntimeError("no such thing")
            return x + 1

        planned(step)(X)
    elif what == "memory":
        planned(loss, sbp.AutoParallelConfig(memory_limit=100))(X)
    elif what == "pin":
        planned(loss, in_sbp="S(7), B")(X)
    elif what == "given":
        sbp.auto_parallel(loss, plan=_alone(lambda x: x.sum() if me == 1 else loss(x)))(X)


def _alone(fn: Callable[..., Any]) -> Any:
    """A plan that this process made for itself, saved and read, as from a file of its own."""
    made = planned(fn)
    made._is_alone = True
    return sbp.Plan.from_json(json.loads(json.dumps(made.plan(X).to_json())))


def test_what_process_0_cannot_plan_is_the_same_error_everywhere(world: World) -> None:
    with pytest.raises(TooSmall) as one:
        planned(loss, sbp.AutoParallelConfig(memory_limit=100))(X)
    assert world.errors(case_failing, "memory") == [("TooSmall", str(one.value))] * 4
    pins = world.errors(case_failing, "pin")
    assert {x and x[0] for x in pins} == {"PinError"} and len({str(x) for x in pins}) == 1


def test_what_one_process_cannot_trace_ends_the_wait_of_all(world: World) -> None:
    start = time.monotonic()
    found = world.errors(case_failing, "trace")
    assert time.monotonic() - start < 30
    assert found[2] == ("RuntimeError", "no such thing")
    others = [x for x in (found[0], found[1], found[3]) if x]
    assert {x[0] for x in others} == {"ProcessError"}
    assert all("the plan of step" in x[1] and "rank 2: RuntimeError: no such thing" in x[1] for x in others)


def test_a_given_plan_that_does_not_fit_one_process_is_an_error_on_all(world: World) -> None:
    found = world.errors(case_failing, "given")
    assert [x and x[0] for x in found] == ["ProcessError", "PlanError", "ProcessError", "ProcessError"]
    assert all(x and "the plan was made for another function" in x[1] for x in found)


def case_given() -> Any:
    step = sbp.auto_parallel(loss, plan=_alone(loss))
    return float(step(X))


def test_a_given_plan_is_compared_and_runs(world: World) -> None:
    np.testing.assert_allclose(world.run(case_given), float(jax.jit(loss)(X)), rtol=1e-6)


def case_absent(seconds: float, absent: int) -> Any:
    import os

    me = jax.process_index()
    os.environ["SBP_AGREEMENT_SECONDS"] = str(seconds)
    try:
        if me == absent:
            return "elsewhere"
        start = time.monotonic()
        try:
            planned(jnp.sin)(X)
        except sbp.SbpError as error:
            return type(error).__name__, str(error), time.monotonic() - start
    finally:
        del os.environ["SBP_AGREEMENT_SECONDS"]
    return "no error"


def case_meeting() -> Any:
    """The absent one asks as well, so that all have asked as often; then all ask again."""
    told = ""
    if jax.process_index() == 2:
        try:
            planned(jnp.sin)(X)
        except sbp.SbpError as error:
            told = str(error)
    return told, float(planned(loss)(X))


def test_who_does_not_come_is_named_within_the_limit(world: World) -> None:
    found = world.run(case_absent, 2.0, 2)
    assert found.pop(2) == "elsewhere"
    missing = "rank 2 has not asked for it within 2 s, of ranks 0, 1, 2, 3"
    assert all(x[0] == "ProcessError" and missing in x[1] for x in found), found
    assert all(x[2] < 20 for x in found)
    late = world.run(case_meeting)
    assert "rank 2 has not asked for it" in late[2][0]
    np.testing.assert_allclose([x[1] for x in late], float(jax.jit(loss)(X)), rtol=1e-6)


def case_some() -> Any:
    """A placement on processes 1 and 2: these two agree, the others are not asked."""
    where = sbp.placement("cpu", ranks=[2, 3, 4, 5])
    step = sbp.auto_parallel(loss, placement=where)
    if jax.process_index() in (1, 2):
        return float(step(X))
    return None


def test_processes_without_devices_of_the_placement_need_not_come(world: World) -> None:
    found = world.run(case_some)
    assert found[0] is None and found[3] is None
    np.testing.assert_allclose(found[1:3], float(jax.jit(loss)(X)), rtol=1e-6)


def case_over(needed: int) -> Any:
    """Process 0 finds that XLA needs too much for the first plan; the others that it needs what ``needed`` says."""
    from sbp_jax.api import function as front

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w.T) ** 2))(w)

    w, x = jax.ShapeDtypeStruct((128, 1024), jnp.float32), jax.ShapeDtypeStruct((512, 128), jnp.float32)
    limit = planned(step, donate_argnums=0).plan(w, x).memory_per_device
    fitted = planned(step, sbp.AutoParallelConfig(memory_limit=limit), donate_argnums=0)
    first = fitted.plan(w, x).memory_per_device
    measured = front.account
    told = iter([1.1 * limit, limit])
    front.account = lambda _: int(next(told)) if jax.process_index() == 0 else needed
    try:
        # One process alone may lower it: what is shared is not planned anew for that.
        alone = fitted.lower(w, x).compile() if jax.process_index() == 2 else None
        result = fitted(np.full(w.shape, 0.01, np.float32), np.ones(x.shape, np.float32))
    finally:
        front.account = measured
    plan = fitted.plan(w, x)
    finite = all(np.isfinite(s.data).all() for s in result.addressable_shards)
    return plan.memory_per_device < first, json.dumps(plan.to_json()["signatures"]), finite, alone is not None


@pytest.mark.parametrize("needed", [0, 10**9])
def test_what_xla_needs_is_what_process_0_says(world: World, needed: int) -> None:
    found = world.run(case_over, needed)
    assert len({x[1] for x in found}) == 1
    assert all(x[0] and x[2] for x in found) and [x[3] for x in found] == [False, False, True, False]


def case_own() -> Any:
    """On its own devices each process plans for itself, in any order."""
    me = jax.process_index()
    where = sbp.placement("cpu", ranks=[2 * me, 2 * me + 1])
    step = sbp.auto_parallel(lambda x: (x * (me + 1)).sum(), placement=where)
    return float(step(X)) if me % 2 else None


def test_on_its_own_devices_a_process_agrees_with_nobody(world: World) -> None:
    np.testing.assert_allclose([x or 0 for x in world.run(case_own)], [0, 2 * X.sum(), 0, 4 * X.sum()], rtol=1e-6)


def case_seconds() -> Any:
    """Seconds of an agreement on a small text, all processes being there."""
    took = []
    for _ in range(20):
        processes.store().barrier("before the agreement", 60)
        start = time.perf_counter()
        asked = processes.request(range(4))
        assert asked is not None
        asked.agree("it", {"a": "b"}, lambda: "x" * 2000)
        took.append(time.perf_counter() - start)
    return sorted(took)[len(took) // 2]


def test_an_agreement_takes_little(world: World) -> None:
    seconds = world.run(case_seconds)
    assert max(seconds) < 0.5  # a few ms on an idle machine
