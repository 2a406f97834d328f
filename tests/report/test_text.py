"""print(plan): by layer, the most expensive boxings with their lines, memory, what other hardware would change."""

import pytest

import sbp_jax as sbp
from report_case import line_of, make
from sbp_jax.report.units import human_bytes, human_seconds, signed
from sbp_jax.simulate import with_faster_links


def section(text: str, title: str) -> str:
    """The part of a report under a title, up to the next empty line after its table."""
    start = text.index(title)
    rest = text[start:].split("\n\n")
    return "\n\n".join(rest[:2])


def test_a_row_for_each_layer(plan: sbp.Plan) -> None:
    layers = section(str(plan), "By layer")
    up = next(line for line in layers.splitlines() if line.lstrip().startswith("up "))
    assert "w [1024,8192] S(1)" in up and "[16,8192] S(1)" in up
    down = next(line for line in layers.splitlines() if line.lstrip().startswith("down "))
    assert "w [8192,1024] S(0)" in down and "[16,1024] P" in down


def test_boxings_name_the_users_line(plan: sbp.Plan) -> None:
    moves = section(str(plan), "Where data moves")
    assert f"{line_of('the second product')}" in moves and "P -> B" in moves and "all_reduce" in moves


def test_memory_says_what_holds_it(plan: sbp.Plan) -> None:
    memory = section(str(plan), "Memory of a device")
    for kind in ("parameters", "optimizer state", "batch"):
        assert kind in memory
    assert "of the 72 GiB that it may hold" in memory
    assert sum(h.bytes for h in plan.insight.at_peak) == pytest.approx(plan.memory_per_device)


def test_it_is_narrow_enough_and_the_same_when_loaded(plan: sbp.Plan, loaded: sbp.Plan) -> None:
    assert max(map(len, str(plan).splitlines())) <= 160
    assert str(loaded) == str(plan)


def test_a_memory_limit_that_binds_is_told() -> None:
    free = make(batch=2048, config=sbp.AutoParallelConfig(overlap=False))
    assert "nothing: the plan is as cheap" in str(free)
    limit = 0.8 * free.memory_per_device
    tight = make(batch=2048, config=sbp.AutoParallelConfig(memory_limit=limit, overlap=False))
    assert tight.statistics["free_seconds"] == pytest.approx(free.objective, rel=1e-6)
    assert tight.step_seconds > free.step_seconds
    assert f"{human_seconds(free.objective)} instead of {human_seconds(tight.objective)}" in str(tight)


def test_faster_links_take_the_plans_own_seconds(plan: sbp.Plan) -> None:
    same = with_faster_links(plan, plan.simulate().cluster, {})
    assert same.step_seconds == pytest.approx(plan.simulate().step_seconds)
    faster = with_faster_links(plan, plan.simulate().cluster, {"node": 1e6})
    # What is left of a collective is latency: less than all of it, more than nothing.
    assert 0 < faster.communication_seconds["node"] < plan.simulate().communication_seconds["node"]
    facts = plan.facts()
    assert facts is not None and [what for what, _ in facts.faster] == ["node links twice as fast"]


def test_units() -> None:
    assert human_bytes(1536) == "1.5 KiB" and human_bytes(1023) == "0.999 KiB"
    assert human_seconds(-1.5e-3) == "-1.5 ms" and human_seconds(1e-12) == "<1 ns" and human_seconds(0) == "0 s"
    assert signed("2 s", 2.0) == "+2 s" and signed("-2 s", -2.0) == "-2 s" and signed("0 s", 0.0) == "±0"
