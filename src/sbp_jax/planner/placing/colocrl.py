"""ColocRL: a sequence-to-sequence network gives ops their devices, trained by REINFORCE.

Mirhoseini, Pham, Le, Steiner, Larsen, Zhou, Kumar, Norouzi, Bengio and Dean, "Device Placement Optimization with
Reinforcement Learning", ICML 2017, arXiv:1706.04972, section 3: an LSTM reads the ops, another with attention gives one
device after the other. There the reward is a measured run, here a simulated one, and merging (``ops=``) makes the
groups that the paper makes by hand.
"""

from ..catalogue import register
from .networks import sequence_network
from .policy import OPTIONS, learned
from .task import Placing, PlacingTask


@register(
    "colocrl", family="placing", promises="none", options=OPTIONS,
    paper="Mirhoseini et al.: Device Placement Optimization with Reinforcement Learning, ICML 2017, arXiv:1706.04972, "
    "section 3",
)  # fmt: skip
def colocrl(task: PlacingTask) -> Placing:
    """The best placement met while learning."""
    return learned(task, "colocrl", sequence_network())
