"""Neo: how embedding tables are cut, the largest first: by rows, by columns, both, or copied; all else exactly.

Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models",
ISCA 2022, arXiv:2104.05158, section 4.2: tables are cut along rows or columns or trained data-parallel, by a cost of
lookups and messages, one after the other. Tables that lie whole on one device each are the other half of that section:
"neo_tables", which places ops.
"""

from ....errors import PlanError
from ...catalogue import register
from ...costs.cost_graph import IMPOSSIBLE
from ...optimize.search import Found
from ..task import Task
from .argument_pins import Pinnable, pinnable
from .decided import FILL, filled, propagate

# Tables that are decided, of those that are looked up in.
_MOST = 64


@register(
    "neo", decides="how embedding tables are cut", promises="none", leaves_open=True,
    paper="Mudigere et al.: Software-Hardware Co-design for Fast and Scalable Training of DLRM, ISCA 2022, "
    "arXiv:2104.05158, section 4.2",
    options=(FILL,),
)  # fmt: skip
def neo(task: Task) -> Found | None:
    """The largest table takes the cut with the least cost, the rest following it; then the next."""
    found = tables(task)
    decided: dict[int, int] = {}
    for table in found:
        cost = {k: task.problem.evaluate(propagate(task.problem, decided | {table.node: k})) for k in table.choices}
        best = min(cost, key=lambda k: (cost[k], k))
        if cost[best] < IMPOSSIBLE:
            decided[table.node] = best
    return filled(task, decided, "neo", [f"tables cut: {', '.join(t.label for t in found if t.node in decided)}"])


def tables(task: Task) -> list[Pinnable]:
    """The parameters that are looked up in, the largest first. ``PlanError`` where there are none."""
    nodes = {leaf.node for leaf in task.roles.parameters if leaf.is_table}
    found = [x for x in pinnable(task, len(task.problem.nodes), 3**task.n_axes, "neo") if x.node in nodes][:_MOST]
    if not nodes:
        raise PlanError(
            "solver='neo' decides how embedding tables are cut, and no parameter of this program is looked up in by "
            f"integers (a gather): of {len(task.roles.parameters)} parameters none is. Use solver='ilp'"
        )
    return found
