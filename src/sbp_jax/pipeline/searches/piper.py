"""Piper: the least time of the slowest stage within memory, which hangs on how many stages follow.

Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021, section
4: a dynamic program over (layers left, devices, stages that follow), whose inner program chooses data and tensor
parallelism and recomputation of one stage. The inner one is the planner here. Which of the stages with the same slowest
one are taken, the exact search decides.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...planner.catalogue import register
from ..stages.dp import plan_stages
from ..stages.table import Stage
from .task import StageTask

_ROUNDING = 1e-9


@register(
    "piper", family="stages", decides="stages and their devices, for the least time of the slowest within memory",
    paper="Tarnawski, Narayanan, Phanishayee: Piper, NeurIPS 2021, section 4", leaves_open=True,
)  # fmt: skip
def piper(task: StageTask) -> Sequence[Stage] | None:
    """The least of the largest seconds from one micro-batch to the next, then the least seconds of a step."""
    paces, costs = task.paces, task.costs
    found = task.least(paces, np.maximum)
    if found is None:
        return None
    slowest = max(paces[s] for s in found)
    left = replace(costs, seconds=np.where(paces <= slowest * (1 + _ROUNDING), costs.seconds, np.inf))
    best = plan_stages(
        left, task.meshes, task.devices, task.microbatches, limit_bytes=task.limit_bytes, in_flight=task.in_flight,
        overlaps=task.overlaps, window=task.window,
    )  # fmt: skip
    return [(i, j, o) for (i, j), o in zip(best.ranges, best.options, strict=True)]
