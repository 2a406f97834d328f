"""Exact: reductions, then a 0-1 program (``optimize/program.py``); a memory limit by prices (``optimize/fit.py``).

Within a limit a mesh of three axes or more is searched with two of them as one first: those plans and prices are what
the search among all plans begins with (docs/decisions/0023). Where a limit leaves a gap open in the time there is, a
fixed strategy's plan, or one that treats mesh axes as one, may be the better: then it is the answer.
"""

import functools
from dataclasses import replace

from ..catalogue import register
from ..memory.infeasible import OutOfTime
from ..optimize.goal import Start
from ..optimize.search import Found, search
from .experts import cheapest, cheapest_strategy, coarsest, guesses, one_axis_fewer
from .task import Task

# A gap of less is as good as none; with so many pairs of choices, where families take seconds, one of less than that.
_OPEN = 1e-3
_MANY = 200_000
_OPEN_IF_MANY = 0.01
# Layers that change all at once leave gaps in every family.
_OPEN_IF_SHARED = 0.03
# On a mesh of so few axes only a wide gap is one, but for thorough searches: in 17 searches of the zoo on 2x4 under a
# limit none was better than what regions lead to, and they took as long; on 2x2x2 six of 12 were, by up to 2 %.
_FEW_AXES = 2
_OPEN_ON_FEW_AXES = 0.2
# Where families are not searched, the strategies themselves are, in this part of the budget: no plan is above theirs.
_FOR_STRATEGIES = 0.15
# Beyond so many pairs of choices, on more axes, a search begins with plans that treat axes as one, in this part of the
# budget: without them its bound is good long before it has a good plan (on 2x4 six small models took a sixth to a half
# longer with them). Where memory is short, with the smallest such family's best that fits.
_LATE = 1_000_000
_FOR_A_START = 0.25
# On a mesh of three axes or more, where memory is short, it begins with the plans and prices of a search that treats
# two axes as one, which may take this part of the budget once more; families afterwards may take this part of it
# (docs/decisions/0023).
_FOR_FEWER_AXES = 0.8
_FOR_FAMILIES = 0.3


@register("ilp", promises="exact")
def ilp(task: Task) -> Found | None:
    """The cheapest plan, proven; when the budget is over the best one seen."""
    if not task.thorough and task.tell_smallest and task.holds_too_much:
        # The answer is the smallest limit that works: that takes what it takes, or what a user's time allows.
        task = replace(task, budget=task.budget.unbounded())
    first: dict[str, Found | None] = {}
    is_late = task.problem.pairs > _LATE

    # Where plans with axes as one come first, each of the two searches may do as much as one alone.
    many_axes = task.n_axes > _FEW_AXES
    given = None if task.find_start is None else functools.cache(task.find_start)
    begins = many_axes and task.limit_bytes is not None and not task.thorough and not task.shares_layers and not given
    own = task.budget.again() if begins else task.budget

    def find_start() -> Start | None:
        """Plans of a smaller family: among so many choices a search finds its first one late."""
        if begins:
            first.update(one_axis_fewer(replace(task, budget=task.budget.again().share(_FOR_FEWER_AXES))))
        if is_late and not first and not task.shares_layers and not given:
            first.update(coarsest(replace(task, thorough=False, budget=own.share(_FOR_A_START))))
        return known()

    def known() -> Start | None:
        if given is not None:
            return given()
        plans = [f for f in first.values() if f]
        choices = [choice for f in plans for choice in (f.solution.choice, *f.solution.seen)]
        return Start(choices, plans[0].prices) if plans else None

    try:
        start = guesses(task, _FOR_A_START) if is_late and many_axes else ()
        found = search(replace(task, budget=own, guesses=start, find_start=find_start))
    except OutOfTime:
        if task.thorough or given or task.budget.seconds_left <= 0:
            raise
        # None was found or known, and the limit was not the user's: a strategy's plan late is better than none.
        late = cheapest(replace(task, budget=replace(task.budget.unbounded(), stops=())))
        if late is None:
            raise
        return replace(late[1], notes=(_told(late[0], memory_is_short=True),))
    if found is None or task.limit_bytes is None or (found.solution.timed_out and task.thorough):
        return found
    if task.budget.closes(found.seconds, found.bound, max(min(_open_at(task), _OPEN_IF_MANY), task.gap)):
        return found
    if task.start_stops and task.budget.closes(found.seconds, found.bound, _open_at(task)):
        return found  # the strategies' plans are compared with it later
    # A search that used all its budget up leaves the families as much, where it was not asked to be thorough.
    left = task.budget if task.thorough else task.budget.again()
    if begins and first:
        left = left.share(_FOR_FAMILIES)
    if task.budget.closes(found.seconds, found.bound, _open_at(task)):
        better = cheapest_strategy(replace(task, below=found.seconds, budget=left.share(_FOR_STRATEGIES)))
    else:
        better = cheapest(replace(task, below=found.seconds, budget=left, find_start=known), tried=first)
    if better is None:
        same = [words for words, f in first.items() if f and f.seconds <= found.seconds]
        return replace(found, notes=(*found.notes, *(_told(words, found.memory_is_short) for words in same)))
    name, expert = better
    solution, notes = (
        replace(expert.solution, bound=found.solution.bound),
        (*found.notes, _told(name, found.memory_is_short)),
    )
    return replace(
        found, solution=solution, seconds=expert.seconds, bound=min(found.bound, expert.seconds), notes=notes
    )


def _open_at(task: Task) -> float:
    """The relative gap from which on families are searched too."""
    if task.n_axes <= _FEW_AXES and not task.thorough:
        return _OPEN_ON_FEW_AXES
    if task.shares_layers:
        return _OPEN_IF_SHARED
    return _OPEN_IF_MANY if task.problem.pairs > _MANY else _OPEN


def _told(name: str, memory_is_short: bool) -> str:
    return f"the cheapest plan found{' that fits' if memory_is_short else ''} is of the family of {name}"
