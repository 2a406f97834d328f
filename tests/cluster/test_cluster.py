"""Clusters: presets found by name, TOML written and read back, mistakes named, unknown devices warned of."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import jax
import pytest

import sbp_jax as sbp
from sbp_jax import cluster
from sbp_jax.cluster.presets import preset_of

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
uplinks = 2
"""


@pytest.mark.parametrize("name", cluster.presets())
def test_every_preset_is_a_sane_machine(name: str) -> None:
    c = cluster.get(name)
    assert c.name == name and cluster.get(c) is c
    inner, outer = c.levels[0], c.levels[-1]
    assert inner.bytes_per_second >= outer.bytes_per_second and inner.latency_seconds <= outer.latency_seconds
    assert c.device.memory_bytes_per_second > inner.bytes_per_second
    assert c.overlaps <= set(cluster.KINDS)


@pytest.mark.parametrize("name", cluster.presets())
def test_every_preset_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    c = cluster.get(name)
    path = tmp_path / "mine.toml"
    path.write_text(cluster.to_toml(c, 'copied, with "quotes"\nand two lines'), encoding="utf-8")
    assert cluster.load(path) == c == cluster.get(path)


def test_names_with_odd_characters_come_back(tmp_path: Path) -> None:
    c = cluster.get("h100")
    chip = dataclasses.replace(c.device, name="x\ny\x7f", flops_per_second=(("float32", 1e12), ("é", 2e12)))
    odd = dataclasses.replace(c, name='my "box" \\ é', device=chip)
    path = tmp_path / "odd.toml"
    path.write_text(cluster.to_toml(odd), encoding="utf-8")
    assert cluster.load(path) == odd


def test_texts_are_the_same_by_what_they_say() -> None:
    c = cluster.get("h100")
    text = cluster.to_toml(c)
    other = text.replace("memory_efficiency = 0.88\n", "").replace("\n", "\nmemory_efficiency = 0.88 # moved\n", 1)
    assert other != text and cluster.is_same(other, text)
    assert not cluster.is_same(text.replace("0.88", "0.89"), text)
    assert cluster.is_same("", "") and not cluster.is_same("", text) and not cluster.is_same(text, "no TOML")


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
    assert c.link((4, 4), (0,)).bytes_per_second == pytest.approx(0.5e9), "two uplinks for four devices"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (TOML, "name = ", "is not TOML"),
        ("memory_bytes = 1e9\n", "", r"\[device\] lacks memory_bytes"),
        ("[[level]]", "[[levels]]", "at the top lacks level; at the top has unknown keys: levels; known are name, dev"),
        ("latency_seconds = 1e-5", "latency = 1e-5", r"'wire' lacks latency_seconds; \[\[level\]\] 'wire' has unknown"),
        ("= 1e9\n", "= -1e9\n", "memory_bytes = -1000000000.0: must be above zero"),
        ("1e-6", "-1e-6", "'box': latency_seconds = -1e-06: must not be below zero"),
        ("= 0.5", "= 1.5", "matmul_efficiency = 1.5: must be above 0 and at most 1"),
        ("= 0.5", '= "half"', "matmul_efficiency = 'half' is not a number"),
        ("devices = 4", "devices = 4.5", "devices = 4.5 is not a whole number"),
        ("devices = 4", "", r"'wire' \(devices = None\) is not made of whole units of 'box' \(devices = None\)"),
        ("uplinks = 2", "devices = 8", "the outermost level, 'wire', has devices = 8"),
        ('"wire"', '"box"', "two levels have one name: box, box"),
        ("{ float32 = 1e12, bfloat16", "{ bfloat16", "flops_per_second of float32"),
        ("= 1e12,", '= "fast",', "flops_per_second of float32 = 'fast' is not a number"),
        ("[device]", 'overlaps = ["gossip"]\n[device]', "overlaps gossip: possible are all_reduce"),
        ("[device]", 'library = "mpi"\n[device]', "library 'mpi': possible are nccl, generic"),
        ('name = "x"', 'name = "x"\ntiles = [[1, 2]]', r"tile \[1, 2\] is not \[rows, columns, depth\]"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "wrong.toml"
    assert old in TOML
    path.write_text(TOML.replace(old, new, 1) if old != "[[level]]" else TOML.replace(old, new))
    with pytest.raises(sbp.SbpError, match=says):
        cluster.get(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(sbp.SbpError, match="cannot read"):
        cluster.get(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v5 lite", None),
        ("Tesla V100-SXM2-16GB", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_device_has_the_preset_of_its_own_kind_or_none(kind: str, name: str | None) -> None:
    found = preset_of(kind)
    assert (found and found.name) == name


def test_a_device_that_nothing_describes_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        device_kind = "NVIDIA GeForce RTX 9999"

    monkeypatch.setattr(jax, "devices", lambda *_: [Gpu()])
    with pytest.warns(UserWarning, match=r"'NVIDIA GeForce RTX 9999' devices: costs are taken for h100.*calibrate"):
        found = cluster.default_for("gpu")
    assert found.name == "h100"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cluster.default_for("gpu") is found
        assert cluster.default_for("cpu") is cluster.CPU
        assert cluster.default_for("tpu", is_abstract=True).name == "tpu-v5p"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"levels": ()}, "at least one level"),
        ({"overlap_slowdown": -1.0}, "overlap_slowdown = -1.0: must not be below zero"),
        ({"overlaps": frozenset({"x"})}, "overlaps x"),
    ],
)
def test_a_cluster_in_code_is_checked_too(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(sbp.SbpError, match=says):
        dataclasses.replace(cluster.get("h100"), **changes)


def test_simulated_devices_weigh_bytes_and_nothing_else() -> None:
    """Plans on them are to be those of large models on real machines."""
    cpu = cluster.get("cpu")
    for kind in cluster.KINDS:
        for mesh, axes in (((8,), (0,)), ((2, 4), (0,)), ((2, 2, 2), (0, 2))):
            assert cpu.collective_seconds(kind, 1e6, mesh, axes) == pytest.approx(1e6 / 2e9)
    assert not cpu.overlaps and cpu.device.units == 0
