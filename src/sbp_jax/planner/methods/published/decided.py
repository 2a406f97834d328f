"""From what a method decided to an answer: some nodes' choices, the rest by the exact search, or as they follow."""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from ...catalogue import Option
from ...costs.cost_graph import IMPOSSIBLE, CostGraph
from ...memory.infeasible import TooSmall
from ...optimize.presolve import without_presolve
from ...optimize.program import Solution, improve
from ...optimize.search import Found
from ..families import best_of_family
from ..restriction import Restriction
from ..task import Task

FILL = Option("fill", True, "what the method leaves open is searched for exactly; False: it follows what is decided")
SEED = Option("seed", 0, "of its random numbers")


def answer(task: Task, choice: Sequence[int], name: str, notes: Sequence[str] = ()) -> Found | None:
    """A whole choice as what was found; None where it is impossible. ``TooSmall`` where it does not fit."""
    seconds = task.problem.evaluate(choice)
    if seconds >= IMPOSSIBLE:
        return None
    held = float(task.footprint.over_time(choice).max(initial=0.0)) if task.limit_bytes is not None else 0.0
    if task.limit_bytes is not None and held > task.limit_bytes:
        raise TooSmall(
            f"the {name} solver looks at no memory limit; its plan holds {held:.0f} bytes, and {task.limit_bytes:.0f} "
            "fit. Raise memory_limit, or use solver='ilp'",
            held,
        )
    return Found(Solution(tuple(choice), seconds, 0.0, len(choice), 0), seconds, 0.0, notes=tuple(notes))


def filled(task: Task, decided: Mapping[int, int], name: str, notes: Sequence[str] = ()) -> Found | None:
    """The best plan with the choices ``decided`` by node; with ``fill=False`` the others follow them."""
    if task.options.get(FILL.name, True):
        kept = {n: np.array([k]) for n, k in decided.items()}
        return best_of_family(task, Restriction(task.roles, kept, notes=list(notes)))
    return answer(task, propagate(task.problem, decided), name, notes)


def propagate(problem: CostGraph, decided: Mapping[int, int]) -> tuple[int, ...]:
    """Every node takes the choice that is cheapest beside its decided neighbours; those next that follow at least cost.

    Where that ends in an impossible choice, one node at a time is improved until nothing is gained.
    """
    r = without_presolve(problem)
    cost = {n: c.copy() for n, c in r.nodes.items()}
    least = {n: float(c.min()) for n, c in r.nodes.items()}
    found: dict[int, int] = {}
    queue = [(-1.0, n) for n in decided]
    heapq.heapify(queue)
    rest = iter(problem.order)
    while len(found) < len(cost):
        if not queue:  # what nothing decided reaches: from its own cheapest choice on
            queue.append((0.0, next(n for n in rest if n not in found)))
        _, n = heapq.heappop(queue)
        if n in found:
            continue
        k = found[n] = decided[n] if n in decided else int(cost[n].argmin())
        for a in sorted(r.around[n]):
            if a not in found:
                cost[a] += r.matrix(a, n)[:, k]
                heapq.heappush(queue, (float(cost[a].min()) - least[a], a))
    choice = tuple(found[n] for n in range(len(problem.nodes)))
    if problem.evaluate(choice) >= IMPOSSIBLE:
        found = improve(r, found)
        choice = tuple(found[n] for n in range(len(problem.nodes)))
    return choice


def reached(problem: CostGraph, decided: Mapping[int, int]) -> dict[int, int]:
    """``decided``, and the choices of the nodes that follow them without moving anything, each the cheapest such."""
    r = without_presolve(problem)
    moved = {n: np.zeros(len(c)) for n, c in r.nodes.items()}
    found: dict[int, int] = {}
    queue = list(decided)
    for n in queue:
        if n in found:
            continue
        if n in decided:
            k = decided[n]
        else:
            free = np.flatnonzero(moved[n] <= 0.0)
            if not len(free):
                continue
            k = int(free[r.nodes[n][free].argmin()])
        found[n] = k
        for a in sorted(r.around[n]):
            if a not in found:
                moved[a] += r.matrix(a, n)[:, k]
                queue.append(a)
    return found
