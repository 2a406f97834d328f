"""TAPP: the graph is cut into parts first, and a sequence-to-sequence network gives the parts their devices.

Mao, Xu, Zhang and others, "TAPP: DNN Training for Task Allocation through Pipeline Parallelism Based on Distributed
Deep Reinforcement Learning", Applied Sciences 11(11), 2021. Parts are made here by merging neighbours
(``coarsen.py``), so that few actions are left to learn; the policy is trained by REINFORCE on the parts and judged on
the whole graph.
"""

from ..catalogue import Option, register
from .coarsen import coarsened
from .ftpipe import widened
from .networks import sequence_network
from .policy import OPTIONS, learned
from .task import Placing, PlacingTask, finished


@register(
    "tapp", family="placing", promises="none", decides="the device of every part of the graph",
    paper="Mao et al.: TAPP: DNN Training for Task Allocation through Pipeline Parallelism Based on Distributed Deep "
    "Reinforcement Learning, Applied Sciences 11(11), 2021",
    options=(Option("parts", 12, "parts of the graph at most", least=1), *OPTIONS),
)  # fmt: skip
def tapp(task: PlacingTask) -> Placing:
    """The best placement of parts met while learning."""
    small = coarsened(task.graph, task.options["parts"])
    found = learned(PlacingTask(small, task.devices, task.options), sequence_network())
    return finished(task, widened(task.graph, small, found.device), notes=(f"{len(small)} parts",))
