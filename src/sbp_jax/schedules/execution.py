"""The order in which tasks of all ranks can run, or who waits for whom."""

from collections.abc import Iterator

from ..errors import ScheduleError
from .schedule import Kind, Schedule, Task, Value, needs, result


def run_order(schedule: Schedule) -> Iterator[tuple[int, Task]]:
    """(rank, task) of all tasks, each after what it needs and after those before it at its rank.

    Raises:
        ScheduleError: the ranks wait for each other, or for what no task gives. The message names the tasks.
    """
    position = [0] * schedule.ranks
    there: set[Value] = set()
    waiting: dict[Value, list[int]] = {}
    can_go = list(reversed(range(schedule.ranks)))
    while can_go:
        rank = can_go.pop()
        tasks = schedule.tasks[rank]
        while position[rank] < len(tasks):
            task = tasks[position[rank]]
            missing = next((v for v in needs(task, schedule.stages) if v not in there), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            position[rank] += 1
            yield rank, task
            given = result(task)
            if given is not None:
                there.add(given)
                can_go += waiting.pop(given, [])
    if waiting:
        raise ScheduleError(_deadlock(schedule, {r: v for v, ranks in waiting.items() for r in ranks}, position))


def _deadlock(schedule: Schedule, waits_for: dict[int, Value], position: list[int]) -> str:
    """The message: a circle of ranks that wait for each other, or a rank that waits for what never comes."""
    giver: dict[Value, tuple[int, Task]] = {}
    for rank, tasks in enumerate(schedule.tasks):
        giver |= {v: (rank, t) for t in tasks[position[rank] :] if (v := result(t)) is not None}
    path: list[int] = []
    rank = min(waits_for)
    while rank not in path:
        path.append(rank)
        wanted = waits_for[rank]
        if wanted not in giver:
            return (
                f"schedule {schedule.name!r} never ends: rank {rank} waits at "
                f"{schedule.tasks[rank][position[rank]]} for {describe(wanted)}, which no task gives"
            )
        rank = giver[wanted][0]
    parts = []
    for r in path[path.index(rank) :]:
        other, task = giver[waits_for[r]]
        at, behind = schedule.tasks[r][position[r]], schedule.tasks[other][position[other]]
        parts.append(f"rank {r} waits at {at} for {task}, which rank {other} runs after {behind}")
    return (
        f"schedule {schedule.name!r} ends in a deadlock: {'; '.join(parts)}. "
        "Change the order of one of these ranks so that what another waits for comes first"
    )


def describe(value: Value) -> str:
    """A value as the tasks that give it: ``F3@1``, or ``B3@1 or I3@1``."""
    kinds = (Kind.BACKWARD, Kind.INPUT) if value.is_gradient else (Kind.FORWARD,)
    return " or ".join(str(Task(k, value.microbatch, value.stage, value.direction)) for k in kinds)
