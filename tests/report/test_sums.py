"""Every table's rows sum to the whole that the report's first lines state: each model of the zoo, loops included."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
import zoo
from sbp_jax.plan import PlanData
from sbp_jax.report.layers import rows
from sbp_jax.report.summary import at_peak, grouped, local_copies
from sbp_jax.report.text import render

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in zoo.MODELS if name not in ("gpt", "llama", "lstm", "moe", "vit")},
    "gpt scan remat": ("gpt", {"scan_layers": True, "remat": True}),
    "gpt accumulation of a scan": ("gpt", {"grad_accumulation": 4, "batch": 32, "scan_layers": True, "layers": 5}),
    "llama scan": ("llama", {"scan_layers": True, "remat": True}),
    "lstm": ("lstm", {}),
    "moe scan": ("moe", {"scan_layers": True, "layers": 4}),
    "vit scan": ("vit", {"scan_layers": True, "remat": True}),
}


def planned(name: str, size: str, mesh: tuple[int, int], config: sbp.AutoParallelConfig, **options: Any) -> sbp.Plan:
    """A plan in which data moves: the batch is split, as users do."""
    case = zoo.build(name, size, **options)
    where = sbp.placement.abstract(mesh, axis_names=("dp", "tp"), cluster="h100")
    return sbp.plan(
        case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0, config=config,
        in_sbp=(None, f"S({case.batch_dim}), S({case.batch_dim})"),
    )  # fmt: skip


def check(plan: sbp.Plan, cluster: sbp.Cluster | None = None) -> None:
    """Rows by layer, boxings and what is held at the peak, each against what the plan and its simulation say."""
    facts = plan.facts()
    assert facts is not None
    step = plan.simulate(cluster or sbp.cluster.get(plan.cluster))
    exposed = dict(step.waits)
    layers = rows(plan, exposed)

    def equal(parts: Any, whole: float) -> None:
        assert sum(parts) == pytest.approx(whole, rel=1e-6, abs=1e-12)

    equal((r.compute_seconds for r in layers), plan.compute_seconds)
    equal((r.boxing_seconds for r in layers), plan.boxing_seconds)
    equal((r.boxing_bytes for r in layers), plan.bytes_on_wire)
    equal((r.exposed_seconds for r in layers), step.step_seconds - step.compute_seconds)
    equal((r.peak_bytes for r in layers), plan.memory_per_device)
    assert all(r.exposed_seconds <= step.step_seconds for r in layers)
    groups, (copies, seconds) = grouped(plan), local_copies(plan.boxing_list)
    equal((g.seconds for g in groups), plan.boxing_seconds - seconds)
    equal((g.bytes for g in groups), plan.bytes_on_wire)
    equal((g.times for g in groups), sum(b.times for b in plan.boxing_list) - copies)
    equal((k.bytes for k in at_peak(plan)), plan.memory_per_device)
    assert all(sum(b for _, b in k.layers) == pytest.approx(k.bytes) for k in at_peak(plan))


def hidden(plan: PlanData) -> sbp.Cluster:
    """The plan's cluster, where every collective runs beside compute and slows it down."""
    kinds = frozenset(m.kind for b in plan.boxing_list for m in b.moves if m.is_collective)
    return dataclasses.replace(sbp.cluster.get(plan.cluster), overlaps=kinds, overlap_slowdown=0.2)


@pytest.mark.parametrize("model", MODELS)
def test_rows_sum_to_the_whole(model: str) -> None:
    name, options = MODELS[model]
    config = sbp.AutoParallelConfig(solver="greedy")
    plan = planned(name, "tiny", (2, 4), config, **options)
    assert plan.bytes_on_wire
    check(plan)
    check(plan, hidden(plan))


@pytest.mark.slow
def test_rows_of_a_scanned_gpt3_sum_to_the_whole() -> None:
    sizes = {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "vocab": 51200, "batch": 512}
    options: dict[str, Any] = {**sizes, "fused_qkv": True, "remat": True, "scan_layers": True}
    plan = planned("gpt", "gpt2", (8, 8), sbp.AutoParallelConfig(), **options)
    check(plan)
    facts = plan.facts()
    assert facts is not None and 0 < facts.exposed_seconds
    blocks = next(r for r in rows(plan, facts.exposed) if r.name == "blocks")
    assert 0 < blocks.exposed_seconds <= facts.exposed_seconds


def nested(x: jax.Array, w: jax.Array) -> Any:
    """A scan in a while loop, beside a conditional."""

    def outer(carry: Any) -> Any:
        k, h = carry
        h = jax.lax.scan(lambda h, _: (sbp.to_global(jnp.tanh(h @ w), sbp="S(1)"), None), h, None, length=5)[0]
        return k + 1, jax.lax.cond(k > 1, lambda h: h @ w, lambda h: 2 * h, h)

    return jax.lax.while_loop(lambda c: c[0] < 3, outer, (0, x))[1].sum()


def test_loops_in_loops_and_conditionals() -> None:
    x, w = jax.ShapeDtypeStruct((64, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), jnp.float32)
    where = sbp.placement.abstract((4,), cluster="h100")
    plan = sbp.plan(nested, x, w, placement=where, in_sbp=("S(1)", "S(0)"))
    assert any(b.loop >= 0 for b in plan.boxings())
    check(plan)
    check(plan, hidden(plan))


def test_what_is_printed_sums_to_what_is_printed(plan: sbp.Plan) -> None:
    """The last row of each table is the whole, as the first lines say it."""
    text = render(plan, plan.facts())
    layers = next(part for part in text.split("\n\n") if " (loss) " in part)
    total = layers.splitlines()[-1].split("  ")
    words = [x.strip() for x in total if x.strip()]
    head = text.split("\n\n")[0]
    compute, boxing = re.findall(r"compute (\S+ \S+?), boxing (\S+ \S+?);", head)[0]
    waits = re.findall(r"(\S+ \S+) \(\d+%\) waits", head)[0]
    assert words[:4] == ["all", compute, boxing, waits]
