"""PipeDream-2BW: PipeDream with gradients added up, and two versions of the weights. It changes the mathematics.

Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section 3.1: weights are updated
after m >= p micro-batches, without emptying the pipeline, and each update is by the gradients at the weights before
the last: W(t+1) = W(t) - lr * gradient(W(t-1)).
"""

from ...errors import ScheduleError
from ..schedule import Schedule
from ..timing import StageSeconds
from . import gpipe, one_f_one_b
from .build import looped, one_direction, one_f_one_b_orders
from .registry import register


def bubble(ranks: int, microbatches: int, seconds: StageSeconds, update_every: int = 0) -> float:
    """That of 1F1B, whatever the updates."""
    return gpipe.bubble(ranks, microbatches, seconds)


def peak(ranks: int, microbatches: int, update_every: int = 0) -> tuple[int, ...]:
    """That of 1F1B, whatever the updates."""
    return one_f_one_b.peak(ranks, microbatches)


@register("pipedream_2bw", bubble, peak)
def pipedream_2bw(ranks: int, microbatches: int, update_every: int = 0) -> Schedule:
    """A run of ``microbatches``, from the first to the last: the pipeline is filled and emptied once, as in 1F1B.

    ``update_every``: how many micro-batches an update is made of; by default the fewest that are possible.

    Raises:
        ScheduleError: there are fewer micro-batches than ranks, or fewer in an update, so that two versions would not
            do; updates that do not divide the micro-batches.
    """
    if microbatches < ranks:
        raise ScheduleError(
            f"schedule 'pipedream_2bw' needs at least as many micro-batches as ranks, but there are {microbatches} for "
            f"{ranks} ranks: take {ranks} micro-batches or more, or 'pipedream', which keeps more versions of weights"
        )
    possible = [n for n in range(ranks, microbatches + 1) if microbatches % n == 0]
    if update_every and update_every not in possible:
        raise ScheduleError(
            f"schedule 'pipedream_2bw' updates after at least as many micro-batches as there are ranks, {ranks}, and "
            f"equally many each time; update_every={update_every} of {microbatches} micro-batches is not possible, but "
            f"{', '.join(map(str, possible))}"
        )
    orders = one_f_one_b_orders(microbatches, range(ranks - 1, -1, -1))
    return one_direction(
        "pipedream_2bw", microbatches, orders, looped(ranks, ranks), (2,) * ranks, False,
        update_every=update_every or possible[0], update_delay=1,
    )  # fmt: skip
