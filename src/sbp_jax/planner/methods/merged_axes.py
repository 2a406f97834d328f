"""Plans that treat several axes of a mesh as one: what is left of a large mesh's choices is a small mesh's.

The choices of a node grow with the power of the mesh's axes, those of plans that split, reduce or repeat along axes
alike do not: on 2x2x2 they are those of 2x4, or of 8. Where the search among all plans has to stop early, the best of
these is often cheaper than what it found.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from ...rules.widen import Code
from .restriction import Restriction
from .task import Task


def merged_axes(axis_sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Axes to treat as one: all of them, then neighbours; of a mesh with one axis to split along, none."""
    real = [a for a, n in enumerate(axis_sizes) if n > 1]
    if len(real) > 1:
        yield tuple(real)
    if len(real) > 2:
        yield from itertools.pairwise(real)


def restriction(task: Task, *groups: tuple[int, ...]) -> Restriction:
    """Every node's choices whose signatures are the same along the axes of each group; all of them where none is."""
    r = Restriction(task.roles)
    for n, choices in enumerate(task.roles.signatures):
        alike = [k for k, codes in enumerate(choices) if all(_same(c, axes) for c in codes for axes in groups)]
        if alike:
            r.kept[n] = np.array(alike)
    return r


def _same(code: Code, axes: tuple[int, ...]) -> bool:
    return len({code[a] for a in axes}) == 1
