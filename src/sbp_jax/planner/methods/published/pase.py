"""PaSE: dynamic programming over the order of nodes that keeps the sets of dependents small.

Elango, "PaSE: Parallelization Strategies for Efficient DNN Training", IPDPS 2021, arXiv:2107.04752, section 4: a node's
best answer is tabled for all choices of its dependent set, the later nodes that it or what was decided before it is
joined to; the order takes the node whose set is smallest (figure 4's ``GenerateSeq``). The paper's tables hold all
configurations; here large ones lose those that are in no best plan first (``methods/dp.py``).
"""

from ...catalogue import register
from ...optimize.search import Found
from ..dp import eliminate
from ..priced import until_it_fits
from ..task import Task


@register(
    "pase", promises="exact",
    paper="Elango: PaSE: Parallelization Strategies for Efficient DNN Training, IPDPS 2021, arXiv:2107.04752, "
    "section 4",
)  # fmt: skip
def pase(task: Task) -> Found | None:
    """The cheapest plan over an order of small dependent sets; where memory is short, bytes cost more until it fits."""
    return until_it_fits(task, lambda problem: eliminate(problem, by_dependents=True), "pase")
