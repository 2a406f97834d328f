"""Times, bubbles and activations of schedules, on cases worked out by hand and against a plain longest path."""

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_jax.errors import ScheduleError
from sbp_jax.schedules import Kind, Schedule, StageSeconds, Task, by_name, peak_held, schedules, simulate
from sbp_jax.schedules.schedule import needs, result


def starts(schedule: Schedule, *args: object) -> list[list[float]]:
    return [[run.start_seconds for run in runs] for runs in simulate(schedule, *args).runs]  # pyright: ignore


def test_two_ranks_two_microbatches_by_hand() -> None:
    # F 1 s, B 2 s: rank 0 waits for rank 1's first B.
    timing = simulate(by_name("1f1b", 2, 2))
    assert [[str(run.task) for run in runs] for runs in timing.runs] == [
        ["F0@0", "F1@0", "B0@0", "B1@0"],
        ["F0@1", "B0@1", "F1@1", "B1@1"],
    ]
    assert starts(by_name("1f1b", 2, 2)) == [[0, 1, 4, 7], [1, 2, 4, 5]]
    assert timing.makespan_seconds == 9
    assert [timing.busy_seconds(r) for r in range(2)] == [6, 6]
    assert timing.bubble_fraction() == timing.bubble_fraction(0) == 3 / 9
    assert [timing.span_bubble_fraction(r) for r in range(2)] == [3 / 9, 0]


def test_transfers_and_stages_of_different_length() -> None:
    schedule = by_name("gpipe", 3, 1)
    seconds = [StageSeconds(1, 1, 0), StageSeconds(2, 1, 1), StageSeconds(3, 2, 2)]
    assert starts(schedule, seconds, 0.5) == [[0, 14], [1.5, 11.5], [4, 7]]
    assert starts(schedule, seconds, [1, 2]) == [[0, 18], [2, 15], [6, 9]]


def test_no_transfer_between_stages_of_one_rank() -> None:
    timing = simulate(by_name("zb_v", 1, 1), transfer_seconds=100.0)
    assert timing.makespan_seconds == 6


def test_a_backward_pass_that_is_faster_whole() -> None:
    seconds = StageSeconds(1, 1, 1, backward=1.5)
    assert simulate(by_name("gpipe", 1, 2), seconds).makespan_seconds == 5
    assert simulate(by_name("zb_h1", 1, 2), seconds).makespan_seconds == 6


def test_activations_over_time_by_hand() -> None:
    timing = simulate(by_name("1f1b", 2, 2))
    assert timing.held(0) == ((0, 1), (1, 2), (6, 1), (9, 0))
    assert timing.held(1) == ((0, 0), (1, 1), (4, 1), (7, 0))
    assert [timing.peak_held(r) for r in range(2)] == [2, 1]


def test_what_is_left_between_i_and_w_counts_as_told() -> None:
    # Rank 1 of ZB-H1: F0 I0 F1 I1 W0 W1; without leftovers it holds one at a time, as in 1F1B.
    timing = simulate(by_name("zb_h1", 2, 2))
    assert [str(run.task) for run in timing.runs[1]] == ["F0@1", "I0@1", "F1@1", "I1@1", "W0@1", "W1@1"]
    assert timing.peak_held(1) == 2
    assert timing.peak_held(1, leftover=0.0) == 1
    assert timing.held(1, leftover=0.5) == ((0, 0), (1, 1), (3, 1.5), (5, 1), (6, 0.5), (7, 0))


def test_lists_of_the_wrong_length() -> None:
    with pytest.raises(ScheduleError) as error:
        simulate(by_name("gpipe", 3, 1), [StageSeconds()] * 2)
    assert str(error.value) == ("seconds is given 2 times, schedule 'gpipe' has 3 stages: give one for all, or 3")
    with pytest.raises(ScheduleError, match=r"transfer_seconds is given 3 times, .* give one for all, or 2"):
        simulate(by_name("gpipe", 3, 1), transfer_seconds=[1.0] * 3)


def longest_path(schedule: Schedule, seconds: list[StageSeconds], transfer: list[float]) -> float:
    """The end of the last task, by recursion over what each waits for."""
    rank_of = {task: rank for rank, tasks in enumerate(schedule.tasks) for task in tasks}
    before = {b: a for tasks in schedule.tasks for a, b in itertools.pairwise(tasks)}
    giver = {result(task): task for task in rank_of if task.kind is not Kind.WEIGHT}

    @functools.cache
    def end(task: Task) -> float:
        start = end(before[task]) if task in before else 0.0
        for value in needs(task, schedule.stages):
            other = giver[value]
            far = rank_of[other] != rank_of[task]
            start = max(start, end(other) + (transfer[min(other.stage, task.stage)] if far else 0.0))
        return start + seconds[task.stage].of(task.kind)

    return max(end(task) for task in rank_of)


LENGTHS = st.integers(0, 20).map(float)


@given(st.sampled_from(sorted(schedules())), st.data())
@settings(max_examples=80, deadline=None)
def test_makespan_is_the_longest_path_and_peaks_do_not_depend_on_times(name: str, data: st.DataObject) -> None:
    schedule = by_name(name, 2, 2 * data.draw(st.integers(2, 4)))
    stages = schedule.stages
    seconds = data.draw(st.lists(st.builds(StageSeconds, LENGTHS, LENGTHS, LENGTHS), min_size=stages, max_size=stages))
    transfer = data.draw(st.lists(LENGTHS, min_size=stages - 1, max_size=stages - 1))
    timing = simulate(schedule, seconds, transfer)
    assert timing.makespan_seconds == longest_path(schedule, seconds, transfer)
    for rank, runs in enumerate(timing.runs):
        assert all(a.end_seconds <= b.start_seconds for a, b in itertools.pairwise(runs))
        assert timing.peak_held(rank) <= peak_held(schedule)[rank]
        assert timing.held(rank)[-1][1] == 0
        if all(s.forward and s.input_gradient and s.weight_gradient for s in seconds):
            assert timing.peak_held(rank) == peak_held(schedule)[rank]
