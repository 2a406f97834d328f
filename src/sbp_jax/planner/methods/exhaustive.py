"""Everything tried: for graphs small enough, and to hold the other methods against."""

import math

import numpy as np

from ...errors import PlanError
from ..catalogue import register
from ..costs.cost_graph import IMPOSSIBLE
from ..memory.infeasible import TooSmall
from ..optimize.program import Solution
from ..optimize.reductions import MOST_ENTRIES
from ..optimize.search import Found
from .task import Task

# numpy has at most 64 dims.
_MOST_FREE = 60
_SAYABLE = 10**100


@register("exhaustive", promises="exact")
def exhaustive(task: Task) -> Found | None:
    """The cheapest plan of all, within the memory limit; ``PlanError`` where there are too many to try,
    ``TooSmall`` where none fits."""
    problem = task.problem
    # A node with one choice needs no trying; numpy has at most 64 dims, so the others get one each.
    free = [n for n, c in enumerate(problem.nodes) if len(c) > 1]
    count = math.prod(len(problem.nodes[n]) for n in free)
    if count > MOST_ENTRIES or len(free) > _MOST_FREE:
        # Of a large graph there are more than a float can say.
        many = f"{count:.3g}" if count < _SAYABLE else f"10^{sum(math.log10(len(problem.nodes[n])) for n in free):.0f}"
        raise PlanError(
            f"the exhaustive solver tries every plan, and there are {many} of {len(free)} decisions: it is for graphs "
            f"of up to {MOST_ENTRIES:.3g} plans and {_MOST_FREE} decisions; use solver='ilp'"
        )
    axis = {n: k for k, n in enumerate(free)}
    total = np.full([len(problem.nodes[n]) for n in free], 0.0)
    for n, cost in enumerate(problem.nodes):
        total = total + (cost.reshape(_shape(len(free), {axis[n]: len(cost)})) if n in axis else float(cost[0]))
    for (a, b), m in problem.edges.items():
        m = m if a in axis else m[:1]
        m = m if b in axis else m[:, :1]
        total = total + m.reshape(
            _shape(len(free), {axis[n]: k for n, k in zip((a, b), m.shape, strict=True) if n in axis})
        )
    smallest = math.inf
    for flat in np.argsort(total, axis=None, kind="stable"):
        index = np.unravel_index(flat, total.shape)
        seconds = float(total[index])
        if seconds >= IMPOSSIBLE:
            break
        choice = [0] * len(problem.nodes)
        for n, k in zip(free, index, strict=True):
            choice[n] = int(k)
        held = float(task.footprint.over_time(choice).max(initial=0.0)) if task.limit_bytes is not None else 0.0
        if task.limit_bytes is None or held <= task.limit_bytes:
            return Found(Solution(tuple(choice), seconds, seconds, len(free), count), seconds, seconds)
        smallest = min(smallest, held)
    if smallest < math.inf:
        raise TooSmall(
            f"no plan fits into a memory limit of {task.limit_bytes:.0f} bytes per device; the smallest that one does "
            f"is {smallest:.0f} bytes. Raise memory_limit, use more devices, or a smaller batch",
            smallest,
        )
    return None


def _shape(ndim: int, lengths: dict[int, int]) -> list[int]:
    return [lengths.get(k, 1) for k in range(ndim)]
