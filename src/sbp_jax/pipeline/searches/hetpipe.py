"""HetPipe: virtual workers, each a pipeline over some devices, which share what they learn in waves.

Park et al., "HetPipe: Enabling Large DNN Training on (Whimpy) Heterogeneous GPU Clusters", USENIX ATC 2020,
arXiv:2005.14038, sections 4 and 5: with W workers each stage has W devices, one of each worker; within a worker, layers
are shared out for the least time of the slowest stage within memory. The devices of a placement are alike, and so are
workers.

Not done of the paper: workers of unequal devices, and its wave-synchronous updates, in which workers may be some waves
apart. A wave is a step here: all workers wait for each other.
"""

from collections.abc import Sequence

import numpy as np

from ...errors import PlanError
from ...planner.catalogue import Option, register
from ..stages.table import Stage
from .task import StageTask


@register(
    "hetpipe", family="stages", decides="the number of virtual workers, and the stages of each",
    paper="Park et al.: HetPipe, USENIX ATC 2020, arXiv:2005.14038, sections 4 and 5",
    options=(Option("workers", 0, "virtual workers; 0: each number that the devices allow is tried"),),
)  # fmt: skip
def hetpipe(task: StageTask) -> Sequence[Stage] | None:
    """Of all numbers of workers, the stages whose slowest is the fastest."""
    asked, sizes = task.options["workers"], task.problem.sizes
    possible = {sizes[o]: (o, count) for o, count in task.groups()}
    if asked and asked not in possible:
        raise PlanError(
            f"workers={asked}: {task.devices} devices have stages of {', '.join(map(str, possible))} devices, one of "
            "each virtual worker; give one of these numbers, or 0 to try all"
        )
    paces, found = task.paces, []
    for size, (o, count) in possible.items():
        if asked in (0, size):
            allowed = np.zeros(paces.shape, bool)
            allowed[:, :, o] = True
            stages = task.least(paces, np.maximum, allowed, stages=count)
            found += [] if stages is None else [stages]
    return min(found, key=lambda stages: max(paces[s] for s in stages), default=None)
