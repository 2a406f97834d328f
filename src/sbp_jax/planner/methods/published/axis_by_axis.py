"""A mesh's axes decided one after the other: on those before it is known what is split, those after it are whole."""

from collections.abc import Callable, Sequence

import numpy as np

from ....errors import PlanError
from ....rules.widen import Code
from ...costs.cost_graph import IMPOSSIBLE, CostGraph, Subset
from ...optimize.presolve import without_presolve
from ...optimize.program import Solution, improve
from ..task import Task

# The signatures of all values that a node reads and makes, by its choice.
Codes = Sequence[tuple[Code, ...]]
# The choices of a problem's nodes, or None where there are none.
Decide = Callable[[CostGraph], Sequence[int] | None]


def signatures_of(task: Task, name: str) -> Sequence[Codes]:
    """By node and choice the signatures; ``PlanError`` for a bare cost graph, which has none."""
    found = task.roles.signatures
    if len(found) != len(task.problem.nodes):
        raise PlanError(f"solver={name!r} goes by what signatures split, and this problem has costs only; use 'ilp'")
    return found


def split_axis_by_axis(
    problem: CostGraph, signatures: Sequence[Codes], axes: Sequence[int], decide: Decide
) -> Solution | None:
    """``decide`` is asked for each axis in turn: of each node's choices those are left that agree with what was decided
    on axes before, and of these the ones that split, reduce or repeat least along axes after. Tofu (Wang, Huang and Li,
    EuroSys 2019, section 5.1) proves such recursion to be as good as cutting at once, under its assumptions.
    """
    kept = [np.arange(len(c)) for c in problem.nodes]
    for at, axis in enumerate(axes):
        later = axes[at + 1 :]
        asked = Subset([_least(signatures[n], k, later) for n, k in enumerate(kept)])
        found = decide(asked.of(problem))
        if found is None:
            return None
        whole = asked.widen(found)
        kept = [_agreeing(signatures[n], k, whole[n], axis) for n, k in enumerate(kept)]
    choice = [int(k[problem.nodes[n][k].argmin()]) for n, k in enumerate(kept)]
    if problem.evaluate(choice) >= IMPOSSIBLE:  # a way that there is on one axis need not be there on two
        better = improve(without_presolve(problem), dict(enumerate(choice)))
        choice = [better[n] for n in range(len(choice))]
    seconds = problem.evaluate(choice)
    return None if seconds >= IMPOSSIBLE else Solution(tuple(choice), seconds, 0.0, len(choice), 0)


def _least(codes: Codes, kept: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Of the choices kept, those with the fewest values that are not whole along ``axes``."""
    if not axes or len(kept) == 1:
        return kept
    apart = np.array([sum(code[a] != -1 for code in codes[k] for a in axes) for k in kept])
    return kept[apart == apart.min()]


def _agreeing(codes: Codes, kept: np.ndarray, choice: int, axis: int) -> np.ndarray:
    """Of the choices kept, those that do along ``axis`` what one choice does."""
    along = [code[axis] for code in codes[choice]]
    return np.array([k for k in kept if [code[axis] for code in codes[k]] == along])
