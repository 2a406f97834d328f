"""Piper: the least time of the slowest stage within memory, which hangs on how many stages follow.

Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021,
section 4: a dynamic program over (layers left, devices, stages that follow), whose
inner program chooses data and tensor parallelism and recomputation of one stage. The inner one is the planner here. Of
stages with the same slowest one, those whose micro-batches pass the soonest are taken.
"""

from collections.abc import Sequence

import numpy as np

from ...planner.catalogue import register
from ..stages.table import Stage
from .task import StageTask

_ROUNDING = 1e-9


@register(
    "piper", family="stages", decides="stages and their devices, for the least time of the slowest within memory",
    paper="Tarnawski, Narayanan, Phanishayee: Piper, NeurIPS 2021, section 4", leaves_open=True,
)  # fmt: skip
def piper(task: StageTask) -> Sequence[Stage] | None:
    """The least of the largest seconds from one micro-batch to the next, then the least sum of seconds."""
    paces = task.paces
    found = task.least(paces, np.maximum)
    if found is None:
        return None
    slowest = max(paces[s] for s in found)
    cost = np.where(np.isfinite(paces), task.problem.latency, np.inf)
    return task.least(cost, np.add, allowed=paces <= slowest * (1 + _ROUNDING))
