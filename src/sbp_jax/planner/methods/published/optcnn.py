"""OptCNN: nodes of one or two neighbours are eliminated, edges beside each other added; the rest is tried whole.

Jia, Lin, Qi and Aiken, "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks", ICML 2018,
arXiv:1802.04924, section 5 (algorithm 1). The paper's graphs end in two nodes. Where one ends in more plans than can be
tried, choices that are in no best plan are struck first (``methods/dp.py``); where that is not enough, the node with
most neighbours keeps the choice of a local search.
"""

from ...catalogue import register
from ...optimize.search import Found
from ..dp import eliminate
from ..priced import until_it_fits
from ..task import Task

_NEIGHBOURS = 2


@register(
    "optcnn", promises="exact",
    paper="Jia, Lin, Qi, Aiken: Exploring Hidden Dimensions in Parallelizing CNNs, ICML 2018, arXiv:1802.04924, "
    "section 5",
)  # fmt: skip
def optcnn(task: Task) -> Found | None:
    """The cheapest plan by node and edge elimination; where memory is short, bytes cost more until it fits."""
    return until_it_fits(task, lambda problem: eliminate(problem, widest=_NEIGHBOURS), "optcnn")
