"""What the checker refuses, and that what it passes never stops."""

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_jax.errors import ScheduleError
from sbp_jax.schedules import Kind, Schedule, Task, by_name, check, peak_held, schedules, simulate
from sbp_jax.schedules.execution import run_order
from sbp_jax.schedules.schedule import needs, result

F, B, W = Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT


def table(*tasks: Sequence[Task], stages: int = 2, microbatches: int = 1) -> Schedule:
    """A schedule with these tasks, stage s at rank s."""
    return Schedule(
        name="mine",
        stages=stages,
        microbatches=microbatches,
        tasks=tuple(map(tuple, tasks)),
        placement=(tuple(range(stages)),),
        routes=(0,) * microbatches,
        weight_versions=(1,) * len(tasks),
    )


def refused(schedule: Schedule, registers: int | Sequence[int] | None = None) -> str:
    """The message with which a schedule is refused."""
    with pytest.raises(ScheduleError) as error:
        check(schedule, registers)
    return str(error.value)


def test_a_table_written_by_hand_passes() -> None:
    check(table([Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 0, 1), Task(Kind.INPUT, 0, 1), Task(W, 0, 1)]))


@pytest.mark.parametrize(
    ("tasks", "fault"),
    [
        (([], [Task(F, 0, 1), Task(B, 0, 1)]), "F0@0 is missing; B0@0 is missing (or I0@0 and W0@0)"),
        (([Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 0, 1), Task(Kind.INPUT, 0, 1)]), "W0@1 is missing"),
        (([Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 0, 1), Task(W, 0, 1)]), "I0@1 is missing"),
        (
            ([Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 0, 1), Task(B, 0, 1), Task(W, 0, 1)]),
            "W0@1 is there, but so is B0@1, which does the same",
        ),
        (([Task(F, 0, 0), Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 0, 1), Task(B, 0, 1)]), "F0@0 is there 2 times"),
        (
            ([Task(F, 0, 0), Task(B, 0, 0), Task(B, 0, 1)], [Task(F, 0, 1)]),
            "B0@1 is at rank 0, but its stage is at rank 1",
        ),
        (
            ([Task(F, 0, 0), Task(B, 0, 0), Task(F, 1, 0)], [Task(F, 0, 1), Task(B, 0, 1)]),
            "F1@0 at rank 0 does not exist: there are 1 micro-batches and 2 stages, both counted from 0",
        ),
        (
            ([Task(F, 0, 0), Task(B, 0, 0), Task(F, 0, 0, 1)], [Task(F, 0, 1), Task(B, 0, 1)]),
            "F0@0' at rank 0 has direction 1, but micro-batch 0 takes direction 0",
        ),
    ],
)
def test_faults_of_single_tasks(tasks: tuple[list[Task], list[Task]], fault: str) -> None:
    assert refused(table(*tasks)) == f"schedule 'mine' cannot run: {fault}"


def test_of_many_faults_some_are_named() -> None:
    message = refused(table([], [], microbatches=3))
    assert message.count("is missing") == 5
    assert message.endswith("; and 7 more")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"placement": ((0,),)}, "direction 0 places 1 stages, the model has 2"),
        ({"placement": ((0, 2),)}, "direction 0 uses ranks [2], possible: 0 to 1"),
        ({"routes": (0, 0)}, "routes are given for 2 micro-batches of 1"),
        ({"routes": (1,)}, "routes use directions [1], placed: 0 to 0"),
        ({"weight_versions": (1, 0)}, "weight_versions is (1, 0): each of 2 ranks keeps at least one version"),
    ],
)
def test_fields_that_do_not_fit_each_other(changes: dict, fault: str) -> None:
    good = table([Task(F, 0, 0), Task(B, 0, 0)], [Task(F, 0, 1), Task(B, 0, 1)])
    assert refused(dataclasses.replace(good, **changes)) == f"schedule 'mine' cannot run: {fault}"


def test_a_deadlock_says_who_waits_for_whom() -> None:
    crossed = table(
        [Task(F, 0, 0), Task(B, 0, 0), Task(F, 1, 0), Task(B, 1, 0)],
        [Task(F, 0, 1), Task(F, 1, 1), Task(B, 1, 1), Task(B, 0, 1)],
        microbatches=2,
    )
    assert refused(crossed) == (
        "schedule 'mine' ends in a deadlock: rank 0 waits at B0@0 for B0@1, which rank 1 runs after F1@1; "
        "rank 1 waits at F1@1 for F1@0, which rank 0 runs after B0@0. "
        "Change the order of one of these ranks so that what another waits for comes first"
    )


