"""Clusters: presets found by name, files read back, links by level, the cost of a collective."""

import math
from pathlib import Path

import pytest

import sbp_jax as sbp
from sbp_jax import cluster

TOML = """
name = "two boxes"
matmul_efficiency = 0.5
[device]
name = "x"
flops_per_second = { float32 = 1e12, bfloat16 = 2e12 }
memory_bytes = 1e9
memory_bytes_per_second = 1e11
[[level]]
name = "box"
devices = 4
bytes_per_second = 1e10
latency_seconds = 1e-6
[[level]]
name = "wire"
bytes_per_second = 1e9
latency_seconds = 1e-5
"""


@pytest.mark.parametrize("name", cluster.presets())
def test_every_preset_is_a_sane_machine(name: str) -> None:
    c = cluster.get(name)
    assert c.name == name and cluster.get(c) is c
    assert 0 < c.matmul_efficiency <= 1 and 0 < c.memory_efficiency <= 1
    assert c.levels[-1].devices is None, "the outermost level holds any number of devices"
    inner, outer = c.levels[0], c.levels[-1]
    assert inner.bytes_per_second >= outer.bytes_per_second and inner.latency_seconds <= outer.latency_seconds
    assert c.device.memory_bytes_per_second > inner.bytes_per_second


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(sbp.SbpError, match=r"'h10' is not known; did you mean h100"):
        cluster.get("h10")


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "boxes.toml"
    path.write_text(TOML)
    c = cluster.get(path)
    assert (c.name, c.matmul_efficiency, c.memory_efficiency) == ("two boxes", 0.5, 1.0)
    assert c.device.rate("bfloat16") == 2e12
    assert c.device.rate("int8") == c.device.rate("float32") == 1e12, "a dtype not listed runs at float32's rate"
    assert [v.devices for v in c.levels] == [4, None]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "is not TOML"),
        (TOML.replace("memory_bytes = 1e9\n", ""), "memory_bytes"),
        (TOML.replace("[[level]]", "[[levels]]"), "level"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(sbp.SbpError, match=says):
        cluster.get(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(sbp.SbpError, match="cannot read"):
        cluster.get(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("mesh", "axes", "level"),
    [
        ((8,), (0,), "node"),
        ((16,), (0,), "network"),
        ((4, 8), (1,), "node"),
        ((4, 8), (0,), "network"),
        ((4, 8), (0, 1), "network"),
        ((2, 2, 2), (0, 2), "node"),
        ((4, 2, 4), (1,), "node"),
        ((4, 2, 4), (0,), "network"),
        # Groups of 6 in nodes of 8: the second, ranks 6 to 11, lies across two nodes.
        ((2, 6), (1,), "network"),
        # Ranks 2, 5, 8: within 7 consecutive ranks, but not within one node.
        ((3, 3), (0,), "network"),
    ],
)
def test_the_slowest_group_chooses_the_link(mesh: tuple[int, ...], axes: tuple[int, ...], level: str) -> None:
    assert cluster.get("h100").link(mesh, axes).level == level


def test_a_collective_is_its_bandwidth_and_its_steps() -> None:
    c = cluster.get("h100")
    link = c.link((8,), (0,))
    sent = 1e9
    for kind, steps in (("all_gather", 6), ("reduce_scatter", 6), ("all_to_all", 6), ("all_reduce", 6), ("permute", 1)):
        expected = sent / link.bytes_per_second + steps * link.latency_seconds
        assert c.collective_seconds(kind, sent, (8,), (0,)) == pytest.approx(expected), kind
    # A small group: the ring is the shorter one.
    assert c.collective_seconds("all_gather", 0.0, (2,), (0,)) == pytest.approx(link.latency_seconds)
    assert c.collective_seconds("all_reduce", sent, (1,), (0,)) == 0.0


def test_an_op_takes_the_longer_of_arithmetic_and_traffic() -> None:
    c = cluster.get("a100-80")
    assert c.op_seconds(1e15, 1.0, "bfloat16") == pytest.approx(1e15 / (312e12 * 0.7))
    assert c.op_seconds(1.0, 1e12, "bfloat16") == pytest.approx(1e12 / (2.039e12 * 0.8))
    assert c.op_seconds(1.0, 1.0, "bfloat16") == c.op_seconds_floor > 0
    assert math.isclose(c.copy_seconds(1e12), 2e12 / (2.039e12 * 0.8))
