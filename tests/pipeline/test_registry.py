"""Schedules by name."""

import pytest

from sbp_jax.errors import SbpError, ScheduleError
from sbp_jax.pipeline import by_name, register, schedules
from sbp_jax.pipeline.schedules import registry

ALL = (
    "'1f1b', 'chimera', 'dualpipe_v', 'eager_1f1b', 'gpipe', 'interleaved_1f1b', 'interleaved_gpipe', 'pipedream', "
    "'pipedream_2bw', 'zb_h1', 'zb_v'"
)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpip", f"schedule 'gpip' is not known; did you mean 'gpipe'? Possible: {ALL}"),
        ("zb_h2", f"schedule 'zb_h2' is not known; did you mean 'zb_h1' or 'zb_v'? Possible: {ALL}"),
        ("wavefront", f"schedule 'wavefront' is not known. Possible: {ALL}"),
    ],
)
def test_a_name_that_is_not_known(name: str, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        by_name(name, 2, 4)
    assert str(error.value) == message
    assert isinstance(error.value, SbpError)


def test_options_that_a_schedule_does_not_take() -> None:
    with pytest.raises(ScheduleError, match="'gpipe' does not take chunks; it takes ranks and microbatches only"):
        by_name("gpipe", 2, 4, chunks=2)
    with pytest.raises(ScheduleError, match="'interleaved_gpipe' does not take chunk; possible: chunks"):
        by_name("interleaved_gpipe", 2, 4, chunk=2)
    with pytest.raises(ScheduleError, match="'interleaved_gpipe': chunks is 0, must be an int of at least 1"):
        by_name("interleaved_gpipe", 2, 4, chunks=0)


def test_a_new_schedule_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_TYPES", dict(registry._TYPES))
    gpipe = schedules()["gpipe"]
    register("mine", gpipe.bubble, gpipe.peak)(lambda ranks, microbatches: gpipe.make(ranks, microbatches))
    assert by_name("mine", 2, 4).tasks == by_name("gpipe", 2, 4).tasks
    with pytest.raises(ScheduleError, match="there is a schedule 'mine' already"):
        register("mine", gpipe.bubble, gpipe.peak)(gpipe.make)


def test_the_registry_cannot_be_changed_from_outside() -> None:
    with pytest.raises(TypeError):
        schedules()["gpipe"] = schedules()["1f1b"]  # pyright: ignore[reportIndexIssue]
