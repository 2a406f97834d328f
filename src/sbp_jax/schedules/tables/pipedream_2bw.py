"""PipeDream-2BW: PipeDream with gradients added up, and two versions of the weights. It changes the mathematics.

Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section 3.1: weights are updated
after m >= p micro-batches, without emptying the pipeline, and each update is by the gradients at the weights before
the last: W(t+1) = W(t) - lr * gradient(W(t-1)).
"""

from ...errors import ScheduleError
from ..schedule import Schedule
from .build import looped, one_direction, one_f_one_b_orders
from .gpipe import bubble
from .one_f_one_b import peak
from .registry import register


@register("pipedream_2bw", bubble, peak)
def pipedream_2bw(ranks: int, microbatches: int) -> Schedule:
    """A run of ``microbatches``, from the first to the last: the pipeline is filled and emptied once, as in 1F1B.

    Raises:
        ScheduleError: there are fewer micro-batches than ranks, so that two versions would not do.
    """
    if microbatches < ranks:
        raise ScheduleError(
            f"schedule 'pipedream_2bw' needs at least as many micro-batches as ranks, but there are {microbatches} for "
            f"{ranks} ranks: take {ranks} micro-batches or more, or 'pipedream', which keeps more versions of weights"
        )
    orders = one_f_one_b_orders(microbatches, range(ranks - 1, -1, -1))
    versions = (2,) * ranks
    return one_direction("pipedream_2bw", microbatches, orders, looped(ranks, ranks), versions, is_synchronous=False)
