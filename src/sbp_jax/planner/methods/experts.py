"""Fixed strategies, and larger families around them: what a search falls back on where there is no time for it, and
must not be above.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from ..costs.cost_graph import IMPOSSIBLE
from ..memory.infeasible import OutOfTime, TooSmall
from ..optimize.search import Found
from ..optimize.sweep import sweep
from . import data_parallel, megatron, zero2, zero3
from . import merged_axes as coarse
from .families import PATIENCE, best_of_family
from .restriction import Restriction
from .task import Task

# Those that hold least first: the likeliest to fit.
_FAMILIES = {
    "split_state": zero3.wide,
    "whole_state": data_parallel.wide,
    "whole_but_last": megatron.wide,
    "split_optimizer": zero2.wide,
}
# Each is a part of a family: the same wishes for the state, and all activations follow the batch. The largest is last.
_STRATEGIES = {
    "zero3": zero3.restriction,
    "data_parallel": data_parallel.restriction,
    "zero2": zero2.restriction,
    "megatron": megatron.restriction,
}
_WORDS = {
    "split_state": "plans that split parameters and optimizer state along every axis",
    "whole_state": "plans that keep the state whole and split the data",
    "whole_but_last": "plans that split parameters along the last axis and the data along the others",
    "split_optimizer": "plans that split optimizer state and gradients along every axis",
}
# A family may take so many times its share of the budget that is left.
_SHARE = 1.5
# Guesses need not be proven further than this.
_GUESS_GAP = 0.01
# The smallest family may take so many times as long as others: what comes after begins with its plan.
_PATIENT = 10.0


def cheapest(task: Task, tried: Collection[str] = ()) -> tuple[str, Found] | None:
    """The best of the fixed strategies, and of plans that treat axes as one, that takes less than ``task.below``
    seconds; and what to call it. None if there is none. ``tried``: those to leave out.
    """
    return _cheapest_of(task, {words: rule for words, rule in _families(task).items() if words not in tried})


def cheapest_strategy(task: Task) -> tuple[str, Found] | None:
    """As ``cheapest``, of the fixed strategies themselves: small families, searched in little time."""
    return _cheapest_of(task, _STRATEGIES) if task.roles.known else None


def _cheapest_of(task: Task, families: Mapping[str, Callable[[Task], Restriction]]) -> tuple[str, Found] | None:
    best = None
    for k, (words, rule) in enumerate(families.items()):
        if task.budget.over:
            break
        budget = task.budget.share(min(1.0, _SHARE / (len(families) - k)))
        # With a finite ``below`` a search that finds no plan ends there: the smallest limit of a family tells nothing.
        alone = replace(task, budget=budget, below=min(task.below, IMPOSSIBLE))
        try:
            found = best_of_family(alone, rule(alone))
        except TooSmall:  # no plan of this family was found that fits
            continue
        if found is not None and found.seconds < task.below:
            task, best = replace(task, below=found.seconds), (words, found)
    return best


def coarsest(task: Task) -> dict[str, Found | None]:
    """The best plan found that treats all axes as one, by what to call it; nothing where there is one axis."""
    for words, rule in _merged(task).items():
        alone = replace(task, below=min(task.below, IMPOSSIBLE), patience=_PATIENT)
        try:
            return {words: best_of_family(alone, rule(alone))}
        except TooSmall:
            return {words: None}
    return {}


def one_axis_fewer(task: Task) -> dict[str, Found | None]:
    """The best plan found that fits and treats the last two axes as one, by what to call it; nothing where two axes or
    fewer have devices to split over.

    The last axes are the likeliest to be alike: where a cluster has nodes, its devices are numbered node by node.
    """
    rules = list(_merged(task).items())
    if len(rules) < 2:
        return {}
    words, rule = rules[-1]
    task.progress(f"beginning with {words}")
    # As patient as a search among all plans; the smallest limit that works is told by that one.
    alone = replace(task, patience=task.patience / PATIENCE, tell_smallest=False)
    try:
        return {words: best_of_family(alone, rule(alone))}
    except (TooSmall, OutOfTime):
        return {words: None}


def guesses(task: Task, part: float) -> list[tuple[int, ...]]:
    """The best plans found that treat axes as one, without a memory limit; each in ``part`` of what is left of the
    budget.
    """
    plans = []
    for rule in _merged(task).values():
        gap = max(task.gap, _GUESS_GAP)
        alone = replace(task, limit_bytes=None, gap=gap, thorough=False, budget=task.budget.share(part))
        found = best_of_family(alone, rule(alone))
        if found is not None:
            plans.append(found.solution.choice)
    return plans


def _merged(task: Task) -> dict[str, Callable[[Task], Restriction]]:
    found: dict[str, Callable[[Task], Restriction]] = {}
    for axes in coarse.merged_axes(task.roles.axis_sizes):
        numbers = " and ".join(map(str, axes))
        found[f"plans that split along axes {numbers} of the mesh alike"] = partial(_alike, axes=axes)
    return found


def _alike(task: Task, axes: tuple[int, ...]) -> Restriction:
    return coarse.restriction(task, axes)


def _families(task: Task) -> dict[str, Callable[[Task], Restriction]]:
    """By what to call them. Axes as one first: those are the larger families."""
    found = _merged(task)
    if task.roles.known:
        found |= {_WORDS[name]: rule for name, rule in _FAMILIES.items()}
    return found


def fallback(task: Task) -> tuple[str, Found] | None:
    """The best of the fixed strategies, each found in one sweep, and its name; None where none is possible or fits.

    Where the roles of the arguments are not known, one sweep over all plans takes their place.
    """
    found: dict[str, Found | None] = {"sweep": sweep(task.problem, task.footprint, task.limit_bytes)}
    if task.roles.known:
        rules = _STRATEGIES | _FAMILIES
        found |= {name: best_of_family(task, rule(task), exact=False) for name, rule in rules.items()}
    possible = {name: one for name, one in found.items() if one is not None}
    return min(possible.items(), key=lambda item: item[1].seconds, default=None)
