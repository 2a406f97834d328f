"""RaNNC: layers are merged into blocks of even work with little to send, and a dynamic program cuts between blocks.

Tanaka et al., "Automatic Graph Partitioning for Very Large-scale Deep Learning", IPDPS 2021, arXiv:2103.16063, section
III: atomic subcomponents, blocks (coarsening), stages by dynamic programming within memory, for each number of stages
that is a power of two, and the best of them.
"""

from collections.abc import Sequence

import numpy as np

from ...planner.catalogue import Option, register
from ..stages.table import Stage
from .task import StageTask


@register(
    "rannc", family="stages", decides="stages between blocks of layers, for the least time of the slowest",
    paper="Tanaka et al.: RaNNC, IPDPS 2021, arXiv:2103.16063, section III",
    options=(Option("blocks", 32, "how many blocks layers are merged into", least=1),),
)  # fmt: skip
def rannc(task: StageTask) -> Sequence[Stage] | None:
    """Of 1, 2, 4, ... stages the best, each number with the least of the largest seconds."""
    ends = np.zeros(task.layers + 1, bool)
    ends[blocks(task, task.options["blocks"])] = True
    allowed = np.broadcast_to((ends[:-1, None] & ends[None, :])[:, :, None], task.problem.pace.shape)
    most = min(int(ends.sum()) - 1, task.devices)
    counts = [2**k for k in range(most.bit_length()) if 2**k <= most]
    found = (task.least(task.paces, np.maximum, allowed, stages=n) for n in counts)
    return task.best(f for f in found if f is not None)


def blocks(task: StageTask, count: int) -> list[int]:
    """Where blocks begin and end: neighbours merge, those of the least work first, of equal ones where most is sent."""
    each = np.arange(task.layers)
    seconds = list(np.where(np.isfinite(s := task.costs.seconds[each, each + 1]), s, 0.0).mean(axis=1))
    sent = list(np.asarray(task.costs.transfer_seconds, float).mean(axis=1))
    ends = list(range(task.layers + 1))
    while len(seconds) > count:
        k = min(range(len(seconds) - 1), key=lambda k: (seconds[k] + seconds[k + 1], -sent[k + 1], k))
        seconds[k : k + 2] = [seconds[k] + seconds[k + 1]]
        del sent[k + 1], ends[k + 1]
    return ends
