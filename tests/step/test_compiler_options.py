"""Options for XLA: defaults by platform, the user's over them by name, and clear errors before anything is planned."""

import contextlib
import pickle
import re
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.api import function
from sbp_jax.step import compiler_options
from sbp_jax.step.compiler_options import check_options, options_for

P8 = sbp.placement("cpu", ranks=range(8))
X, W = jnp.ones((16, 8)), jnp.full((8, 16), 0.5)
SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"
PIPELINED = set(compiler_options.collective_pipelining_options())


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.sum(jnp.exp(jnp.tanh(x @ w) + 1.0) * 2.0 - 1.0)


def config(options: Any) -> sbp.AutoParallelConfig:
    return sbp.AutoParallelConfig(compiler_options=options)


def text_of(options: Any) -> str:
    return sbp.auto_parallel(layer, placement=P8, config=config(options)).lower(X, W).compile().as_text()


def test_the_step_is_compiled_with_them() -> None:
    def kernels(text: str) -> int:
        return text.partition("ENTRY")[2].count(" = ")

    without_fusion = {"xla_disable_hlo_passes": "fusion"}
    fused = kernels(text_of(None))
    assert kernels(text_of(without_fusion)) > fused
    step = sbp.auto_parallel(layer, placement=P8, config=config(without_fusion))
    np.testing.assert_allclose(step(X, W), layer(X, W), rtol=1e-5)
    assert kernels(step.plan(X, W).compile().as_text()) > fused  # what plan.verify looks at
    np.testing.assert_allclose(jax.jit(step)(X, W), layer(X, W), rtol=1e-5)  # inside another trace JAX takes none


def test_defaults_by_platform() -> None:
    gpu = options_for("gpu", None)
    assert gpu is not None and gpu[SCHEDULER] is True and set(gpu) == {SCHEDULER} | PIPELINED
    cpu = options_for("cpu", None)
    assert cpu is not None and cpu["xla_cpu_scheduler_type"] == "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
    assert options_for("tpu", None) is None


def test_this_jaxlib_takes_the_defaults_for_gpus() -> None:
    check_options(options_for("gpu", None), "cpu")  # every XLA knows the names of all platforms


def test_users_win_by_name_and_none_removes() -> None:
    threshold = "xla_gpu_all_gather_combine_threshold_bytes"
    gpu = options_for("gpu", {SCHEDULER: False, threshold: 2**23})
    assert gpu is not None and gpu[SCHEDULER] is False and gpu[threshold] == 2**23 and set(gpu) >= PIPELINED
    gpu = options_for("gpu", {SCHEDULER: None, "xla_embed_ir_in_executable": None})
    assert gpu is not None and set(gpu) == PIPELINED
    assert options_for("gpu", dict.fromkeys({SCHEDULER, *PIPELINED})) is None


def test_defaults_for_gpus_give_way_to_xla_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--{SCHEDULER}=false --xla_disable_hlo_passes=x")
    assert set(options_for("gpu", None) or {}) == PIPELINED
    assert (options_for("gpu", {SCHEDULER: True}) or {})[SCHEDULER] is True
    assert "xla_disable_hlo_passes" in (options_for("cpu", None) or {})  # plans need these


@pytest.mark.parametrize("options, told", [
    ({"xla_nonsense": True}, r"\{'xla_nonsense': True\}: XLA for cpu \(jax .*No such compile option"),
    ({SCHEDULER: "maybe"}, r"'maybe'\}: .*not a valid bool value.*values are True or False"),
    ({SCHEDULER + "r": True}, f"Did you mean '{SCHEDULER}'"),
    ({"xla_gpu_all_gather_combine_threshold_bytes": 1.5}, "'1.5' is not a valid int64 value"),
    ({"optimization_level": "much"}, r"compiler_options=\{'optimization_level': 'much'\}"),
    ({"xla_embed_ir_in_executable": True, "xla_a": 1, SCHEDULER: True}, r"compiler_options=\{'xla_a': 1\}"),
])  # fmt: skip
def test_what_xla_refuses_is_an_error_before_planning(options: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "plan_or_rewrite", lambda *_: pytest.fail("planned first"))
    step = sbp.auto_parallel(layer, placement=P8, config=config(options))
    for call in (step, step.plan, step.lower):
        with pytest.raises(sbp.SbpError, match=told):
            call(X, W)


@pytest.mark.parametrize("options, told", [
    ("xla_gpu_autotune_level=0", "is a mapping from XLA's names to values"),
    ([(SCHEDULER, True)], "is a mapping from XLA's names to values"),
    ({3: True}, "names are text.*got 3"),
    ({f"--{SCHEDULER}": True}, f"without dashes.*Write {{'{SCHEDULER}': True}}"),
    ({f"{SCHEDULER}=true": None}, f"Write {{'{SCHEDULER}': 'true'}}"),
    ({"xla_disable_hlo_passes": ["fusion"]}, r"\['xla_disable_hlo_passes'\] is True, False, a number, text, or None"),
])  # fmt: skip
def test_what_is_no_option_is_an_error_at_once(options: Any, told: str) -> None:
    with pytest.raises(sbp.SbpError, match=told):
        config(options)


def test_they_are_no_part_of_the_plan() -> None:
    plan = sbp.plan(layer, X, W, placement=P8, config=config({"xla_embed_ir_in_executable": True}))
    assert "compiler_options" not in plan.options
    given = sbp.auto_parallel(layer, plan=plan, config=config({"xla_embed_ir_in_executable": False}))
    np.testing.assert_allclose(given(X, W), layer(X, W), rtol=1e-5)


def test_nothing_is_asked_of_xla_for_devices_that_are_not_there() -> None:
    abstract = sbp.placement.abstract((8,), axis_names=("x",), cluster="h100")
    assert sbp.plan(layer, X, W, placement=abstract, config=config({"xla_nonsense": True})).placement == abstract


def test_a_config_keeps_its_own_copy_and_can_be_hashed_and_pickled() -> None:
    given = {"xla_embed_ir_in_executable": True, SCHEDULER: False}
    made = config(given)
    given.clear()
    assert made.compiler_options == {SCHEDULER: False, "xla_embed_ir_in_executable": True}
    assert hash(made) == hash(pickle.loads(pickle.dumps(made))) and pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("around", ["explicit mesh", "trace", "thread", "debug_nans"])
def test_where_it_is_asked_makes_no_difference(around: str) -> None:
    def ask() -> None:
        compiler_options._refusal.cache_clear()
        check_options({"xla_embed_ir_in_executable": True}, "cpu")
        with pytest.raises(sbp.SbpError, match=re.escape("{'xla_b': 1}")):
            check_options({"xla_b": 1}, "cpu")

    if around == "trace":
        jax.jit(lambda x: (ask(), x)[1])(1.0)
        jax.grad(lambda x: (ask(), x)[1])(1.0)
        return
    if around == "thread":
        failed: list[BaseException] = []

        def run() -> None:
            try:
                ask()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run) for _ in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not failed
        return
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    context: contextlib.AbstractContextManager[Any]
    context = jax.debug_nans(True) if around == "debug_nans" else jax.set_mesh(mesh)
    with context:
        ask()
