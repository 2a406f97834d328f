"""What a request asks of the search: a ZeRO stage, a memory limit that may not be firm, less memory, an end."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from .budget import Budget
from .catalogue import lookup
from .memory.infeasible import OutOfTime, TooSmall
from .methods import Task, fallback
from .methods.less_memory import less_memory
from .methods.restriction import Narrowed, narrow
from .methods.zero_stages import zero
from .optimize.presolve import without_presolve
from .optimize.search import Found
from .request import Request

_MORE = 'Ask for effort="thorough", or give time_limit= (seconds)'


@dataclass(frozen=True, slots=True)
class Decided:
    """The plan found, and the method that found it."""

    found: Found
    solver: str


def decide(task: Task, asked: Request) -> Decided | None:
    """The plan for a request; None where pins allow none. Raises ``TooSmall`` where memory does."""
    narrowed: Narrowed | None = None
    restricted: list[str] = []
    if asked.zero_stage is not None:
        restriction = zero(task.roles, asked.zero_stage)
        restricted = [f"zero_stage={asked.zero_stage}: {note}" for note in restriction.notes]
        narrowed = narrow(task.problem, task.footprint, restriction)
        roles, choices = task.roles.among(narrowed.choices.kept, narrowed.choices.followers), narrowed.choices
        find_features = task.find_features
        task = replace(
            task, problem=narrowed.problem, footprint=narrowed.footprint, find_roles=lambda: roles, find_start=None,
            find_features=lambda: [choices.of(x) for x in find_features()],
        )  # fmt: skip
    named = lookup(asked.solver)
    method, task = named.run, replace(task, options=named.checked(asked.solver_options))

    def search(task: Task) -> Decided | None:
        return _in_time(task, asked, method)

    short: TooSmall | None = None
    limit = task.limit_bytes
    try:
        decided = search(task)
    except TooSmall as error:
        if asked.limit_is_firm or limit is None:
            raise
        # The limit is only the device's own: a plan that does not fit, searched for as always, is better than none.
        short, task = error, replace(task, limit_bytes=None, budget=task.budget.again())
        decided = search(task)
    if decided is None:
        return None
    # Whatever the method proves, nothing is cheaper than every node and edge at its own cheapest.
    bound = max(decided.found.bound, min(decided.found.seconds, without_presolve(task.problem).floor()))
    found, notes = replace(decided.found, bound=bound), [*restricted, *decided.found.notes]
    if asked.prefer_less_memory:
        found, note = less_memory(task, found, method)
        notes.append(note)
    if short is not None and limit is not None:
        held = float(task.footprint.over_time(found.solution.choice).max(initial=0.0))
        if held > limit:
            notes.append(f"does not fit by the memory model: {short}")
    if narrowed is not None:
        solution = replace(found.solution, choice=narrowed.choices.widen(found.solution.choice))
        found = replace(found, solution=solution, free_choice=None)
    return Decided(replace(found, notes=tuple(notes)), decided.solver)


def _in_time(task: Task, asked: Request, method: Callable[[Task], Found | None]) -> Decided | None:
    """What the method finds; where the budget is too small, the best of the fixed strategies and a first guess."""
    found = None
    if not task.budget.over:
        found = method(task)
        if found is None or not found.solution.timed_out:
            return found and Decided(found, asked.solver)
    best, name = found, asked.solver
    known = fallback(task)
    if known is not None and (best is None or known[1].seconds < best.seconds):
        name, best = known[0], replace(known[1], notes=())
    limit = "" if asked.time_limit is None else f"time_limit={asked.time_limit:.4g} s"
    if best is None:
        if task.limit_bytes is not None:
            what = f"find a plan that fits into {task.limit_bytes:.0f} bytes per device"
            message = (
                f"{limit} is too short to {what}. Raise time_limit, or memory_limit"
                if limit
                else f"the work that a search does by default is too little to {what}. {_MORE}"
            )
            raise OutOfTime(message, math.inf)
        late = (f"{limit} was exceeded: no plan was found within it",) if limit else ()
        again = method(replace(task, budget=Budget()))
        return again and Decided(replace(again, notes=(*late, *again.notes)), asked.solver)
    bound = max(best.bound, 0.0 if found is None else found.bound, without_presolve(task.problem).floor())
    gap = 1 - min(1.0, bound / best.seconds) if best.seconds else 0.0
    what = f"the plan is the best known one ({name}), at most {gap:.0%} of it could be saved (proven)"
    if limit:
        note = f"{limit} is too short to search: {what}. Raise time_limit for a better one"
    else:
        note = f"the work that a search does by default was done: {what}. {_MORE} for a better one"
    warnings.warn(note, UserWarning, stacklevel=2)
    solution = replace(best.solution, timed_out=True)
    return Decided(Found(solution, best.seconds, min(bound, best.seconds), notes=(*best.notes, note)), name)
