"""Spotlight: the sequence-to-sequence policy, trained by proximal policy optimisation.

Gao, Chen and Li, "Spotlight: Optimizing Device Placement for Training Deep Neural Networks", ICML 2018: placement as a
Markov decision process of one op after the other, and several updates of a clipped objective for each set of
placements that were tried, so that fewer need to be tried.
"""

from ..catalogue import register
from .networks import sequence_network
from .policy import OPTIONS, learned
from .task import Placing, PlacingTask


@register(
    "spotlight", family="placing", promises="none", options=OPTIONS,
    paper="Gao, Chen, Li: Spotlight: Optimizing Device Placement for Training Deep Neural Networks, ICML 2018",
)  # fmt: skip
def spotlight(task: PlacingTask) -> Placing:
    """The best placement met while learning."""
    return learned(task, "spotlight", sequence_network(), proximal=True)
