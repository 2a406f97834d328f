"""DistIR: a grid of data, tensor and pipeline parallelism and micro-batches, each point simulated.

Santhanam et al., "DistIR: An Intermediate Representation for Optimizing Distributed Neural Networks", EuroMLSys 2021,
arXiv:2111.05426, section 4: all points of a grid are simulated, the fastest that fits is taken. Stages have the same
number of layers; the schedule is simulated task by task. How a stage's devices share data and tensors is the planner's
choice, the number of micro-batches the pipeline's.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from ...errors import ScheduleError
from ...planner.catalogue import register
from ...schedules import StageSeconds, by_name, simulate
from ..stages.costs import sends
from ..stages.table import Stage
from .task import StageTask


@register(
    "distir",
    family="stages",
    decides="the number of stages, of as many layers each, by simulation of the schedule",
    paper="Santhanam et al.: DistIR, EuroMLSys 2021, arXiv:2111.05426, section 4",
)
def distir(task: StageTask) -> Sequence[Stage] | None:
    """Of all numbers of stages, the one whose simulated step is the shortest."""
    found = []
    for o, count in task.groups():
        stages = task.alike((round(task.layers * s / count) for s in range(1, count)), o)
        seconds = _simulated(task, stages)
        if np.isfinite(seconds):
            found.append((task.too_large(stages) > 0, seconds, stages))
    return min(found, default=(False, 0.0, None))[2]


def _simulated(task: StageTask, stages: Sequence[Stage]) -> float:
    """Seconds of a step; forward a third of a stage's seconds."""
    each = [float(task.costs.seconds[s]) for s in stages]
    if not np.isfinite(each).all():
        return np.inf
    back, ahead = sends(task.costs)
    sent = [(float(ahead[j, o]), float(back[i, o])) for i, j, o in stages]
    # Without overlap a task lasts until it has sent.
    waits = [(0.0, 0.0) if task.overlaps else pair for pair in sent]
    moved = [(here[0] + after[1]) / 2 if task.overlaps else 0.0 for here, after in itertools.pairwise(sent)]
    try:
        schedule = by_name(task.schedule, len(stages), task.microbatches)
    except ScheduleError:
        return np.inf
    timing = simulate(
        schedule, [StageSeconds(s / 3 + a, s / 3 + b, s / 3) for s, (a, b) in zip(each, waits, strict=True)], moved
    )
    return timing.makespan_seconds + max(float(task.problem.once[s]) for s in stages)