def test_a_rank_can_wait_for_itself() -> None:
    message = refused(table([Task(B, 0, 0), Task(F, 0, 0)], stages=1))
    assert "rank 0 waits at B0@0 for F0@0, which rank 0 runs after B0@0" in message
    assert "W0@0 for B0@0 or I0@0" not in message


def test_simulation_refuses_what_never_comes() -> None:
    with pytest.raises(ScheduleError) as error:
        simulate(table([Task(F, 0, 0), Task(B, 0, 0)], []))
    assert str(error.value) == (
        "schedule 'mine' never ends: rank 0 waits at B0@0 for B0@1 or I0@1, which no task gives"
    )


def test_too_few_registers() -> None:
    schedule = by_name("1f1b", 3, 8)
    check(schedule, registers=3)
    check(schedule, registers=(3, 2, 1))
    assert refused(schedule, 2) == (
        "schedule '1f1b' holds more activations than there are registers: rank 0 has 2 and needs 3. "
        "Give at least [3, 2, 1], or take a schedule that holds less"
    )
    assert "rank 1 has 1 and needs 2" in refused(schedule, (3, 1, 1))
    assert refused(schedule, (3, 2)) == (
        "schedule '1f1b' has 3 ranks, but registers are given for 2: give one number for all, or one for each"
    )


def runs_in_order(schedule: Schedule) -> bool:
    """Whether all tasks can run: the tasks that can go are run until none can; the slow, plain way."""
    there, left = set(), [list(tasks) for tasks in schedule.tasks]
    while any(left):
        ready = [tasks for tasks in left if tasks and set(needs(tasks[0], schedule.stages)) <= there]
        if not ready:
            return False
        for tasks in ready:
            there.add(result(tasks.pop(0)))
    return True


@st.composite
def made(draw: st.DrawFn) -> Schedule:
    """A schedule of any name, small."""
    name = draw(st.sampled_from(sorted(schedules())))
    ranks = draw(st.integers(1, 4)) * (2 if name == "chimera" else 1)
    least = {"dualpipe_v": 2 * ranks, "pipedream_2bw": ranks}.get(name, 1)
    m = draw(st.integers(least, least + 5))
    return by_name(name, ranks, {"interleaved_1f1b": m * ranks, "chimera": 2 * m}.get(name, m))


def with_tasks(schedule: Schedule, rank: int, tasks: Sequence[Task]) -> Schedule:
    every = list(schedule.tasks)
    every[rank] = tuple(tasks)
    return dataclasses.replace(schedule, tasks=tuple(every))


@given(made(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_dropped_or_doubled_task_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    tasks = schedule.tasks[rank]
    at = data.draw(st.integers(0, len(tasks) - 1))
    dropped = with_tasks(schedule, rank, tasks[:at] + tasks[at + 1 :])
    assert f"{tasks[at]} is missing" in refused(dropped)
    doubled = with_tasks(schedule, rank, (*tasks[:at], tasks[at], *tasks[at:]))
    assert f"{tasks[at]} is there 2 times" in refused(doubled)


@given(made(), st.data())
@settings(max_examples=150, deadline=None)
def test_shuffled_tasks_are_refused_exactly_if_they_cannot_run(schedule: Schedule, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        rank = data.draw(st.integers(0, schedule.ranks - 1))
        tasks = list(schedule.tasks[rank])
        a, b = (data.draw(st.integers(0, len(tasks) - 1)) for _ in range(2))
        tasks[a], tasks[b] = tasks[b], tasks[a]
        schedule = with_tasks(schedule, rank, tasks)
    if runs_in_order(schedule):
        check(schedule, registers=peak_held(schedule))
        timing = simulate(schedule)
        assert [[run.task for run in runs] for runs in timing.runs] == [list(tasks) for tasks in schedule.tasks]
    else:
        assert "deadlock" in refused(schedule)


@given(made())
@settings(max_examples=40, deadline=None)
def test_the_order_of_a_run_keeps_the_order_of_ranks_and_all_dependencies(schedule: Schedule) -> None:
    there, seen = set(), [[] for _ in schedule.tasks]
    for rank, task in run_order(schedule):
        assert set(needs(task, schedule.stages)) <= there
        there.add(result(task))
        seen[rank].append(task)
    assert tuple(map(tuple, seen)) == schedule.tasks
