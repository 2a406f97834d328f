"""OneFlow's controls and ZeRO's stages: what each does to a plan."""

import importlib
import itertools
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sbp_jax as sbp
from sbp_jax.planner.memory.infeasible import OutOfTime
from sbp_jax.signature import Split
from zoo import gpt, mlp

to_global: Any = sbp.to_global


def gpus(*shape: int) -> sbp.Placement:
    return sbp.placement.abstract(shape, axis_names=("dp", "tp", "pp")[: len(shape)], cluster="a100-80")


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


TX = optax.adam(1e-3)
SHAPES = {"a": f32(1024, 4096), "b": f32(4096), "c": f32(4096, 1024)}
STATE = {"w": SHAPES, "opt": jax.eval_shape(TX.init, SHAPES)}


def step(state, x):
    def loss(w):
        return jnp.mean((jax.nn.gelu(x @ w["a"] + w["b"]) @ w["c"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["w"])
    updates, opt = TX.update(grads, state["opt"], state["w"])
    return {"w": optax.apply_updates(state["w"], updates), "opt": opt}, value


def plan(fn=step, *args, where=None, donate: Any = 0, in_sbp=None, out_sbp=None, **config) -> sbp.Plan:
    options: dict[str, Any] = {"overlap": False} | config  # the plain sum: what options add to it
    return sbp.plan(fn, *(args or (STATE, f32(8192, 1024))), placement=where or gpus(8), donate_argnums=donate,
                    in_sbp=in_sbp, out_sbp=out_sbp, config=sbp.AutoParallelConfig(**options))  # fmt: skip


def leaves(plan: sbp.Plan, part: str) -> dict[str, str]:
    return {leaf.path: str(leaf.signature) for leaf in plan.inputs if part in leaf.path and leaf.shape}


def test_user_sbp_is_obeyed_or_ignored() -> None:
    def f(x, w):
        return to_global(x @ w, "S(1)").sum(), x * 2

    pins = {"in_sbp": ("S(1)", None), "out_sbp": (None, "S(0)")}
    args = f32(64, 64), f32(64, 64)
    obeyed = plan(f, *args, donate=(), **pins)
    ignored = plan(f, *args, donate=(), ignore_user_sbp=True, **pins)
    free = plan(lambda x, w: ((x @ w).sum(), x * 2), *args, donate=())
    assert str(obeyed.inputs[0].signature) == "S(1)" and str(obeyed.outputs[1].signature) == "S(0)"
    assert any(str(s) == "S(1)" for _, outs in obeyed.strategies for s in outs)
    assert ignored.objective == pytest.approx(free.objective) and ignored.objective < obeyed.objective
    # A pin that cannot be is no error when pins are not read.
    assert plan(f, *args, donate=(), ignore_user_sbp=True, in_sbp=("S(0), S(1), B", None)).objective


def test_computation_cost_ratio_weighs_compute_against_boxing() -> None:
    """With compute all but free, nothing is worth moving data for."""
    physical, light = plan(), plan(computation_cost_ratio=0.01)
    assert physical.bytes_on_wire > 0 and light.bytes_on_wire < physical.bytes_on_wire
    assert light.step_seconds > physical.step_seconds and light.objective < light.step_seconds
    assert light.optimality_gap == physical.optimality_gap == 0
    expected = 0.01 * light.compute_seconds + light.boxing_seconds
    assert light.objective == pytest.approx(expected, rel=2e-2)  # holding is not weighed


def test_wait_time_makes_transfers_fewer() -> None:
    free, dear = plan(), plan(wait_time=1e-3, trunk_algo=False)

    def transfers(p: sbp.Plan) -> float:
        return sum(b.times * sum(m.is_collective for m in b.moves) for b in p.boxings())

    assert transfers(free) > transfers(dear)
    # The wait is in what was minimised, not in the seconds predicted.
    some = plan(wait_time=1e-6, trunk_algo=False)
    talking = sum(b.times for b in some.boxings() if any(m.is_collective for m in b.moves))
    assert some.objective == pytest.approx(some.step_seconds + 1e-6 * talking, rel=1e-3)


def branches(x, w, small, v):
    """A trunk of large products, and a branch beside it whose small result is needed at the end only."""
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x.sum(), (jnp.tanh(small @ v)).sum()


def test_the_trunk_covers_the_wait_of_branches() -> None:
    """The branch's inputs lie split, and its sum is to be whole: it must talk. Off the trunk that wait is free."""
    args = f32(4096, 4096), f32(4096, 4096), f32(64, 64), f32(64, 64)
    pins = {"in_sbp": ("S(0)", "B", "S(0)", "B"), "out_sbp": "B"}
    all_wait, covered, none = (
        plan(branches, *args, donate=(), wait_time=wait, trunk_algo=trunk, **pins)
        for wait, trunk in ((1e-4, False), (1e-4, True), (None, True))
    )
    assert none.objective < covered.objective < all_wait.objective
    assert covered.objective == pytest.approx(none.objective + 1e-4, rel=1e-3)  # the trunk's own result still waits
    assert all_wait.objective == pytest.approx(none.objective + 2e-4, rel=1e-3)


def test_the_trunk_changes_a_plan() -> None:
    """With a wait, the branch is better computed whole everywhere; where the trunk covers it, it is split."""
    args = f32(8192, 4096), f32(4096, 4096), f32(4096, 2048), f32(2048, 512)
    pins = {"in_sbp": ("S(0)", "B", "B", "B"), "out_sbp": "B"}

    def split_branch(trunk: bool) -> bool:
        p = plan(branches, *args, donate=(), wait_time=3e-4, trunk_algo=trunk, **pins)
        return (
            any(str(b.src) == "P" and b.user == p.boxings()[-1].user for b in p.boxings())
            and len([b for b in p.boxings() if any(m.is_collective for m in b.moves)]) > 1
        )

    assert split_branch(True) and not split_branch(False)


def four_readers(x, w):
    """A product that two ops read by rows and two by columns."""
    y = x @ w
    by_rows = to_global(y, "S(0)"), to_global(y, "S(0)", grad_sbp="S(1)")
    by_columns = to_global(y, "S(1)"), to_global(y, "S(1)", grad_sbp="S(0)")
    return (
        jnp.sin(by_rows[0]).sum() + jnp.cumsum(by_rows[1], 1).max()
        + jnp.cos(by_columns[0]).sum() + jnp.cumsum(by_columns[1], 0).max()
    )  # fmt: skip


def test_the_collector_holds_two_signatures_at_once() -> None:
    """With one shared signature, two of the readers would pay an all-to-all each, so the product is made whole on every
    device; with two it is made by rows, and turned once."""
    args = f32(16384, 64), f32(64, 16384)
    one, two = (plan(four_readers, *args, donate=(), in_sbp=("B", "B"), sbp_collector=on) for on in (False, True))
    assert two.step_seconds < 0.95 * one.step_seconds

    def products(p: sbp.Plan) -> set[str]:
        return {str(b.src) for b in p.boxings() if b.shape == (16384, 16384)}

    assert products(one) == {"B"} and products(two) == {"S(0)"}
    # What is priced is what the plan does.
    assert two.objective == pytest.approx(two.step_seconds, rel=1e-4)
    assert two.optimality_gap == one.optimality_gap == 0


def test_the_collector_counts_both_copies_in_memory() -> None:
    args = f32(4096, 512), f32(512, 4096)
    p = plan(four_readers, *args, donate=(), in_sbp=("B", "B"), sbp_collector=True)
    assert p.memory_per_device > 2 * 4 * 4096 * 4096 / 8


def test_less_memory_for_a_few_percent() -> None:
    args = STATE, f32(16384, 1024)
    first, lean = plan(step, *args), plan(step, *args, prefer_less_memory=True)
    assert lean.memory_per_device < 0.98 * first.memory_per_device
    assert lean.objective <= 1.05 * first.objective
    assert any("less memory preferred" in note for note in lean.notes)
    assert lean.bound <= first.objective * (1 + 1e-9)


def test_a_few_bytes_are_not_worth_any_seconds() -> None:
    """0.01 % of the peak could be had for 0.2 % of the step's seconds."""
    args = STATE, f32(65536, 1024)
    first, lean = plan(step, *args), plan(step, *args, prefer_less_memory=True)
    assert (lean.memory_per_device, lean.objective) == (first.memory_per_device, first.objective)
    assert any("holds even 0.1% less" in note for note in lean.notes)


@pytest.mark.parametrize("mesh", [(8,), (2, 4)], ids=str)
@pytest.mark.parametrize("stage", range(4))
def test_zero_stages_on_any_mesh(stage: int, mesh: tuple[int, ...]) -> None:
    p = plan(where=gpus(*mesh), zero_stage=stage)
    weights, state = leaves(p, "0/w/"), leaves(p, "0/opt/")
    n = len(mesh)

    def splits(signature: str) -> int:
        return sum(isinstance(c, Split) for c in sbp.Signature.parse(signature))

    if stage == 0:
        for path, signature in state.items():
            assert signature == weights["0/w/" + path[-1]]
    if stage >= 1:
        assert {splits(s) for s in state.values()} == {n}
    if stage >= 2:  # no gradient of a parameter's shape is ever reduced to a whole one
        shapes = {tuple(s.shape) for s in SHAPES.values()}
        whole = [b for b in p.boxings() if b.shape in shapes and b.src.has_partial and splits(str(b.dst)) < n]
        assert not whole
    if stage == 3:
        assert {splits(s) for s in weights.values()} == {n}


def test_zero_stages_in_order() -> None:
    """Each stage asks for more, so none is cheaper than the one before, and none cheaper than a free choice."""
    objective = [plan(zero_stage=k).objective for k in (None, 1, 2, 3)]
    assert all(b >= a * (1 - 1e-9) for a, b in itertools.pairwise(objective))


def test_zero_with_another_solver_and_a_pin() -> None:
    pinned = plan(zero_stage=1, solver="greedy", in_sbp=({"w": None, "opt": None}, "S(0)"))
    assert set(leaves(pinned, "0/opt/").values()) <= {"S(0)", "S(1)"}
    state = jax.tree.map(lambda _: None, STATE, is_leaf=lambda x: isinstance(x, jax.ShapeDtypeStruct))
    state["opt"] = (state["opt"][0]._replace(mu={"a": "B", "b": None, "c": None}), state["opt"][1])
    p = plan(zero_stage=1, in_sbp=(state, None))
    assert leaves(p, "mu/a") == {"0/opt/0/mu/a": "B"} and leaves(p, "nu/a") != {"0/opt/0/nu/a": "B"}
    assert any("mu/a pinned" in note for note in p.notes)
    assert plan(zero_stage=0, solver="zero3").objective >= plan(zero_stage=0).objective * (1 - 1e-9)


def test_zero_says_which_leaves_cannot_be_split() -> None:
    case = mlp.build("tiny", classes=7)
    p = plan(case.step, jax.eval_shape(case.init), case.batch(0), zero_stage=1)
    assert any(n.startswith("zero_stage=1: as nearly split as can be: ") and "3/b (7)" in n for n in p.notes)


def test_pinned_parameters_say_what_data_parallelism_needs_to_know() -> None:
    """A loss donates nothing: of its arguments, those that are pinned whole are the state."""
    where = sbp.placement("cpu", ranks=range(8), axis_names="dp")
    shapes = {"w": jax.ShapeDtypeStruct((16, 8), "float32"), "b": jax.ShapeDtypeStruct((8,), "float32")}

    def gradients(params, x):
        return jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] + p["b"]) ** 2))(params)

    config = sbp.AutoParallelConfig(solver="data_parallel")
    x = jax.ShapeDtypeStruct((32, 16), "float32")
    p = sbp.plan(gradients, shapes, x, placement=where, config=config, in_sbp=("B", None), out_sbp="B")
    assert {leaf.path: str(leaf.signature) for leaf in p.inputs} == {"0/b": "B", "0/w": "B", "1": "S(0)"}
    assert [b.collective for b in p.boxings() if b.collective != "none"] == ["all_reduce"] * 3
    with pytest.raises(sbp.PlanError, match="or pin the parameters"):
        sbp.plan(gradients, shapes, x, placement=where, config=config)


