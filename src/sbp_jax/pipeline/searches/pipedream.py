"""PipeDream's partitioner: the stages whose slowest is the fastest, replicated stages included.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1: a dynamic
program over layers and workers; a stage's time is that of its compute and of the sums of its weights' gradients. What a
stage's devices do with its replicas is the planner's choice here. Memory is not looked at, nor how long the pipeline
takes to fill.
"""

from collections.abc import Sequence

import numpy as np

from ...planner.catalogue import register
from ..stages.table import Stage
from .task import StageTask


@register(
    "pipedream",
    family="stages",
    decides="stages and their devices, for the least time of the slowest",
    paper="Narayanan et al.: PipeDream, SOSP 2019, section 3.1",
)
def pipedream(task: StageTask) -> Sequence[Stage] | None:
    """The least of the largest seconds from one micro-batch to the next."""
    return task.least(task.paces, np.maximum, has_memory=False)
