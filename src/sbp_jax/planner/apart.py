"""Where memory is short and layers are planned alike: some of them as without a limit, the others within it.

A plan of layers that all decide alike uses memory up in steps of all layers: what is left between two such plans is
used by none of them (GPT-3 within 72 GiB a device: 20 % of it, and half a per cent of the step). So the stack is cut
once: what its first layers decide is taken from the plan without a limit, what the others decide from the best plan
that fits, with as many first ones as fit. Both parts are classes of their own then. The bound is the smaller one of
that problem's and of the one where all decide alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .costs.assemble import Decisions
from .costs.cost_graph import CostGraph, penalised
from .graph.stack import cut, layer_numbers
from .memory.footprint import Footprint
from .methods import Task
from .optimize.program import solve
from .optimize.search import Found

# Worth while where the best plan leaves a larger gap, and if it saves so much of that plan.
_OPEN, _WORTH = 4e-3, 1e-3
# So many numbers of layers are tried where the bytes of the mixture were taken to be less than they are.
_TRIES = 3
# Of work, for the bound, which need not be closer than this.
_BOUND_SECONDS, _BOUND_GAP = 2.0, 1e-3


@dataclass(frozen=True, slots=True)
class Grouping:
    """What the nodes of a cost graph decide, and the bytes over the step of any choice."""

    decisions: Decisions
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class Apart:
    """A plan of a stack cut once: its problem, what that decides, what was found."""

    problem: CostGraph
    grouping: Grouping
    found: Found


def apart(
    task: Task, found: Found, grouping: Grouping, price: Callable[[Sequence[int]], tuple[CostGraph, Decisions]]
) -> Apart | None:
    """A plan that fits and takes less than ``found`` by planning some layers apart; None where none is known.

    ``grouping`` is that of ``task.problem``; ``price`` gives the problem of other classes of clusters.
    """
    limit, free, best = task.limit_bytes, found.free_choice, found.solution.choice
    is_open = found.seconds - found.bound > _OPEN * found.seconds
    if limit is None or free is None or not (found.memory_is_short and task.shares_layers and is_open):
        return None
    decisions, footprint = grouping.decisions, grouping.footprint
    clusters, classes = decisions.clustering.clusters, decisions.class_of
    differ = {k for k in range(decisions.n_classes) if free[k] != best[k]}
    if not differ:
        return None
    task.progress("planning layers apart")
    layer = layer_numbers(clusters, classes)
    layers = int(layer.max()) + 1
    where = {v.id: decisions.clustering.cluster_of.get(op.index, -1) for op in decisions.program.nodes for v in op.outs}
    at = np.array([where[i] for i in footprint.value_ids], np.int64)
    held_by = np.where(at >= 0, layer[at], layers)

    def peak(k: int) -> float:
        return float(footprint.of_two(free, best, held_by < k).max(initial=0.0))

    k, beyond = 0, layers
    while beyond - k > 1:
        middle = (k + beyond) // 2
        k, beyond = (middle, beyond) if peak(middle) <= limit else (k, middle)
    for _ in range(_TRIES):
        if k < 1:
            return None
        numbers, origin = cut(clusters, classes, differ, layer < k)
        problem, new = price(numbers)
        task.budget.spend(problem.pairs)
        bytes_of = Footprint(new, problem, footprint.liveness)
        choice = translated(problem, new, decisions, origin, free, best)
        over = float(bytes_of.over_time(choice).max(initial=0.0)) - limit
        if over <= 0:
            break
        k -= max(1, math.ceil(over / max((peak(layers) - peak(0)) / layers, 1.0)))
    else:
        return None
    bound, rate, choice = _bound(task, found, grouping, problem, bytes_of, choice, limit)
    seconds = problem.evaluate(choice)
    if seconds > (1 - _WORTH) * found.seconds:
        return None
    note = (
        f"memory is short: {k} of {layers} layers are planned apart from the others, which takes "
        f"{1 - seconds / found.seconds:.2%} less than the same for all"
    )
    bound = min(bound, found.bound, seconds)  # of plans that decide alike, and of those of two parts
    solution = replace(found.solution, choice=tuple(choice), objective=seconds, bound=bound)
    result = replace(found, solution=solution, seconds=seconds, bound=bound, seconds_per_byte=rate,
                     free_choice=None, notes=(*found.notes, note))  # fmt: skip
    return Apart(problem, Grouping(new, bytes_of), result)


def translated(
    problem: CostGraph, new: Decisions, old: Decisions, origin: Sequence[tuple[int, bool]], free: Sequence[int],
    best: Sequence[int],
) -> list[int]:  # fmt: skip
    """A choice of the new problem: of first parts what ``free`` chooses, of all else what ``best`` does."""
    choice = [(free if is_first else best)[k] for k, is_first in origin]
    choice += [0] * (len(problem.nodes) - len(choice))
    known = {(hub.source, hub.result): n for n, hub in old.hubs.items()}
    around: dict[int, list[tuple[int, np.ndarray]]] = {n: [] for n in new.hubs}
    for (a, b), m in problem.edges.items():
        for hub, other, costs in ((a, b, m), (b, a, m.T)):
            if hub in around:
                around[hub].append((other, costs))
    for n, hub in new.hubs.items():
        k, is_first = origin[hub.source]
        before = known.get((k, hub.result))
        held = {frozenset(hub.held(c)): c for c in range(len(hub.sets or hub.codes))}
        chosen = free if is_first else best
        same = None if before is None else held.get(frozenset(old.hubs[before].held(chosen[before])))
        if same is None:  # no hub before: what is cheapest for those around it
            same = int((problem.nodes[n] + sum(m[:, choice[other]] for other, m in around[n])).argmin())
        choice[n] = same
    return choice


def _bound(
    task: Task, found: Found, grouping: Grouping, problem: CostGraph, bytes_of: Footprint, choice: Sequence[int],
    limit: float,
) -> tuple[float, float, Sequence[int]]:  # fmt: skip
    """A bound of the problem within the limit, the seconds a byte that prove it, and the best plan that is met.

    The price is the one at which the plan without a limit and the one within it cost the same, where the first peaks.
    """
    free, best = found.free_choice or (), found.solution.choice
    held = [grouping.footprint.over_time(x) for x in (free, best)]
    point = int(held[0].argmax())
    spared = float(held[0][point] - held[1][point])
    rate = max(0.0, task.problem.evaluate(best) - task.problem.evaluate(free)) / spared if spared > 0 else 0.0
    priced = penalised(problem, [(rate, bytes_of.at(point))])
    solution = solve(priced, _BOUND_GAP, task.budget.some(_BOUND_SECONDS), [choice], relaxed=True)
    if solution is None:
        return 0.0, rate, choice
    fitting = [c for c in solution.seen if bytes_of.over_time(c).max(initial=0.0) <= limit]
    return solution.bound - rate * limit, rate, min([choice, *fitting], key=problem.evaluate)
