"""ZeRO-2: data parallelism with optimizer state and gradients split over all axes; parameters are whole.

Rajbhandari et al., "ZeRO", SC 2020.
"""

from ..catalogue import register
from ..optimize.search import Found
from .families import best_of_family
from .restriction import Restriction
from .task import Task
from .zero_stages import data_parallel


def restriction(task: Task) -> Restriction:
    """All that counts examples split on the batch dimension; optimizer state and gradients split along every axis
    that divides them."""
    return data_parallel(task, 2, by_batch=True)


def wide(task: Task) -> Restriction:
    """Data split on one dim; optimizer state and gradients split along every axis that divides them."""
    return data_parallel(task, 2, by_batch=False)


@register(
    "zero2", decides="optimizer state and gradients split, the batch over all axes", leaves_open=True,
    paper="Rajbhandari et al., ZeRO, SC 2020, arXiv:1910.02054, section 5",
)  # fmt: skip
def zero2(task: Task) -> Found | None:
    """The best plan that splits the batch, optimizer state and gradients."""
    return best_of_family(task, restriction(task))
