"""Schedules by name."""

import pytest

from sbp_jax.errors import SbpError, ScheduleError
from sbp_jax.schedules import by_name, register, schedules
from sbp_jax.schedules.tables import registry

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


@pytest.mark.parametrize(
    ("name", "stages"),
    [("gpipe", 4), ("chimera", 4), ("interleaved_1f1b", 4), ("interleaved_gpipe", 12), ("zb_v", 8), ("dualpipe_v", 8)],
)
def test_the_number_of_stages_may_be_asked_for(name: str, stages: int) -> None:
    assert by_name(name, 4, 8, stages=stages).stages == stages


@pytest.mark.parametrize(
    ("name", "stages", "options", "message"),
    [
        ("interleaved_1f1b", 0, {}, "schedule 'interleaved_1f1b': stages is 0, must be an int of at least 1"),
        (
            "interleaved_1f1b", 6, {},
            "schedule 'interleaved_1f1b' needs stages divisible by ranks, 4 here, but 6 stages are asked for: "
            "take 4 or 8 stages",
        ),
        (
            "interleaved_1f1b", 3, {},
            "schedule 'interleaved_1f1b' needs stages divisible by ranks, 4 here, but 3 stages are asked for: "
            "take 4 stages",
        ),
        (
            "interleaved_1f1b", 8, {"chunks": 3},
            "schedule 'interleaved_1f1b' has 3 stages a rank, 12 for 4 ranks, but 8 stages are asked for: "
            "take 12 stages, or 'interleaved_gpipe' with any multiple of the ranks",
        ),
        (
            "gpipe", 8, {},
            "schedule 'gpipe' has 1 stage a rank, 4 for 4 ranks, but 8 stages are asked for: "
            "take 4 stages, or 8 ranks, or 'interleaved_1f1b' or 'interleaved_gpipe' with any multiple of the ranks",
        ),
        (
            "zb_v", 7, {},
            "schedule 'zb_v' has 2 stages a rank, 8 for 4 ranks, but 7 stages are asked for: take 8 stages",
        ),
    ],
)  # fmt: skip
def test_stages_that_a_schedule_cannot_have(name: str, stages: int, options: dict[str, int], message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        by_name(name, 4, 8, stages=stages, **options)
    assert str(error.value) == message


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
