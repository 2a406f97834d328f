"""What the fixed strategies share: the exact best plan of a family, and what families are made of.

An expert's strategy is a restriction of where arguments lie; what it leaves open is searched exactly, at the same
costs, so a strategy is judged by the best plan that it stands for. What is proven is proven for the family: as a
bound for all plans it is 0.
"""

from dataclasses import replace

from ...errors import PlanError
from ..optimize.goal import Start
from ..optimize.search import Found, search
from ..optimize.sweep import sweep
from .node_roles import Leaf
from .restriction import Restriction, divided, divided_on, narrow, whole
from .task import Task

# A family is small, and there are several: so many times the seconds of a search among all plans.
PATIENCE = 0.3


def family(task: Task, name: str) -> Restriction:
    """An empty restriction for a task; ``PlanError`` where the roles of the arguments are not known."""
    if not task.roles.known:
        raise PlanError(
            f"solver={name!r} speaks of parameters, optimizer state and data, but no argument is known to be a "
            "parameter: none that a model's parameters are in is donated. Donate the training state, "
            "donate_argnums=0 say, and return its new value; or pin the parameters, in_sbp=('B', None) say; or use "
            "solver='ilp'"
        )
    return Restriction(task.roles)


def kept(task: Task) -> list[Leaf]:
    """All that a step keeps: parameters, optimizer state, buffers."""
    return [*task.roles.parameters, *(s for s, _ in task.roles.states), *task.roles.buffers]


def split_batch(r: Restriction, axes: range, state_whole: bool) -> None:
    """Every value that counts examples is split on that dim over ``axes``, arguments and activations alike.

    ``state_whole``: what does not is whole there, parameters and their updates. On the other axes matrices of weights
    are split, and nothing is on a dim that data have: those axes split features only. Which dims count examples is
    found by ``planner/graph/batch.py``.
    """
    sizes = r.roles.axis_sizes
    others = [a for a in range(len(sizes)) if a not in axes]
    r.wish(r.roles.data, whole(sizes, others), "whole on the last axis")
    leaves = [leaf for leaf in (*r.roles.data, *r.roles.buffers) if leaf.batch is not None]
    r.wish_each(((x, divided_on(sizes, axes, x.batch or 0)) for x in leaves), "split on the batch dimension")
    none = [leaf for leaf in r.roles.data if leaf.batch is None]
    r.wish(none, whole(sizes, axes), "whole")
    if axes and r.roles.data and len(none) == len(r.roles.data):
        r.notes.append("no dimension of the data was found that counts examples: they are whole")
    r.along(axes, state_whole, others)


def split_data(r: Restriction, axes: range) -> None:
    """The data are split on one dim over ``axes``, whole over the others; which dim is the search's choice."""
    sizes = r.roles.axis_sizes
    others = [a for a in range(len(sizes)) if a not in axes]
    r.wish(r.roles.data, whole(sizes, others), "whole on the last axis")
    r.wish(r.roles.data, divided(sizes, axes, ndim_of_one=True), "split on one dimension")


def best_of_family(task: Task, restriction: Restriction, exact: bool = True) -> Found | None:
    """The best plan of a family within the memory limit; ``exact=False``: a good one, at once."""
    narrowed = narrow(task.problem, task.footprint, restriction)
    if exact:

        def find_start() -> Start | None:
            start = task.find_start() if task.find_start else None
            if start is None:
                return None
            inside = [narrowed.choices.number(choice) for choice in start.plans]
            return Start([choice for choice in inside if choice is not None], start.prices)

        alone = replace(task, problem=narrowed.problem, footprint=narrowed.footprint)
        found = search(replace(alone, patience=PATIENCE * task.patience, guesses=(), find_start=find_start))
    else:
        found = sweep(narrowed.problem, narrowed.footprint, task.limit_bytes)
    if found is None:
        return None
    widen = narrowed.choices.widen
    seen = tuple(widen(choice) for choice in found.solution.seen)
    solution = replace(found.solution, choice=widen(found.solution.choice), bound=0.0, seen=seen)
    return Found(solution, found.seconds, 0.0, prices=found.prices, notes=(*restriction.notes, *found.notes))
