"""Simulations of planned training steps, their sums, their files, their traces."""

import json
import re
from pathlib import Path

import pytest

import sbp_jax as sbp
from sbp_jax.simulate import Simulation
from zoo import gpt


def planned(mesh: tuple[int, ...] = (2, 4), **options: object) -> sbp.Plan:
    case = gpt.build("tiny", **options)
    where = sbp.placement.abstract(mesh, axis_names=("dp", "tp")[: len(mesh)], cluster="a100-80")
    return sbp.plan(case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0)


@pytest.fixture(scope="module")
def plan() -> sbp.Plan:
    return planned(batch=64, seq=128, hidden=512)


@pytest.fixture(scope="module")
def step(plan: sbp.Plan) -> Simulation:
    return plan.simulate()


def test_sums_agree(plan: sbp.Plan, step: Simulation) -> None:
    communication = sum(step.communication_seconds.values())
    moved = [m for b in plan.boxings() for m in b.moves if m.is_collective]
    assert moved and 0 < communication <= plan.boxing_seconds
    # The plan's compute also prices the holding of arguments, and leaves out slower compute beside collectives.
    assert step.compute_seconds == pytest.approx(plan.compute_seconds, rel=0.05)
    assert step.compute_seconds <= step.step_seconds <= step.compute_seconds + communication
    assert step.exposed_communication_seconds == pytest.approx(step.step_seconds - step.compute_seconds)
    assert sum(e.flops for e in step.events) == pytest.approx(step.flops)
    assert max(held for _, held in step.memory) == step.peak_memory_bytes == plan.memory_per_device
    assert sum(e.seconds for e in step.events if e.track == "compute") == pytest.approx(step.compute_seconds)


def test_every_boxing_has_its_place(plan: sbp.Plan) -> None:
    last = len(plan.nodes)
    assert all(0 <= b.made_at < b.needed_at <= last and b.loop == -1 for b in plan.boxings())
    nodes = [node for node, _ in plan.timeline.runs]
    assert nodes == sorted(nodes) and max(nodes) < last


def test_a_saved_plan_gives_the_same_step(plan: sbp.Plan, step: Simulation, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    again = sbp.Plan.load(tmp_path / "plan.json")
    assert again.timeline == plan.timeline and again.boxing_list == plan.boxing_list
    assert again.simulate() == step == sbp.simulate(again)
    assert (tmp_path / "plan.json").stat().st_size < 200_000  # half of it: layers, decisions and their alternatives


def test_labels_name_the_users_lines(step: Simulation) -> None:
    products = [e for e in step.events if e.name.startswith("dot_general")]
    assert products and all(re.search(r"gpt\.py:\d+ \(\w+", e.detail) for e in products)


@pytest.mark.parametrize("options", [{}, {"scan_layers": True}, {"grad_accumulation": 4, "scan_layers": True}])
def test_the_trace_keeps_to_the_format(options: dict[str, object], tmp_path: Path) -> None:
    step = planned((8,), **options).simulate()
    step.save_trace(tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    events = data["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "C"}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == ["compute", *sorted(step.communication_seconds)]
    end: dict[int, float] = {}
    for e in events:
        assert isinstance(e["name"], str) and isinstance(e["pid"], int) and e["ts"] >= 0
        if e["ph"] == "X":
            assert e["tid"] in names and e["dur"] > 0
            assert e["ts"] >= end.get(e["tid"], 0.0) - 1e-6 * step.step_seconds * 1e6
            end[e["tid"]] = e["ts"] + e["dur"]
    counters = [e["ts"] for e in events if e["ph"] == "C"]
    assert counters == sorted(counters) and counters[-1] <= step.step_seconds * 1e6
    assert max(end.values()) <= step.step_seconds * 1e6 * (1 + 1e-9)
    assert any("more iterations of scan" in e["name"] for e in events) is bool(options.get("grad_accumulation"))


def test_a_trace_that_cannot_be_written(step: Simulation) -> None:
    with pytest.raises(sbp.PlanError, match=r"cannot write the trace to '/nowhere/x\.json'"):
        step.save_trace("/nowhere/x.json")


@pytest.mark.slow
def test_a_scan_of_layers_takes_as_long_as_the_layers_do() -> None:
    """Large enough that kernels and collectives of single weights are not what takes the time."""
    options = {
        "layers": 4,
        "hidden": 2048,
        "seq": 512,
        "batch": 64,
        "vocab": 1024,
        "dropout": 0.0,
        "dtype": "bfloat16",
        "remat": True,
    }
    layers, scan = (planned((8,), **options, scan_layers=s).simulate() for s in (False, True))
    assert scan.flops == pytest.approx(layers.flops, rel=0.02)
    assert scan.step_seconds == pytest.approx(layers.step_seconds, rel=0.15)


def test_collectives_of_gradients_run_beside_the_backward_pass() -> None:
    """On a cluster that overlaps nothing the step is longer, by what was hidden."""
    plan = planned((8,), layers=4, hidden=512, seq=128, batch=64)
    here = sbp.cluster.get("a100-80")
    alone = sbp.cluster.Cluster(
        here.name, here.device, here.levels, here.matmul_efficiency, here.memory_efficiency, here.op_seconds_floor,
        overlaps=frozenset(), library=here.library,
    )  # fmt: skip
    beside, apart = plan.simulate(), plan.simulate(alone)
    assert beside.exposed_communication_seconds < 0.9 * apart.exposed_communication_seconds
    assert apart.step_seconds == pytest.approx(apart.compute_seconds + sum(apart.communication_seconds.values()))


def test_the_step_of_one_device_is_its_compute() -> None:
    step = planned((1,)).simulate()
    assert step.communication_seconds == {} and step.step_seconds == step.compute_seconds
