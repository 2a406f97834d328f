"""DAPPLE's planner: stage after stage, each time with the rest as one stage, one plan kept for each layers and devices.

Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models", PPoPP 2021, arXiv:2007.01045,
section 4: the seconds of a synchronous step (fill, steady part by its pivot stage, drain, sums of gradients) do not add
up over stages, so that keeping one plan for each (layers, devices) is a heuristic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...planner.catalogue import register
from ..stages.table import Stage
from .task import StageTask


@dataclass(frozen=True, slots=True)
class _Begun:
    """Stages of the first layers: their latencies' sum, slowest pace and longest once; seconds with the rest as one."""

    stages: tuple[Stage, ...] = ()
    latency: float = 0.0
    pace: float = 0.0
    once: float = 0.0
    whole: float = np.inf


@register(
    "dapple",
    family="stages",
    decides="stages and their devices, for the least seconds of a synchronous step",
    paper="Fan et al.: DAPPLE, PPoPP 2021, arXiv:2007.01045, section 4",
)
def dapple(task: StageTask) -> Sequence[Stage] | None:
    """The best of all plans met: those begun, each with the rest as one stage."""
    layers, sizes = task.layers, task.problem.sizes
    begun: list[dict[int, _Begun]] = [{} for _ in range(layers + 1)]
    begun[0][0] = _Begun()
    best: tuple[tuple[bool, float], tuple[Stage, ...]] | None = None
    for i in range(layers):
        for used, plan in begun[i].items():
            for o, size in enumerate(sizes):
                if size == task.devices - used:
                    whole = _with(task, plan, (i, layers, o))
                    seconds = _seconds(task, whole)
                    if np.isfinite(seconds):
                        key = task.too_large(whole.stages) > 0, seconds
                        best = (key, whole.stages) if best is None or key < best[0] else best
                if size >= task.devices - used:
                    continue
                for j in range(i + 1, layers):
                    longer = _with(task, plan, (i, j, o))
                    left = _rest(task, task.devices - used - size)
                    if left is None or not np.isfinite(longer.pace):
                        continue
                    known = begun[j].get(used + size)
                    seconds = _seconds(task, _with(task, longer, (j, layers, left)))
                    if known is None or seconds < known.whole:
                        begun[j][used + size] = _Begun(
                            longer.stages, longer.latency, longer.pace, longer.once, seconds
                        )  # fmt: skip
    return None if best is None else best[1]


def _with(task: StageTask, plan: _Begun, stage: Stage) -> _Begun:
    p = task.problem
    return _Begun(
        (*plan.stages, stage), plan.latency + float(p.latency[stage]), max(plan.pace, float(p.pace[stage])),
        max(plan.once, float(p.once[stage])),
    )  # fmt: skip


def _seconds(task: StageTask, plan: _Begun) -> float:
    return plan.latency + (task.microbatches - 1) * plan.pace + plan.once


def _rest(task: StageTask, devices: int) -> int | None:
    """The option for what is left: the largest of at most so many devices."""
    return max((o for o, s in enumerate(task.problem.sizes) if s <= devices), key=task.problem.sizes.__getitem__,
               default=None)  # fmt: skip
