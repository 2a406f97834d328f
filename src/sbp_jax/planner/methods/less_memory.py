"""Less memory at nearly the same speed: of the plans within a few percent of the least seconds, one that peaks low.

OneFlow's ``enable_auto_memory`` (SlightMemoryDown: "decrease the memory while maintaining the throughput"). Bytes
held at the points where plans peak get a price; the largest price at which a plan is still within the tolerance is
closed in on by halving. Found so, not proven: no claim is made that no smaller peak exists.
"""

from collections.abc import Callable
from dataclasses import replace

from ..costs.cost_graph import penalised
from ..memory.infeasible import TooSmall
from ..optimize.search import Found
from . import Task

# A plan may take this part of the seconds more; so many prices are tried. Set by hand.
TOLERANCE = 0.05
_ROUNDS = 10
# From one price to the next until one is too dear; at the first a peak's bytes cost as much as the step takes.
_FACTOR = 4.0
# Less than this part of the peak is not worth any seconds.
_WORTH = 1e-3


def less_memory(task: Task, best: Found, method: Callable[[Task], Found | None]) -> tuple[Found, str]:
    """A plan of at most ``1 + TOLERANCE`` times the seconds of ``best`` and no higher peak, and what to tell of it."""
    most = best.seconds * (1 + TOLERANCE)

    def peak(found: Found) -> tuple[float, int]:
        memory = task.footprint.over_time(found.solution.choice)
        return float(memory.max(initial=0.0)), int(memory.argmax()) if len(memory) else 0

    first, at = peak(best)
    chosen, lowest, points = best, first, {at}
    price, too_dear = best.seconds / max(first, 1.0), None
    for _ in range(_ROUNDS):
        weights = [(price / len(points), task.footprint.at(t)) for t in sorted(points)]
        task.progress(f"looking for less memory, {lowest / 2**20:.4g} MiB")
        try:
            found = method(replace(task, problem=penalised(task.problem, weights)))
        except TooSmall:  # no plan found that fits, by a method that does not find all
            found = None
        seconds = task.problem.evaluate(found.solution.choice) if found is not None else float("inf")
        if found is None or seconds > most:
            too_dear = price
        else:
            found = Found(replace(found.solution, objective=seconds), seconds, best.bound)
            height, at = peak(found)
            if height < lowest or (height == lowest and seconds < chosen.seconds):
                chosen, lowest = found, height
            points.add(at)
        if too_dear is None:
            price *= _FACTOR
        else:
            price = too_dear / _FACTOR if price == too_dear else (price * too_dear) ** 0.5
            if price > 0.9 * too_dear:
                break
    if lowest > (1 - _WORTH) * first:
        near = f"within {TOLERANCE:.0%} of the least seconds"
        return best, f"less memory preferred: no plan found {near} holds even {_WORTH:.1%} less"
    saved = 1 - lowest / first
    slower = chosen.seconds / best.seconds - 1 if best.seconds else 0.0
    return chosen, f"less memory preferred: {saved:.1%} less at the peak for {slower:.1%} more seconds"
