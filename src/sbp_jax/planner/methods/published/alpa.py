"""Alpa's program for one stage: every op one of its parallel algorithms, partial results reduced at once, no memory.

Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning", OSDI 2022,
arXiv:2201.12023, section 4: a 0-1 program over ops' algorithms with resharding costs on edges. Its algorithms end with
their communication, so that no op reads a partial value; and it has no memory constraint.
"""

import numpy as np

from ...catalogue import register
from ...costs.cost_graph import Subset
from ...optimize.program import solve
from ...optimize.search import Found
from ..task import Task
from .axis_by_axis import Codes, signatures_of
from .decided import answer


@register(
    "alpa", promises="none",
    decides="the signature of every value, as the best plan of the strategies that Alpa has",
    paper="Zheng et al.: Alpa: Automating Inter- and Intra-Operator Parallelism, OSDI 2022, arXiv:2201.12023, "
    "section 4",
)  # fmt: skip
def alpa(task: Task) -> Found | None:
    """The cheapest plan in which no op reads a partial value. ``TooSmall`` where it does not fit."""
    signatures = signatures_of(task, "alpa")
    reads = task.roles.reads
    kept = Subset([_reduced(codes, n) for codes, n in zip(signatures, reads, strict=True)])
    found = solve(kept.of(task.problem), task.gap, task.budget)
    return None if found is None else answer(task, kept.widen(found.choice), "alpa")


def _reduced(codes: Codes, n_read: int) -> np.ndarray:
    """The choices that read the fewest partial values: none, wherever an op can do without."""
    partial = np.array([sum(c < -1 for code in way[:n_read] for c in code) for way in codes])
    return np.flatnonzero(partial == partial.min())
