"""What every search method is given and gives back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...cluster import Cluster
from ...placement import Placement
from ..costs.cost_graph import CostGraph
from ..optimize.goal import Goal
from ..optimize.search import Found
from .node_roles import NodeRoles


@dataclass(frozen=True, slots=True)
class Task(Goal):
    """What a search method is asked for, and what it may know of the program.

    Attributes:
        find_roles: which nodes decide parameters, optimizer state, data and gradients; not every method asks.
        find_features: by node and choice what a device does, a graph for each of those in ``costs/features.py``; empty
            where that is not known.
        n_axes: how many the mesh has.
        options: the values of the method's options, all of them, by name.
        placement, cluster: the mesh, and the hardware that costs are of; None for a bare cost graph.
    """

    find_roles: Callable[[], NodeRoles] = NodeRoles
    find_features: Callable[[], Sequence[CostGraph]] = tuple
    n_axes: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement | None = None
    cluster: Cluster | None = None

    @property
    def roles(self) -> NodeRoles:
        """Which nodes decide parameters, optimizer state, data and gradients."""
        return self.find_roles()


# None: the pins allow no plan. Raises ``TooSmall`` where none is found that fits into memory.
Solver = Callable[[Task], Found | None]