def test_zero_and_experts_need_to_know_the_state() -> None:
    with pytest.raises(sbp.PlanError, match=r"zero_stage=1 speaks of parameters.*donate_argnums=0 say"):
        plan(zero_stage=1, donate=())
    with pytest.raises(sbp.PlanError, match=r"solver='megatron' speaks of parameters.*or use solver='ilp'"):
        plan(solver="megatron", donate=())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_stage": 4}, r"zero_stage is None .the planner's choice., 0, 1, 2 or 3; got 4"),
        ({"zero_stage": True}, "got True"),
        ({"wait_time": -1.0}, "wait_time must be 0 or more; got -1.0"),
        ({"time_limit": -1.0}, "time_limit must be 0 or more"),
        ({"time_limit": ""}, "time_limit is a number of seconds, 0 or more, or None; got ''"),
        ({"gap": "1%"}, "gap is a number, 0 or more, or None; got '1%'"),
        ({"memory_limit": [16e9]}, "memory_limit is bytes per device, more than 0; got .16000000000.0."),
        ({"computation_cost_ratio": float("nan")}, "computation_cost_ratio must be 0 or more; got nan"),
        ({"gap": -0.1}, "gap must be 0 or more"),
    ],
)
def test_bad_controls(config, message: str) -> None:
    with pytest.raises(sbp.PlanError, match=message):
        sbp.AutoParallelConfig(**config)


