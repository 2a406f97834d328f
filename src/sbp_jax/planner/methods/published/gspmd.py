"""GSPMD: the user's few annotations are followed through the program; what they do not reach is open.

Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation Graphs", arXiv:2105.04663, section 3.5
(sharding propagation). Annotations are pins: ``in_sbp=``, ``sbp.to_global`` and JAX's sharding constraints.
"""

from ....errors import PlanError
from ...catalogue import register
from ...optimize.search import Found
from ..task import Task
from .decided import FILL, filled, reached


@register(
    "gspmd", decides="what follows the user's pins without moving anything", promises="none", options=(FILL,),
    paper="Xu et al.: GSPMD: General and Scalable Parallelization for ML Computation Graphs, arXiv:2105.04663, "
    "section 3.5",
    leaves_open=True,
)  # fmt: skip
def gspmd(task: Task) -> Found | None:
    """The best plan in which everything follows the pins that can do so without communication."""
    pinned = sorted(task.roles.pinned)
    if not pinned:
        raise PlanError(
            "solver='gspmd' follows the user's annotations, and there are none: pin some values, "
            "in_sbp=('S(0)', None) or sbp.to_global(x, sbp=...) or a sharding constraint, or use solver='ilp'"
        )
    first = {n: int(task.problem.nodes[n].argmin()) for n in pinned}
    found = reached(task.problem, first)
    note = f"{len(found)} of {len(task.problem.nodes)} decisions follow {len(pinned)} pins"
    return filled(task, found, "gspmd", [note])
