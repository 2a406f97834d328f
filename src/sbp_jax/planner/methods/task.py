"""What every search method is given and gives back; their names."""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import PlanError
from ..costs.cost_graph import CostGraph
from ..memory.protocol import FootprintLike
from ..optimize.fit import FindStart
from ..optimize.search import Found
from .node_roles import NodeRoles


@dataclass(frozen=True, slots=True)
class Task:
    """A planning problem: choose one strategy for each node, at the least seconds a step.

    Attributes:
        problem: seconds by choice, and by pair of choices.
        footprint: the bytes over the step of any choice.
        limit_bytes: what a device may hold; None: anything.
        gap: stop when the proven relative gap is at most this.
        time_limit: seconds the search may take, where it can take long.
        thorough: whether to take them where that proves more.
        progress: told what is being done.
        find_roles: which nodes decide parameters, optimizer state, data and gradients; not every method asks.
        below: plans of so many seconds or more are of no interest.
        patience: multiplies the seconds that a search takes to fit into memory, where it is not thorough.
        find_start: gives a plan that fits, or None; asked where the cheapest plan does not fit.
        clusters_per_class: how many clusters of ops share one decision, on average.
    """

    problem: CostGraph
    footprint: FootprintLike
    limit_bytes: float | None
    gap: float
    time_limit: float | None
    progress: Callable[[str], None]
    find_roles: Callable[[], NodeRoles] = NodeRoles
    thorough: bool = False
    below: float = math.inf
    patience: float = 1.0
    find_start: FindStart | None = None
    clusters_per_class: float = 1.0

    @property
    def roles(self) -> NodeRoles:
        """Which nodes decide parameters, optimizer state, data and gradients."""
        return self.find_roles()


# None: the pins allow no plan. Raises ``TooSmall`` where none is found that fits into memory.
Solver = Callable[[Task], Found | None]

_SOLVERS: dict[str, Solver] = {}


def register(name: str) -> Callable[[Solver], Solver]:
    """Register a search method under the name that ``AutoParallelConfig(solver=...)`` takes."""

    def add(solver: Solver) -> Solver:
        if name in _SOLVERS:
            raise PlanError(f"there is a solver {name!r} already")
        _SOLVERS[name] = solver
        return solver

    return add


def solvers() -> list[str]:
    """The names of the search methods."""
    return sorted(_SOLVERS)


def lookup(name: str) -> Solver:
    """The search method of a name; ``PlanError`` lists the names there are."""
    if name not in _SOLVERS:
        near = difflib.get_close_matches(str(name), _SOLVERS, n=1)
        raise PlanError(
            f"solver {name!r} is not known{f'; did you mean {near[0]!r}?' if near else ''} "
            f"Possible: {', '.join(map(repr, solvers()))}"
        )
    return _SOLVERS[name]
