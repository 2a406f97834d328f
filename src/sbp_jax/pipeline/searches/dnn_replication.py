"""DNN partitioning with replication: parts of the graph, each on several devices that share its samples.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient Algorithms for Device Placement of DNN Graph
Operators", NeurIPS 2020, arXiv:2006.16423: the dynamic program of section 5.1 over ideals (sets of ops that hold all
that their ops read), with the paper's extension to replicated parts. A part on d devices has the load of one device
over d, and besides the seconds in which its replicas sum their weights' gradients; the largest load is minimised, for
pipelines, within memory. The model is a chain of layers here, whose ideals are its prefixes.

Of the paper's load the tables say: what one device computes, what a stage sends, and what d devices do once a step.
The other methods take what the planner found for d devices in place of "load over d". The stages that are found are
planned like any, so that a stage's devices may share more than samples, and memory is that of such a plan. Without
replication, op by op on unlike devices, the same program is ``dnn_partitioning`` of ``sbp.place_ops``.
"""

from collections.abc import Sequence

import numpy as np

from ...planner.catalogue import register
from ..stages.costs import Array, transfers
from ..stages.table import Stage
from .task import StageTask


@register(
    "dnn_replication", family="stages", decides="stages and their replicas, for the least of the largest loads",
    paper="Tarnawski et al.: Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, "
    "arXiv:2006.16423, section 5.1 with replication",
)  # fmt: skip
def dnn_replication(task: StageTask) -> Sequence[Stage] | None:
    """The least of the largest loads, within memory."""
    return task.least(loads(task), np.maximum)


def loads(task: StageTask) -> Array:
    """(L, L + 1, S): the seconds of a micro-batch of each stage: those on the smallest group of devices over how often
    it is replicated, what it sends, and its part of what it does once a step, the sums of gradients above all."""
    sizes = np.array(task.problem.sizes, float)
    alone = int(sizes.argmin())
    computed = task.costs.seconds[:, :, alone : alone + 1] * sizes[alone] / sizes
    found = computed + transfers(task.costs) + task.problem.once / task.microbatches
    return np.where(np.isfinite(task.problem.pace), found, np.inf)
