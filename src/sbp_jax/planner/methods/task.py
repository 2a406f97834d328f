"""What every search method is given and gives back; their names."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import PlanError
from ..optimize.goal import Goal
from ..optimize.search import Found
from .node_roles import NodeRoles


@dataclass(frozen=True, slots=True)
class Task(Goal):
    """What a search method is asked for, and what it may know of the program.

    Attributes:
        find_roles: which nodes decide parameters, optimizer state, data and gradients; not every method asks.
        clusters_per_class: how many clusters of ops share one decision, on average.
        n_axes: how many the mesh has.
    """

    find_roles: Callable[[], NodeRoles] = NodeRoles
    clusters_per_class: float = 1.0
    n_axes: int = 1

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
