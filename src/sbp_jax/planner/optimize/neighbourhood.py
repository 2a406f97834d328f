"""Large-neighbourhood moves: some nodes are free, all others keep their choice, and the rest is solved exactly.

(Shaw, "Using constraint programming and local search methods to solve vehicle routing problems", CP 1998.)
"""

from collections import deque

import numpy as np

from .arrays import Flat
from .kernel import Kernel, add_bytes


def around(f: Flat, seed: int, neighbours: list[list[int]], count: np.ndarray, most_pairs: int) -> list[int]:
    """The nodes nearest to one, as many as have so many pairs of choices between them; ``count`` are their choices."""
    free, waiting, seen, pairs = [], deque([seed]), {seed}, 0
    inside: set[int] = set()
    while waiting and pairs < most_pairs:
        i = waiting.popleft()
        free.append(i)
        inside.add(i)
        for j in neighbours[i]:
            if j in inside:
                pairs += int(count[i] * count[j])
            elif j not in seen and count[j] > 1:
                seen.add(j)
                waiting.append(j)
        pairs += int(count[i])
    return free


def neighbours_of(f: Flat) -> list[list[int]]:
    """Each node's neighbours, in order."""
    found: list[list[int]] = [[] for _ in f.nodes]
    for i, j in f.ends.tolist():
        found[i].append(j)
        found[j].append(i)
    return found


def freed(f: Flat, choice: np.ndarray, free: list[int], keep: np.ndarray) -> Kernel:
    """The kernel of the ``free`` nodes with the choices to ``keep``; the others have those of a plan.

    Its nodes are numbered as in ``f``; plans of it are read off ``Kernel.expand``.
    """
    n, offsets = len(f.nodes), f.offsets.tolist()
    is_free = np.zeros(n, bool)
    is_free[free] = True
    mask = {i: keep[offsets[i] : offsets[i + 1]].copy() for i in free}
    for i in free:
        mask[i][choice[i]] = True
    costs = {i: f.costs[offsets[i] : offsets[i + 1]][mask[i]] for i in free}
    neighbours: dict[int, dict[int, np.ndarray]] = {i: {} for i in free}
    fixed = ~is_free
    constant = f.constant + float(f.costs[f.offsets[:-1][fixed] + choice[fixed]].sum())
    for (i, j), m in zip(f.ends.tolist(), f.matrices, strict=True):
        if is_free[i] and is_free[j]:
            neighbours[i][j] = m = m[np.ix_(mask[i], mask[j])]
            neighbours[j][i] = m.T
        elif is_free[i]:
            costs[i] = costs[i] + m[mask[i], choice[j]]
        elif is_free[j]:
            costs[j] = costs[j] + m[choice[i]][mask[j]]
        else:
            constant += float(m[choice[i], choice[j]])
    change = np.diff(f.base, prepend=0.0, append=0.0)
    held: dict[int, dict[tuple[int, int], np.ndarray]] = {i: {} for i in free}
    of_free = is_free[f.table_node]
    bytes_of = f.table_bytes[f.table_offset + choice[f.table_node]]
    of_fixed = ~of_free
    change += np.bincount(f.table_first[of_fixed], bytes_of[of_fixed], len(change))
    change -= np.bincount(f.table_end[of_fixed], bytes_of[of_fixed], len(change))
    for t in np.flatnonzero(of_free).tolist():
        i = int(f.table_node[t])
        begin = int(f.table_offset[t])
        u = f.table_bytes[begin : begin + offsets[i + 1] - offsets[i]][mask[i]]
        add_bytes(held[i], (int(f.table_first[t]), int(f.table_end[t])), u)
    held_by_pairs: dict[tuple[int, int], dict[tuple[int, int], np.ndarray]] = {}
    for e, first, end, u in f.pair_tables:
        i, j = f.ends[e].tolist()
        if is_free[i] and is_free[j]:
            add_bytes(held_by_pairs.setdefault((i, j), {}), (first, end), u[np.ix_(mask[i], mask[j])])
        elif is_free[i]:
            add_bytes(held[i], (first, end), u[mask[i], choice[j]])
        elif is_free[j]:
            add_bytes(held[j], (first, end), u[choice[i]][mask[j]])
        else:
            change[first] += u[choice[i], choice[j]]
            change[end] -= u[choice[i], choice[j]]
    kernel = Kernel(costs, neighbours, held, held_by_pairs, change, f.limit_bytes, constant)
    for i in free:
        kernel.note_kept(i, np.flatnonzero(mask[i]))
    return kernel