@pytest.mark.parametrize("mesh", [(8,), (2, 4)], ids=str)
def test_too_little_time_gives_the_best_known_plan_and_says_so(mesh: tuple[int, ...]) -> None:
    case = gpt.build("tiny", layers=12, dropout=0.0)
    args = jax.eval_shape(case.init), case.batch(0)
    with pytest.warns(UserWarning, match=r"time_limit=0.001 s is too short.*at most \d+% of it could be saved .proven"):
        p = plan(case.step, *args, where=gpus(*mesh), time_limit=0.001)
    assert any("time_limit=0.001 s is too short" in note for note in p.notes)
    assert 0 < p.bound <= p.objective < 1 and 0 < p.optimality_gap < 1
    assert p.statistics["solve_seconds"] < 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan(time_limit=60.0).optimality_gap == 0


def test_after_a_users_time_nothing_more_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(goal):
        goal.budget.seconds = 0.0
        raise OutOfTime("no plan was found in time", math.inf)

    ilp = importlib.import_module("sbp_jax.planner.methods.ilp")
    monkeypatch.setattr(ilp, "search", late)
    monkeypatch.setattr(ilp, "cheapest", lambda *_, **__: pytest.fail("searched on"))
    with pytest.raises(sbp.PlanError, match="in time"):
        plan(time_limit=60.0, effort="quick", memory_limit=1e9)


