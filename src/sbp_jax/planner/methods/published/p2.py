"""P2: where logical axes lie on the hierarchy of the hardware, and of which collectives sums over them are made.

Xie, Norman, Grewe and Vytiniotis, "Synthesizing Optimal Parallelism Placement and Reduction Strategies on Hierarchical
Systems for Deep Learning", MLSys 2022, arXiv:2110.10548: a parallelism matrix says how large a factor of each logical
axis (rows) lies in each level (columns), and for each matrix reductions are synthesised. The mesh's axes are the
levels here, so that a level that is to be shared between logical axes is given as several: 2x2x2 for a node of 8. A
logical axis is then some of the mesh's, along which every value has the same component, and the plan of each matrix is
the exact one under that. Its sums are boxed by routes, which are such programs; ``boxing/reductions.py`` synthesises.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....boxing import of_route, reduction, route
from ....cluster import Cluster
from ....errors import PlanError
from ....placement import Placement
from ...catalogue import Option, register
from ...memory.infeasible import TooSmall
from ...optimize.search import Found
from .. import merged_axes
from ..families import best_of_family
from ..task import Task

# Axes along which a program is synthesised.
_MOST = 4
_ITEM_BYTES = 4
# Logical axes; on a mesh of fewer, as many as it has.
_DEFAULT = 2


@register(
    "p2", decides="which of the mesh's axes are one logical axis", promises="none", leaves_open=True,
    paper="Xie, Norman, Grewe, Vytiniotis: Synthesizing Optimal Parallelism Placement and Reduction Strategies on "
    "Hierarchical Systems for Deep Learning, MLSys 2022, arXiv:2110.10548",
    options=(Option("axes", _DEFAULT, "logical axes that the mesh's are dealt out to", least=1, most=6),),
)  # fmt: skip
def p2(task: Task) -> Found | None:
    """The cheapest of the exact plans of all parallelism matrices."""
    sizes = task.roles.axis_sizes
    if not sizes or task.placement is None or task.cluster is None:
        raise PlanError("solver='p2' goes by the axes of a mesh, and this problem has costs only; use 'ilp'")
    real = [a for a, n in enumerate(sizes) if n > 1]
    n_axes = min(task.options["axes"], max(len(real), 1))
    if n_axes < task.options["axes"] and task.options["axes"] > _DEFAULT:
        raise PlanError(
            f"solver='p2' with axes={task.options['axes']}: the mesh {'x'.join(map(str, sizes))} has {len(real)} axes "
            f"of more than one device, and each lies in one logical axis. Give axes of at most {n_axes}, or a mesh of "
            "more axes: 2x2x2 for a node of 8"
        )
    best: tuple[tuple[tuple[int, ...], ...], Found] | None = None
    short: TooSmall | None = None
    deals = list(groupings(real, n_axes))
    for k, groups in enumerate(deals):
        alone = replace(task, budget=task.budget.share(1.0 / (len(deals) - k)))
        if best is not None:
            alone = replace(alone, below=min(task.below, best[1].seconds))
        task.progress(f"parallelism matrix {k + 1} of {len(deals)}")
        try:
            found = best_of_family(alone, merged_axes.restriction(task, *groups))
        except TooSmall as error:
            short = error if short is None or error.smallest_bytes < short.smallest_bytes else short
            continue
        if found is not None and (best is None or found.seconds < best[1].seconds):
            best = groups, found
    if best is None:
        if short is not None:
            raise short
        return None
    groups, found = best
    return replace(found, notes=(*_told(task, groups, task.placement, task.cluster), *found.notes))


def groupings(axes: Sequence[int], n: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to deal axes out to exactly ``n`` logical ones, whose order does not matter."""

    def dealt(rest: Sequence[int], groups: tuple[tuple[int, ...], ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
        if len(groups) + len(rest) < n:
            return
        if not rest:
            yield groups
            return
        first, *others = rest
        for k, group in enumerate(groups):
            yield from dealt(others, (*groups[:k], (*group, first), *groups[k + 1 :]))
        if len(groups) < n:
            yield from dealt(others, (*groups, (first,)))

    yield from dealt(axes, ()) if axes else iter([()])


def matrix(groups: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[list[int]]:
    """The parallelism matrix: by logical axis and axis of the mesh the factor that lies there."""
    return [[n if a in group else 1 for a, n in enumerate(sizes)] for group in groups]


def _told(task: Task, groups: Sequence[tuple[int, ...]], where: Placement, cluster: Cluster) -> Iterator[str]:
    """The matrix, and for each logical axis of several of the mesh's how the largest gradient is summed along it."""
    rows = "; ".join(" ".join(map(str, row)) for row in matrix(groups, where.shape))
    yield f"p2: parallelism matrix, columns {', '.join(where.axis_names)}: {rows}"
    elements = max((int(np.prod(leaf.shape)) for leaf in task.roles.parameters), default=0)
    for group in groups:
        if not 1 < len(group) <= _MOST or not elements:
            continue
        size = int(np.prod([where.shape[a] for a in group]))
        elements = -(-elements // size) * size  # in equal chunks
        made = reduction(float(elements * _ITEM_BYTES), where.shape, group, cluster)
        src = ", ".join("P" if a in group else "B" for a in range(where.ndim))
        way = route(src, ", ".join("B" * where.ndim), where, (elements,), "float32", cluster)
        named = made.words(where.axis_names)
        is_same = of_route(way) is not None and abs(way.seconds - made.seconds) < 1e-6 * made.seconds
        boxed = "the plan's boxing is that program" if is_same else (
            f"the plan's boxing has a quicker way, {' + '.join(way.collectives)}, {1e3 * way.seconds:.4g} ms"
            if way.seconds < made.seconds
            else f"the plan's boxing has no such steps and takes {1e3 * way.seconds:.4g} ms"
        )  # fmt: skip
        along = " x ".join(where.axis_names[a] for a in group)
        yield (
            f"p2: a sum of {elements * _ITEM_BYTES / 2**20:.3g} MiB along {along} is cheapest as {named}: "
            f"{1e3 * made.seconds:.4g} ms, one all_reduce {1e3 * made.plain_seconds:.4g} ms; {boxed}"
        )
