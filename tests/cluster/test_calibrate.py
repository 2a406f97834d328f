"""Measuring a machine: the fit finds what made the figures, and a small run gives a cluster that can be used."""

import time
from collections.abc import Callable

import jax
import pytest

import sbp_jax as sbp
from sbp_jax import cluster
from sbp_jax.cluster.calibrate import Effort, calibrate, fit_level, seconds_each

TINY = Effort((16, 32), 1 << 12, (1 << 10, 1 << 14), ("float32",))


def test_the_fit_finds_what_made_the_figures() -> None:
    startup, latency, rate = 5e-6, 2e-6, 1e9
    rows = [(s, b, startup + s * latency + b / rate) for s in (1, 3, 6) for b in (1e3, 1e5, 1e7)]
    level, error = fit_level("node", None, rows)
    assert level.startup_seconds == pytest.approx(startup, rel=1e-6)
    assert level.latency_seconds == pytest.approx(latency, rel=1e-6)
    assert level.bytes_per_second == pytest.approx(rate, rel=1e-6)
    assert error < 1e-6


def test_a_fit_has_no_negative_figures() -> None:
    """Noise that falls with the steps must not make a step earn time."""
    level, error = fit_level("node", None, [(1, 1e3, 9e-5), (7, 1e3, 5e-5), (1, 1e6, 1e-3), (7, 1e6, 9e-4)])
    assert level.latency_seconds >= 0 and level.startup_seconds >= 0 and level.bytes_per_second > 0
    assert error > 0.1, "and it says how far off it is"
    flat, _ = fit_level("node", None, [(1, 1e3, 1e-4), (1, 1e6, 1e-4)])
    assert flat.bytes_per_second >= 1e9, "where bytes cost nothing to be seen, the best rate seen"


def test_a_small_calibration_gives_a_usable_cluster() -> None:
    said: list[str] = []
    found = calibrate("mine", 2, TINY, said.append)
    c = found.cluster
    assert c.name == "mine" and [v.name for v in c.levels] == ["shared memory"] and not c.overlaps
    assert set(dict(c.device.flops_per_second)) == {"float32"}
    assert 0 < c.op_seconds_floor < 1e-2 and c.device.memory_bytes > 2**28
    assert {m.what.split()[0] for m in found.measurements} >= {"matmul", "read", "smallest", *cluster.KINDS}
    assert said == ["matrix products", "memory", "collectives"]
    assert any("memory" in note for note in found.notes)
    assert c.collective_seconds("all_reduce", 1e6, (2,), (0,)) > 0


@pytest.mark.parametrize("grows", [True, False])
def test_what_starting_a_program_takes_is_not_counted(grows: bool) -> None:
    """Sleeping stands for work: 20 ms to start, of which 8 ms hide behind the steps, 1 ms a step."""
    lengths: list[int] = []

    def chain(length: int) -> Callable[[], None]:
        lengths.append(length)
        return lambda: time.sleep(0.012 + max(0.008, 0.001 * length))

    seconds = seconds_each(chain, 4, grows)
    if grows:
        assert lengths == [4, 12, 16, 48]
        assert seconds == pytest.approx(0.001, rel=0.25)
    else:
        assert lengths == [4, 12] and seconds < 0.001


def test_links_of_one_device_are_placeholders_and_said_so() -> None:
    found = calibrate("mine", 1, TINY)
    assert any("cannot be measured" in note for note in found.notes) and len(found.cluster.levels) == 1


@pytest.mark.parametrize("devices", [0, 99])
def test_more_devices_than_there_are(devices: int) -> None:
    with pytest.raises(sbp.SbpError, match=f"calibrate on {devices} devices: this process has {len(jax.devices())} "):
        calibrate(devices=devices)
