"""Which arguments a search may pin, and how: the largest ones, each by the signatures that it can be stored in."""

from dataclasses import dataclass

import numpy as np

from ....errors import PlanError
from ..task import Task


@dataclass(frozen=True, slots=True)
class Pinnable:
    """An argument's node, its label, and by signature the node's cheapest choice with it."""

    node: int
    label: str
    choices: tuple[int, ...]


def pinnable(task: Task, most: int, ways: int, name: str) -> list[Pinnable]:
    """At most ``most`` arguments, the largest first, each with at most ``ways`` signatures, the cheapest first.

    ``PlanError`` where nothing is known of arguments.
    """
    roles = task.roles
    leaves = (*roles.parameters, *roles.data)
    if not leaves:
        raise PlanError(
            f"solver={name!r} pins parameters and data, and none is known: donate the training state, donate_argnums=0 "
            "say, or use solver='ilp'"
        )
    found: dict[int, Pinnable] = {}
    for leaf in sorted(leaves, key=lambda x: (-np.prod(x.shape, dtype=float), x.node)):
        if leaf.node in found or leaf.node in roles.pinned:
            continue
        cost, best = task.problem.nodes[leaf.node], {}
        for k in np.argsort(cost, kind="stable"):
            code = leaf.codes[k]
            if min(code) >= -1:
                best.setdefault(code, int(k))
        if len(best) > 1:
            found[leaf.node] = Pinnable(leaf.node, leaf.label, tuple(best.values())[:ways])
        if len(found) == most:
            break
    return list(found.values())
