"""Whether a schedule can run: every task once and at its rank, no deadlock, no more activations than registers."""

from collections import Counter
from collections.abc import Sequence

from ..errors import ScheduleError
from .execution import run_order
from .schedule import Kind, Schedule, Task, peak_held

# So many faults are named, the rest counted.
_MOST_NAMED = 5


def check(schedule: Schedule, registers: int | Sequence[int] | None = None) -> None:
    """Refuse a schedule that cannot run.

    ``registers`` is how many activations a rank can hold at once: one number for all ranks, or one for each.
    An activation is one micro-batch's in one virtual stage (see ``held_in_order``).

    Raises:
        ScheduleError: all tasks that are missing, doubled or at a rank that does not run their stage; or else the
            tasks that wait for each other; or else how many registers each rank needs.
    """
    _check_shape(schedule)
    _check_tasks(schedule)
    for _ in run_order(schedule):
        pass
    if registers is not None:
        _check_registers(schedule, registers)


def _check_shape(schedule: Schedule) -> None:
    """The fields must fit each other."""
    s, faults = schedule, []
    for direction, ranks in enumerate(s.placement):
        if len(ranks) != s.stages:
            faults.append(f"direction {direction} places {len(ranks)} stages, the model has {s.stages}")
        outside = sorted({r for r in ranks if not 0 <= r < s.ranks})
        if outside:
            faults.append(f"direction {direction} uses ranks {outside}, possible: 0 to {s.ranks - 1}")
    if len(s.routes) != s.microbatches:
        faults.append(f"routes are given for {len(s.routes)} micro-batches of {s.microbatches}")
    unknown = sorted({d for d in s.routes if not 0 <= d < len(s.placement)})
    if unknown:
        faults.append(f"routes use directions {unknown}, placed: 0 to {len(s.placement) - 1}")
    if len(s.weight_versions) != s.ranks or any(n < 1 for n in s.weight_versions):
        faults.append(f"weight_versions is {s.weight_versions}: each of {s.ranks} ranks keeps at least one version")
    _refuse(schedule, faults)


def _check_tasks(schedule: Schedule) -> None:
    """Every F once; for every F either one B, or one I and one W; each where its stage is."""
    count: Counter[Task] = Counter()
    faults = []
    for rank, tasks in enumerate(schedule.tasks):
        for task in tasks:
            count[task] += 1
            fault = _misplaced(schedule, rank, task)
            if fault:
                faults.append(fault)
    faults += [f"{task} is there {n} times" for task, n in count.items() if n > 1]
    for k, direction in enumerate(schedule.routes):
        for stage in range(schedule.stages):
            f, b, i, w = (Task(kind, k, stage, direction) for kind in Kind)
            if f not in count:
                faults.append(f"{f} is missing")
            if b in count:
                faults += [f"{t} is there, but so is {b}, which does the same" for t in (i, w) if t in count]
            elif i not in count and w not in count:
                faults.append(f"{b} is missing (or {i} and {w})")
            else:
                faults += [f"{t} is missing" for t in (i, w) if t not in count]
    _refuse(schedule, faults)


def _misplaced(schedule: Schedule, rank: int, task: Task) -> str:
    """What is wrong with where a task is; empty if nothing."""
    k, s, d = task.microbatch, task.stage, task.direction
    if not (0 <= k < schedule.microbatches and 0 <= s < schedule.stages):
        return (
            f"{task} at rank {rank} does not exist: there are {schedule.microbatches} micro-batches "
            f"and {schedule.stages} stages, both counted from 0"
        )
    if d != schedule.routes[k]:
        return f"{task} at rank {rank} has direction {d}, but micro-batch {k} takes direction {schedule.routes[k]}"
    right = schedule.rank_of(s, d)
    return "" if right == rank else f"{task} is at rank {rank}, but its stage is at rank {right}"


def _check_registers(schedule: Schedule, registers: int | Sequence[int]) -> None:
    given = [registers] * schedule.ranks if isinstance(registers, int) else list(registers)
    if len(given) != schedule.ranks:
        raise ScheduleError(
            f"schedule {schedule.name!r} has {schedule.ranks} ranks, but registers are given for {len(given)}: "
            "give one number for all, or one for each"
        )
    needed = peak_held(schedule)
    few = [f"rank {r} has {g} and needs {n}" for r, (g, n) in enumerate(zip(given, needed, strict=True)) if g < n]
    if few:
        raise ScheduleError(
            f"schedule {schedule.name!r} holds more activations than there are registers: {_some(few)}. "
            f"Give at least {list(needed)}, or take a schedule that holds less"
        )


def _refuse(schedule: Schedule, faults: list[str]) -> None:
    if faults:
        raise ScheduleError(f"schedule {schedule.name!r} cannot run: {_some(faults)}")


def _some(faults: list[str]) -> str:
    more = len(faults) - _MOST_NAMED
    return "; ".join(faults[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
