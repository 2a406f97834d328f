"""PipeDream: 1F1B without an end, weights updated after every backward pass. It changes the mathematics.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, sections 3.2 (1F1B) and 3.3
(weight stashing: the backward pass of a micro-batch uses the weights of its forward pass, so a rank keeps as many
versions as it has micro-batches under way). A gradient is by up to p-1 updates older than the weights it changes.
"""

from ..schedule import Schedule
from .build import looped, one_direction, one_f_one_b_orders
from .gpipe import bubble
from .one_f_one_b import peak
from .registry import register


@register("pipedream", bubble, peak)
def pipedream(ranks: int, microbatches: int) -> Schedule:
    """A run of ``microbatches``, from the first to the last: the pipeline is filled and emptied once, as in 1F1B.

    The longer the run, the smaller the bubble; rank r keeps min(p-r, m) versions of its weights.
    """
    orders = one_f_one_b_orders(microbatches, range(ranks - 1, -1, -1))
    versions = peak(ranks, microbatches)
    return one_direction("pipedream", microbatches, orders, looped(ranks, ranks), versions, False, update_every=1)
