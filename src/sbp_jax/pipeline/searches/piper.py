"""Piper: the least seconds from one micro-batch to the next within memory, which hangs on how many stages follow.

Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021, section
4: a dynamic program over (layers left, devices, stages that follow), whose inner program chooses data and tensor
parallelism and recomputation of one stage. The inner one is the planner here. Which of the stages with the same slowest
one are taken, the exact search decides.

The paper's throughput is that of the slowest stage. Where a schedule waits for micro-batches to come back (1F1B whose
transfers run beside compute), their ways there and back count, too: the least limit is searched by halving, each time
with the table of least latencies within it, and of the stages within the least one those with the least latencies are
taken.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...planner.catalogue import register
from ..stages.dp import plan_stages
from ..stages.table import Adds, Stage, fill
from .task import StageTask

_ROUNDING, _CLOSE = 1e-9, 1e-6


@register(
    "piper", family="stages", decides="stages and their devices, for the least time of the slowest within memory",
    paper="Tarnawski, Narayanan, Phanishayee: Piper, NeurIPS 2021, section 4", leaves_open=True,
)  # fmt: skip
def piper(task: StageTask) -> Sequence[Stage] | None:
    """The least seconds from one micro-batch to the next, then the least seconds of a step."""
    paces, costs = task.paces, task.costs
    found = task.least(paces, np.maximum)
    if found is None:
        return None
    slowest = max(paces[s] for s in found)
    if task.problem.window is not None:
        return _with_ways(task, found, float(slowest))
    left = replace(costs, seconds=np.where(paces <= slowest * (1 + _ROUNDING), costs.seconds, np.inf))
    best = plan_stages(
        left, task.meshes, task.devices, task.microbatches, limit_bytes=task.limit_bytes, in_flight=task.in_flight,
        overlaps=task.overlaps,
    )  # fmt: skip
    return [(i, j, o) for (i, j), o in zip(best.ranges, best.options, strict=True)]


def _with_ways(task: StageTask, found: Sequence[Stage], low: float) -> Sequence[Stage]:
    """The stages with the least pace, ways there and back included; none has one below ``low``."""
    problem, paces = task.problem, task.paces

    def pace(stages: Sequence[Stage]) -> float:
        return max(problem.stage_seconds(stages)[1], *(float(paces[s]) for s in stages))

    def within(limit: float) -> tuple[Stage, ...] | None:
        assert problem.window is not None
        most = limit * (1 + _ROUNDING)
        table = fill(problem, paces <= most, Adds(problem.latency), limits=problem.window * most)
        return None if table is None else table.stages(table.best()[1], 1e-12 * table.best()[0])

    high = pace(found)
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        better = within(middle)
        if better is None:
            low = middle
        else:
            found, high = better, min(pace(better), middle)
    return within(high) or found
