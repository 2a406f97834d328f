"""ZeRO-3: data parallelism with parameters, optimizer state and gradients split over all axes.

Parameters are gathered where they are used.

Rajbhandari et al., "ZeRO", SC 2020.
"""

from ..catalogue import register
from ..optimize.search import Found
from .families import best_of_family
from .restriction import Restriction
from .task import Task
from .zero_stages import data_parallel


def restriction(task: Task) -> Restriction:
    """All that counts examples split on the batch dimension; parameters, optimizer state and gradients split along
    every axis that divides them."""
    return data_parallel(task, 3, by_batch=True)


def wide(task: Task) -> Restriction:
    """Data split on one dim; parameters, optimizer state and gradients split along every axis that divides them."""
    return data_parallel(task, 3, by_batch=False)


@register(
    "zero3", decides="all state split, the batch over all axes", leaves_open=True,
    paper="Rajbhandari et al., ZeRO, SC 2020, arXiv:1910.02054, section 5",
)  # fmt: skip
def zero3(task: Task) -> Found | None:
    """The best plan that splits the batch, parameters, optimizer state and gradients."""
    return best_of_family(task, restriction(task))
