"""PipeTransformer: while layers freeze the pipeline shrinks to half, and its free devices become replicas.

He et al., "PipeTransformer: Automated Elastic Pipelining for Distributed Training of Large-scale Models", ICML 2021,
arXiv:2102.03161, sections 3.2 and 3.3: stages of even parameter sizes, in which a frozen layer counts a sixth (it has
no gradients, optimizer state, or activations kept); the pipeline halves as long as its largest stage is then no larger
than it was before anything was frozen.

The plan is that of the training step as it is, with all its gradients: which layers are frozen the user says. Not done
of the paper: deciding when to freeze (section 3.1), the change from one pipeline to the next in a run, and keeping the
activations of frozen layers (section 3.4).
"""

import itertools
from collections.abc import Sequence

import numpy as np

from ...errors import PlanError
from ...planner.catalogue import Option, register
from ..stages.costs import Array
from ..stages.table import Stage
from .task import StageTask, balanced

# Section 3.2: the memory of a frozen layer, by its parameters.
_FROZEN = 1 / 6


@register(
    "pipetransformer",
    family="stages",
    decides="how far a pipeline shrinks while layers freeze, and even stages",
    paper="He et al.: PipeTransformer, ICML 2021, arXiv:2102.03161, sections 3.2 and 3.3",
    options=(
        Option("stages", 0, "how many there are before anything is frozen; 0: as many as the devices allow"),
        Option("frozen", 0, "how many layers, from the first, are frozen"),
    ),
)
def pipetransformer(task: StageTask) -> Sequence[Stage] | None:
    """Even stages, halved as often as frozen layers allow."""
    frozen, possible = task.options["frozen"], {count for _, count in task.groups()}
    if frozen > task.layers:
        raise PlanError(f"frozen={frozen}: the step has {task.layers} layers, of which so many cannot be frozen")
    first = task.options["stages"] or max(possible, default=0)
    whole = _bytes(task, task.group_of(first))
    left = np.where(np.arange(task.layers) < frozen, whole * _FROZEN, whole)
    most, count = _largest(whole, first), first
    while count % 2 == 0 and count // 2 in possible and _largest(left, count // 2) <= most:
        count //= 2
    return task.alike(balanced(left, count), task.group_of(count))


def _bytes(task: StageTask, option: int) -> Array:
    """Of every layer the bytes of its weights, or where none are known its seconds."""
    each = np.arange(task.layers)
    given = task.costs.weights_bytes
    known = task.costs.seconds if given is None or not given[each, each + 1].any() else given
    return np.asarray(known[each, each + 1, option], float)


def _largest(amounts: Array, parts: int) -> float:
    ends = np.concatenate(([0.0], np.cumsum(amounts)))
    cuts = [0, *balanced(amounts, parts), len(amounts)]
    return float(max(ends[j] - ends[i] for i, j in itertools.pairwise(cuts)))