def test_too_little_time_and_memory() -> None:
    with pytest.raises(sbp.PlanError, match=r"time_limit=0.001 s is too short to find a plan that fits into 100 bytes"):
        plan(time_limit=0.001, memory_limit=100.0)


@pytest.mark.parametrize("mesh", [(2, 4), (2, 2, 2), (7, 1), (8,)], ids=str)
def test_nothing_to_split(mesh: tuple[int, ...]) -> None:
    p = plan(lambda w, x: jnp.tanh(x @ w).sum(), f32(11, 13), f32(17, 11), where=gpus(*mesh), donate=())
    assert all(c == sbp.broadcast for leaf in p.inputs for c in leaf.signature)
    (note,) = p.notes
    assert note.startswith("nothing is split") and "No dimension is a multiple of a mesh axis" in note
    assert "w 11x13" in note and f"dp ({mesh[0]})" in note and "Pad a dimension" in note


def test_only_scalars() -> None:
    p = plan(lambda a, b: a * b + 1, np.float32(1), np.float32(2), donate=())
    assert p.notes == ["nothing is split: every one of the 8 devices computes the whole step. All values are scalars"]


def test_nothing_worth_splitting() -> None:
    p = plan(lambda x: jnp.tanh(x), f32(8, 8), donate=(), in_sbp=("B",), out_sbp="B")
    assert "That is the cheapest, given the pins: " in p.notes[0]


def test_one_device_needs_no_note() -> None:
    assert plan(lambda x: x + 1, f32(7), where=gpus(1), donate=()).notes == []
