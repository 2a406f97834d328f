"""A schedule as time slots: what every rank does in each, if all take equally long."""

from dataclasses import replace

from ...schedules import Schedule, Task
from ...schedules.execution import run_order
from ...schedules.schedule import Value, needs, result
from ..run.actors_of import tasks_run


def time_slots(schedule: Schedule) -> list[list[Task | None]]:
    """By slot and rank the task, None for a bubble.

    A rank keeps its order. A task runs in the first slot after those in which what it needs was made: at a slot's end
    ranks give each other what they have made in it.
    """
    run = replace(schedule, tasks=tuple(map(tuple, tasks_run(schedule))))
    made: dict[Value, int] = {}
    free = [0] * run.ranks
    found: list[list[Task | None]] = []
    for rank, task in run_order(run):
        slot = max([free[rank], *(made[v] + 1 for v in needs(task, run.stages))])
        free[rank] = slot + 1
        given = result(task)
        if given is not None:
            made[given] = slot
        while len(found) <= slot:
            found.append([None] * run.ranks)
        found[slot][rank] = task
    return found
