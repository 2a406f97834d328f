"""torchgpipe's balance by time: layers in blocks of seconds as even as can be, on devices alike.

Kim et al., "torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models", arXiv:2004.09910, section 4.2,
after Barany and Grinberg, "Block partitions of sequences", Israel Journal of Mathematics 206, 2015. The seconds are
the cost model's here; what is sent, held and done once a step is not looked at.
"""

from collections.abc import Sequence

import numpy as np

from ...planner.catalogue import Option, register
from ..stages.table import Stage
from .task import StageTask, balanced


@register(
    "torchgpipe", family="stages", decides="stages of even seconds on groups of devices alike",
    paper="Kim et al.: torchgpipe, arXiv:2004.09910, section 4.2",
    options=(Option("stages", 0, "how many; 0: each number that the devices allow is tried"),),
)  # fmt: skip
def torchgpipe(task: StageTask) -> Sequence[Stage] | None:
    """The best number of blocks, each number with its most even cuts."""
    asked = task.options["stages"]
    groups = [(task.group_of(asked), asked)] if asked else list(task.groups())
    each = np.arange(task.layers)
    return task.best(
        task.alike(balanced(seconds, count), o)
        for o, count in groups
        if np.isfinite(seconds := task.costs.seconds[each, each + 1, o]).all()
    )
