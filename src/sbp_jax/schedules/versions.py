"""Which version of its weights a rank uses for which micro-batch, where they are updated between micro-batches."""

from .schedule import Kind, Schedule


def versions_used(schedule: Schedule, rank: int) -> tuple[int, ...]:
    """By micro-batch the version of the weights that its forward and its backward pass use at a rank.

    A version is counted by the updates before it: 0 is what a step begins with.
    """
    every, made = schedule.update_every, 0
    if every is None:
        return (0,) * schedule.microbatches
    used = [0] * schedule.microbatches
    for task in schedule.tasks[rank]:
        if task.kind is Kind.FORWARD:
            delay, group = schedule.update_delay, task.microbatch // every
            used[task.microbatch] = made if delay is None else max(group - delay, 0)
        elif task.kind is Kind.BACKWARD:
            made += (task.microbatch + 1) % every == 0
    return tuple(used)


def peak_versions(schedule: Schedule) -> tuple[int, ...]:
    """The most versions of its weights that each rank holds at once: the newest, and those still to be used.

    ``Schedule.weight_versions`` is what a schedule promises; a short run may need less.
    """
    if schedule.is_synchronous:
        return (1,) * schedule.ranks
    every, found = schedule.update_every or schedule.microbatches, []
    for rank, tasks in enumerate(schedule.tasks):
        used, made, most = versions_used(schedule, rank), 0, 1
        left = set(range(schedule.microbatches))
        for task in tasks:
            if task.kind is Kind.BACKWARD:
                left.remove(task.microbatch)
                made += (task.microbatch + 1) % every == 0
                most = max(most, len({made, *(used[k] for k in left if used[k] <= made)}))
        found.append(most)
    return tuple(found)
