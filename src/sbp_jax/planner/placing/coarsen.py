"""Small ops merged with what they exchange most bytes with, so that few are left to place."""

import heapq
from collections.abc import Collection, Iterable

import numpy as np

from ...errors import PlanError
from .graph import OpGraph, Tensor


def coarsened(graph: OpGraph, most: int, together: Iterable[int] = ()) -> OpGraph:
    """The graph with at most so many ops, where its edges allow that.

    Tensors ``together`` (by number) get maker and readers merged at once. Then, while there are too many ops, the one
    that takes least is merged with the neighbour that it exchanges most bytes with. Two ops are merged only if no way
    leads from one to the other through a third, so the result has no circles. Ops that can run on different devices
    only are not merged.

    Merged ops run one after the other, by number; what they hold for each other is scratch of the whole. Tensors
    ``together`` are then in no memory.
    """
    if most < 1:
        raise PlanError(f"ops={most}: a graph has at least one op")
    m, together = _Merger(graph), tuple(together)
    for k in together:
        for r in graph.tensors[k].readers:
            m.merge_if_possible(graph.tensors[k].maker, r)
    m.shrink(most)
    return m.result(set(together))


class _Merger:
    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.home = list(range(len(graph)))
        self.members = {k: [k] for k in range(len(graph))}
        self.seconds = {k: graph.seconds[k].copy() for k in range(len(graph))}
        self.after: dict[int, dict[int, float]] = {k: {} for k in range(len(graph))}
        self.before: dict[int, dict[int, float]] = {k: {} for k in range(len(graph))}
        for a, b, n in graph.edges:
            self.after[a][b] = self.before[b][a] = n

    def _has_other_way(self, a: int, b: int) -> bool:
        """Whether b is reached from a through a third."""
        queue, seen = [x for x in self.after[a] if x != b], set[int]()
        while queue:
            x = queue.pop()
            if x == b:
                return True
            if x not in seen:
                seen.add(x)
                queue += self.after[x]
        return False

    def merge_if_possible(self, a: int, b: int) -> bool:
        a, b = self.home[a], self.home[b]
        if a == b:
            return True
        if b not in self.after[a]:
            a, b = b, a
        if b not in self.after[a] or not np.isfinite(self.seconds[a] + self.seconds[b]).any():
            return False
        if self._has_other_way(a, b):
            return False
        for k in self.members[b]:
            self.home[k] = a
        self.members[a] += self.members.pop(b)
        self.seconds[a] += self.seconds.pop(b)
        del self.after[a][b], self.before[b][a]
        for own, other in ((self.after, self.before), (self.before, self.after)):
            for x, n in own.pop(b).items():
                own[a][x] = own[a].get(x, 0.0) + n
                del other[x][b]
                other[x][a] = own[a][x]
        return True

    def shrink(self, most: int) -> None:
        heap = [(float(s.min()), k) for k, s in self.seconds.items()]
        heapq.heapify(heap)
        while len(self.members) > most and heap:
            least, k = heapq.heappop(heap)
            if k not in self.members or float(self.seconds[k].min()) != least:
                continue
            near = {**self.after[k], **self.before[k]}
            for x in sorted(near, key=lambda x: (-near[x], float(self.seconds[x].min()), x)):
                if self.merge_if_possible(k, x):
                    left = self.home[k]
                    heapq.heappush(heap, (float(self.seconds[left].min()), left))
                    break

    def result(self, in_no_memory: Collection[int]) -> OpGraph:
        graph, waiting = self.graph, {k: len(self.before[k]) for k in self.members}
        heap = [(min(self.members[k]), k) for k, n in waiting.items() if not n]
        heapq.heapify(heap)
        order: list[int] = []
        while heap:
            _, k = heapq.heappop(heap)
            order.append(k)
            for x in self.after[k]:
                waiting[x] -= 1
                if not waiting[x]:
                    heapq.heappush(heap, (min(self.members[x]), x))
        number = {k: i for i, k in enumerate(order)}
        at = [number[h] for h in self.home]
        # What is held within a merged op begins with its maker and ends after its last reader.
        begins, ends = np.zeros(len(at)), np.zeros(len(at))
        tensors: dict[tuple[int, tuple[int, ...], bool], float] = {}
        for k, t in enumerate(graph.tensors):
            maker = at[t.maker] if t.maker >= 0 else -1
            readers = tuple(sorted({at[r] for r in t.readers} - {maker}))
            if readers or t.is_result or t.maker < 0:
                key = maker, readers, t.is_result  # those of the same maker and readers travel together
                tensors[key] = tensors.get(key, 0.0) + t.size_bytes
            elif k not in in_no_memory:
                begins[t.maker] += t.size_bytes
                ends[max(t.readers, default=t.maker)] += t.size_bytes
        scratch, held = np.zeros(len(order)), np.zeros(len(order))
        for k, v in enumerate(at):
            held[v] += begins[k]
            scratch[v] = max(scratch[v], held[v] + graph.scratch_bytes[k])
            held[v] -= ends[k]
        members = graph.members or tuple((k,) for k in range(len(graph)))
        names = [
            graph.names[k if len(ks) == 1 else max(ks, key=lambda x: (graph.seconds[x].min(), -x))]
            + (f" +{len(ks) - 1}" if len(ks) > 1 else "")
            for k in order
            for ks in [self.members[k]]
        ]
        return OpGraph(
            tuple(names), np.array([self.seconds[k] for k in order]).reshape(len(order), graph.devices),
            tuple(Tensor(m, n, r, x) for (m, r, x), n in sorted(tensors.items())), scratch,
            tuple(tuple(sorted(i for x in self.members[k] for i in members[x])) for k in order),
        )  # fmt: skip
