"""One value, several signatures wanted: which is boxed from which, at the least cost in all.

Costs have a direction (to cut a whole tensor is free, to gather it is not), so this is a minimum arborescence, not a
spanning tree: Edmonds, "Optimum branchings", J. Res. NBS 71B (1967). SciPy has none, and networkx would be a
dependency for this alone.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from ..cluster import Cluster
from ..signature import Signature
from .routes import cost_matrix


def serve(
    src: Signature, needs: Sequence[Signature], shape: Sequence[int], itemsize: int, mesh: Sequence[int],
    cluster: Cluster,
) -> dict[Signature, Signature]:  # fmt: skip
    """By signature needed, the one it is boxed from: ``src`` or another one needed.

    A value made partial and needed both whole and split, say, is reduced once and then cut. No other choice costs
    less in all; of equal ones it is by the order of ``needs``.
    """
    return dict(_serve(src, tuple(dict.fromkeys(needs)), tuple(shape), itemsize, tuple(mesh), cluster))


@functools.lru_cache(maxsize=16384)
def _serve(
    src: Signature, needs: tuple[Signature, ...], shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...],
    cluster: Cluster,
) -> dict[Signature, Signature]:  # fmt: skip
    wanted = [s for s in needs if s != src]
    if len(wanted) <= 1:
        return dict.fromkeys(wanted, src)
    states = [src, *wanted]
    seconds, sent = cost_matrix(states, shape, itemsize, mesh, cluster)
    # Bytes break ties between routes of the same time.
    cost = seconds + 1e-18 * np.where(np.isfinite(sent), sent, 0.0)
    # What cannot be moved costs more than all that can.
    finite = cost[np.isfinite(cost)]
    cost = np.where(np.isfinite(cost), cost, len(cost) * finite.max(initial=0.0) + 1e-9)
    return {states[i]: states[p] for i, p in arborescence(cost).items()}


def arborescence(cost: np.ndarray) -> dict[int, int]:
    """The parent of every node but 0 in the cheapest tree of edges that lead away from node 0.

    ``cost[a, b]`` is finite and of the edge from ``a`` to ``b``.
    """
    n = len(cost)
    parent = {b: min((a for a in range(n) if a != b), key=lambda a: cost[a, b]) for b in range(1, n)}
    cycle = _cycle(parent)
    if not cycle:
        return parent
    # The cycle becomes one node, the last. To enter it at a node takes the place of the edge that led there.
    rest = [a for a in range(n) if a not in cycle]
    saved = np.array([cost[parent[b], b] for b in cycle])
    into, out = cost[np.ix_(rest, cycle)] - saved, cost[np.ix_(cycle, rest)]
    smaller = np.zeros((len(rest) + 1, len(rest) + 1))
    smaller[:-1, :-1] = cost[np.ix_(rest, rest)]
    smaller[:-1, -1], smaller[-1, :-1] = into.min(axis=1), out.min(axis=0)
    found = {b: parent[b] for b in cycle}
    for b, a in arborescence(smaller).items():
        if b == len(rest):
            found[cycle[int(into[a].argmin())]] = rest[a]
        else:
            found[rest[b]] = cycle[int(out[:, b].argmin())] if a == len(rest) else rest[a]
    return dict(sorted(found.items()))


def _cycle(parent: Mapping[int, int]) -> list[int]:
    """The nodes of a cycle among edges to parents, if there is one."""
    clear: set[int] = {0}
    for start in parent:
        path: list[int] = []
        here = start
        while here not in clear and here not in path:
            path.append(here)
            here = parent[here]
        if here not in clear:
            return sorted(path[path.index(here) :])
        clear.update(path)
    return []
