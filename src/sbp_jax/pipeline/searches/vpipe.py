"""vPipe: from even stages, layers move between neighbours, as Kernighan and Lin move nodes between halves.

Zhao et al., "vPipe: A Virtualized Acceleration System for Achieving Efficient and Scalable Pipeline Parallel DNN
Training", IEEE TPDS 33(3), 2022, section 4: in a pass each layer moves at most once, always the one whose move is best,
even if it is for the worse; then all moves after the best point are taken back. What is made again to spare memory is
the planner's choice (``remat="auto"``); swapping to the host is not modelled.
"""

from collections.abc import Sequence

from ...planner.catalogue import Option, register
from ..stages.table import Stage
from .task import StageTask


@register(
    "vpipe", family="stages", decides="stages on groups of devices alike, by moves of layers between neighbours",
    paper="Zhao et al.: vPipe, IEEE TPDS 33(3), 2022, section 4",
    options=(Option("passes", 10, "passes over all layers at most, for each number of stages", least=1),),
)  # fmt: skip
def vpipe(task: StageTask) -> Sequence[Stage] | None:
    """The best number of stages, each number with its cuts moved."""
    return task.best(_moved(task, o, count) for o, count in task.groups())


def _moved(task: StageTask, option: int, count: int) -> list[Stage]:
    cuts = [round(task.layers * s / count) for s in range(1, count)]
    best = _value(task, cuts, option)
    for _ in range(task.options["passes"]):
        now, locked = list(cuts), set[int]()
        improved = False
        while True:
            moves = [m for m in _moves(task, now) if m[0] not in locked]
            if not moves:
                break
            value, layer, now = min((_value(task, after, option), layer, after) for layer, after in moves)
            locked.add(layer)
            if value < best:
                best, cuts, improved = value, list(now), True
        if not improved:
            break
    return task.alike(cuts, option)


def _value(task: StageTask, cuts: Sequence[int], option: int) -> tuple[int, float]:
    stages = task.alike(cuts, option)
    return task.too_large(stages), task.problem.total_seconds(stages)


def _moves(task: StageTask, cuts: Sequence[int]) -> list[tuple[int, list[int]]]:
    """(layer, cuts after it has moved over a cut), where no stage is left empty."""
    ends = [0, *cuts, task.layers]
    found = []
    for k in range(1, len(ends) - 1):
        for layer, to in ((ends[k] - 1, ends[k] - 1), (ends[k], ends[k] + 1)):
            if ends[k - 1] < to < ends[k + 1]:
                found.append((layer, [*ends[1:k], to, *ends[k + 1 : -1]]))
    return found
