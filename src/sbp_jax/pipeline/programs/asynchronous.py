"""Schedules that update weights between micro-batches: what the state is, and whether stages can update it alone.

A stage updates what it keeps when its own backward pass of a group of micro-batches has ended, while other stages are
still at it. So an update may read nothing that other stages make, and what several stages read of the state each of
them must be able to bring up to date by itself: counts and rates can, weights that are shared cannot.
"""

from collections.abc import Iterable, Sequence

from ...errors import PlanError
from ...schedules import Schedule
from ...trace import Op, Program, Value, user_line
from ..cuts.phases import Phases
from ..microbatches.cut import Region
from ..microbatches.units import Unit
from .stage_program import Flows, arguments_of, owner, result_stage

_POSSIBLE = (
    "Possible: what needs the arrays of one stage only (clip every array by its own norm), or a synchronous schedule, "
    'such as "1f1b"'
)


def updates_between(schedule: Schedule) -> bool:
    """Whether a step updates weights before its end. A single update is that of the synchronous step."""
    return not schedule.is_synchronous and schedule.updates > 1


def state_of(
    program: Program, phases: Phases, returned: Sequence[tuple[int, int]], schedule: Schedule
) -> dict[int, int]:
    """By number of an argument the result that replaces it, of those that a step changes.

    Raises ``PlanError`` where there is none.
    """
    found = {}
    for i, o in program.donated or returned:
        given, value = program.output_ops[o].ins[0], program.input_ops[i].outs[0]
        is_same = isinstance(given, Value) and given.id == value.id
        if not is_same and phases.cut.home[value.id] is not Region.LOOP:
            found[i] = o
    if not found:
        raise PlanError(
            f"schedule {schedule.name!r} updates weights between micro-batches, but no argument comes back as a "
            "result: donate the training state (donate_argnums), or take a synchronous schedule"
        )
    return found


def share_state(phases: Phases, flow: Flows, state: dict[int, int]) -> None:
    """Let every stage that reads a part of the state which needs no gradients (a count) bring it up to date itself."""
    once = {i: o for i, o in state.items() if _is_made_by_all(phases, o)}
    for s, own in enumerate(flow.results):
        while missing := [o for i, o in once.items() if i in arguments_of(phases, s, flow) and o not in own]:
            own += missing


def _is_made_by_all(phases: Phases, result: int) -> bool:
    x = phases.cut.program.output_ops[result].ins[0]
    return not isinstance(x, Value) or owner(phases, x) < 0


def check_updates(phases: Phases, flow: Flows, state: dict[int, int], schedule: Schedule) -> None:
    """Refuse a step whose update needs what other stages make, by name and line."""
    cut, program = phases.cut, phases.cut.program
    numbers = {op.outs[0].id: i for i, op in enumerate(program.input_ops)}
    updating = _behind(phases, [x for o in state.values() for x in _values(program.output_ops[o].ins)])
    for k in sorted(updating):
        if cut.regions[k] is not Region.AFTER:
            continue
        for x in cut.units[k].reads:
            if owner(phases, x) not in (-1, phases.stage[k]):
                raise PlanError(
                    f"schedule {schedule.name!r} updates every stage by itself, while others still run: "
                    f"{_named(cut.units[k])} in stage {phases.stage[k]} needs {x} of stage {owner(phases, x)} for it "
                    f"(a norm over the gradients of all stages, weights that stages share, a loss). {_POSSIBLE}"
                )
            if x.id in numbers and cut.home[x.id] is Region.LOOP:
                raise PlanError(
                    f"schedule {schedule.name!r} updates weights after a part of the batch: {_named(cut.units[k])} "
                    f"needs all of argument {program.input_ops[numbers[x.id]].label} for the update. Take a "
                    'synchronous schedule, such as "1f1b"'
                )
    for s in range(phases.count):
        units = [k for k, at in enumerate(phases.stage) if at == s and (cut.regions[k] is Region.LOOP or k in updating)]
        given = [x for o in flow.results[s] if o in state.values() for x in _values(program.output_ops[o].ins)]
        reads = [x for k in units for x in cut.units[k].reads] + given
        once = [k for k in _behind(phases, reads) if cut.regions[k] is Region.ONCE]
        read = {x.id for x in (*reads, *(x for k in once for x in cut.units[k].reads))}
        for i, o in state.items():
            if program.input_ops[i].outs[0].id in read and o not in flow.results[s]:
                raise PlanError(
                    f"schedule {schedule.name!r} updates every stage by itself, while others still run: "
                    f"argument {program.input_ops[i].label} is read by stage {s} and updated by stage "
                    f"{result_stage(phases, o)} (weights that stages share). Possible: cut so that one stage has all "
                    'that reads it, give each stage its own, or take a synchronous schedule, such as "1f1b"'
                )


def _behind(phases: Phases, values: Iterable[Value]) -> set[int]:
    """The ops besides those of the loop that values depend on."""
    found: set[int] = set()
    queue = [x.id for x in values]
    while queue:
        k = phases.made.get(queue.pop(), -1)
        if k >= 0 and k not in found and phases.cut.regions[k] is not Region.LOOP:
            found.add(k)
            queue += [x.id for x in phases.cut.units[k].reads]
    return found


def _values(atoms: Iterable[object]) -> list[Value]:
    return [x for x in atoms if isinstance(x, Value)]


def _named(unit: Unit) -> str:
    name, where = unit.name if isinstance(unit, Op) else unit.kind, user_line(unit.info)
    return f"{name} at {where}" if where else name


def note(schedule: Schedule) -> str:
    """What a plan says of a schedule that changes the mathematics."""
    if not updates_between(schedule):
        return f"{schedule.name}: one update a step, of all micro-batches: the same mathematics as without a pipeline"
    every = schedule.update_every or 1
    group = "every micro-batch" if every == 1 else f"every {every} micro-batches"
    age = (
        f"up to {schedule.ranks - 1} updates old" if schedule.update_delay is None
        else f"{schedule.update_delay} update old, but for the first"
    )  # fmt: skip
    return (
        f"{schedule.name} changes the mathematics: {schedule.updates} updates a step, one after {group}, by gradients "
        f"at weights that are {age}; versions of the weights by group of devices: {schedule.weight_versions}"
    )
