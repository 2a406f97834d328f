"""TAPP: the graph is cut into parts first, and a sequence-to-sequence network gives the parts their devices.

Mao, Tu, Xi, Wang and Xu, "TAPP: DNN Training for Task Allocation through Pipeline Parallelism Based on Distributed Deep
Reinforcement Learning", Applied Sciences 11(11), 4785, 2021: a network partitions the layers into groups, another with
attention allocates the groups, by the means of their layers' features; policy gradients train both. Here the parts are
made before, by merging neighbours (``coarsen.py``), so that few actions are left to learn (``hdp`` learns the groups,
too). Placements of parts are judged on the whole graph.
"""

import numpy as np

from ..catalogue import Option, register
from .coarsen import coarsened
from .ftpipe import widened
from .networks import sequence_network
from .policy import OPTIONS, Judged, as_devices, learned
from .simulate import Simulator
from .task import Placing, PlacingTask


@register(
    "tapp", family="placing", promises="none", decides="the device of every part of the graph",
    paper="Mao et al.: TAPP: DNN Training for Task Allocation through Pipeline Parallelism Based on Distributed Deep "
    "Reinforcement Learning, Applied Sciences 11(11), 4785, 2021",
    options=(Option("parts", 12, "parts of the graph at most", least=1), *OPTIONS),
)  # fmt: skip
def tapp(task: PlacingTask) -> Placing:
    """The best placement of parts met while learning."""
    small = coarsened(task.graph, task.options["parts"])

    def judge(s: Simulator, actions: np.ndarray) -> Judged:
        device = widened(task.graph, small, as_devices(s, actions))
        return Judged(task.simulator.score(device), device)

    return learned(task, "tapp", sequence_network(), judge, graph=small)
