"""plan.profile: a step run under the profiler, measured seconds by layer that sum to the whole."""

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import sbp_jax as sbp
from sbp_jax.lower import named_in
from sbp_jax.step.profiler import _instructions, _module, _Ran, _shared

WHERE = sbp.placement("cpu", ranks=np.arange(2), axis_names=("tp",))


def step(params: Any, x: jax.Array) -> Any:
    """Two layers, the second in a loop."""

    def loss(p: Any) -> jax.Array:
        h = jnp.tanh(x @ p["first"]["w"])
        h = jax.lax.scan(lambda h, _: (jnp.tanh(h @ p["second"]["w"]), None), h, None, length=4)[0]
        return jnp.mean(h**2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    params = {name: {"w": rng.normal(size=(256, 256)).astype(np.float32)} for name in ("first", "second")}
    return jax.tree.map(jnp.asarray, params), rng.normal(size=(512, 256)).astype(np.float32)


@pytest.mark.parametrize("lowering", ["manual", "gspmd"])
def test_rows_sum_to_the_measured_step(lowering: Any, tmp_path: Path) -> None:
    params, x = arguments()
    config = sbp.AutoParallelConfig(lowering=lowering)
    run = sbp.auto_parallel(step, placement=WHERE, donate_argnums=0, config=config, in_sbp=(None, "S(0)"))
    plan = run.plan(params, x)
    assert "Measured" not in plan._repr_html_()
    found = plan.profile(params, x, repetitions=2)
    assert sum(r.seconds for r in found.rows) == pytest.approx(found.step_seconds)
    assert sum(r.predicted_seconds for r in found.rows) == pytest.approx(found.predicted_seconds)
    rows = {r.name: r for r in found.rows}
    assert rows["first"].compute_seconds > 0 and rows["second"].compute_seconds > rows["first"].compute_seconds
    assert all(r.compute_seconds >= 0 and r.boxing_seconds >= 0 for r in found.rows[:-1])
    assert sum(r.boxing_seconds for r in found.rows) > 0 if plan.bytes_on_wire and lowering == "manual" else True
    assert found.unprofiled_seconds > 0 and found.repetitions == 2
    text = str(found)
    assert re.search(r"Profile of step on cpu\[tp=2\]: .* a step, mean of 2 with the profiler on", text)
    assert "second" in text and text.splitlines()[-1].strip().startswith("all") and "100%" in text
    # The arguments are still there, though the step donates them; and the report has what was measured.
    assert np.isfinite(np.asarray(params["first"]["w"])).all()
    plan.to_html(tmp_path / "plan.html")
    assert "<h2>Measured</h2>" in (tmp_path / "plan.html").read_text()
    plan.verify()
    # A plan that was profiled is data as before.
    again = pickle.loads(pickle.dumps(plan))
    assert again.inputs == plan.inputs and "<h2>Measured</h2>" in again._repr_html_()
    assert copy.deepcopy(plan).profile(params, x, repetitions=1).repetitions == 1


def test_what_cannot_be_profiled(tmp_path: Path) -> None:
    params, x = arguments()
    plan = sbp.plan(step, params, x, placement=WHERE, donate_argnums=0)
    plan.save(tmp_path / "plan.json")
    with pytest.raises(sbp.PlanError, match=r"loaded from a file.*step\.plan\(\*args\)\.profile\(\*args\)"):
        sbp.Plan.load(tmp_path / "plan.json").profile(params, x)
    abstract = sbp.placement.abstract((2,), cluster="h100")
    with pytest.raises(sbp.PlanError, match="is abstract: no device is there"):
        sbp.plan(step, params, x, placement=abstract).profile(params, x)
    with pytest.raises(sbp.PlanError, match=r"takes arguments like those .*\(0/first/w float32\[256, 256\]"):
        plan.profile(params, x[:256])
    with pytest.raises(sbp.PlanError, match="takes arrays, not shapes"):
        plan.profile(params, jax.ShapeDtypeStruct(x.shape, x.dtype))
    with pytest.raises(sbp.PlanError, match="at least once"):
        plan.profile(params, x, repetitions=0)


def test_a_profiler_that_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made up."""
    params, x = arguments()
    plan = sbp.plan(step, params, x, placement=WHERE)
    monkeypatch.setattr("sbp_jax.step.profiler._read", lambda folder, module: {})
    with pytest.raises(sbp.PlanError, match=r"recorded no instruction of step .* nothing is measured by layer"):
        plan.profile(params, x, repetitions=1)


def test_flax_objects_are_taken_as_the_function_takes_them() -> None:
    model: Any = nnx.Linear(64, 64, rngs=nnx.Rngs(0))

    def loss(model: Any, x: Any) -> jax.Array:
        return jnp.mean(model(x) ** 2)

    x = np.ones((32, 64), np.float32)
    found = sbp.flax.jit(loss, placement=WHERE).plan(model, x).profile(model, x, repetitions=1)
    assert sum(r.seconds for r in found.rows) == pytest.approx(found.step_seconds)
    assert np.isfinite(np.asarray(model(x))).all()


HLO = """HloModule jit_step, is_scheduled=true

%body {
  %dot.1 = f32[8]{0} dot(%a, %b), metadata={op_name="jit(step)/while/body/node3/dot_general"}
  ROOT %psum.1 = f32[8]{0} all-reduce(%dot.1), metadata={op_name="jit(step)/box7/psum"}
}
ENTRY %main {
  %while.1 = (f32[8]{0}, s32[]) while(%t), body=%body, metadata={op_name="jit(step)/while"}
  %copy.1 = f32[8]{0} copy(%a)
}
"""


def test_instructions_have_nodes_and_boxings() -> None:
    found = dict(_instructions(HLO))
    assert _module(HLO) == "jit_step"
    assert found == {
        "dot.1": ("dot", (3, -1)), "psum.1": ("all-reduce", (-1, 7)), "while.1": ("while", (-1, -1)),
        "copy.1": ("copy", (-1, -1)),
    }  # fmt: skip
    assert named_in("a/node12/node13/box3/psum") == (-1, 3) and named_in("nodes/boxes") == (-1, -1)


def test_time_is_shared_and_communication_has_what_is_left() -> None:
    ran = [
        _Ran(0, 100, "while.1"),  # holds the others: nothing of its own
        _Ran(0, 10, "dot.1"),
        _Ran(5, 30, "psum.1"),  # hidden behind what is computed until 10, and from 20 on
        _Ran(20, 40, "copy.1"),
        _Ran(30, 40, "dot.1"),
        _Ran(0, 9, "not in the program"),
    ]
    assert _shared(ran, dict(_instructions(HLO))) == {"dot.1": 15.0, "psum.1": 10.0, "copy.1": 15.0}
