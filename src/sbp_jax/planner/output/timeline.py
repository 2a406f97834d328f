"""When things happen: the positions of values in loops, the nodes that cost time, the bytes held, as plan data."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...plan.timeline import Cost, Loop, Timeline
from ...rules.widen import Strategy
from ...trace import Graph, Op, Program, Structured, user_line
from ..costs.assemble import Decisions
from ..graph.clusters import Clustering, OpCluster

# A label names at most so many primitives of a fused chain.
_NAMES = 4
# Arguments and results: what the search adds for them decides between equal plans, and is no time.
NO_KERNELS = ("sbp.input", "sbp.output", "sbp.result")


@dataclass(frozen=True, slots=True)
class _Place:
    """A structured op's nodes, and the values that live directly in its bodies."""

    first: int
    last: int
    inner: frozenset[int]


class Positions:
    """Where in the order of nodes a value is there, and where it is needed; and in which loop it lives."""

    def __init__(self, program: Program) -> None:
        self.loops: list[Loop] = []
        self._loop_of: dict[int, int] = {}
        self._place: dict[int, _Place] = {}
        for op in program.input_ops:
            self._own(op.outs, -1)
        self._walk(program.graph, -1)

    def loop(self, value: int) -> int:
        """The index of the innermost loop a value lives in; -1 outside of all."""
        return self._loop_of.get(value, -1)

    def made(self, op: Op, value: int) -> int:
        """The node after which a result of ``op`` is there: for what a loop hands out, its last."""
        place = self._place.get(op.index)
        if place is None:
            return op.index
        return place.first if value in place.inner else place.last

    def needed(self, op: Op, value: int) -> int:
        """The node before which ``op`` needs an operand: for what a body hands to its loop, the one past its last."""
        place = self._place.get(op.index)
        if place is None:
            return op.index
        return place.last + 1 if value in place.inner else place.first

    def awaited(
        self, program: Program, clustering: Clustering, boxed: Collection[int], light: set[int]
    ) -> dict[int, int]:
        """By node that makes nobody wait, before which node its operands are needed: its readers' first.

        These are changes of shape, what is fused into its readers, and the smallest kernels (clusters in ``light``),
        which a scheduler puts off. Where results are ``boxed``, operands are needed at once.
        """
        readers: dict[int, int] = {}
        found: dict[int, int] = {}
        reads, nodes, fused = program.reads(), program.nodes, clustering.fused
        for k in range(len(nodes) - 1, -1, -1):
            op = nodes[k]
            place = self._place.get(k)
            if place is None and op.outs:
                cluster = clustering.cluster_of.get(k)
                is_kernel = cluster is None or op.primitive is None or cluster not in light
                if all([i in readers and i not in boxed and (not is_kernel or i in fused)
                        for i in [v.id for v in op.outs]]):  # fmt: skip
                    found[k] = min([readers[v.id] for v in op.outs])
            at = found.get(k, k)
            for i in reads[k]:
                when = at if place is None else self.needed(op, i)
                if i not in readers or when < readers[i]:
                    readers[i] = when
        return found

    def _own(self, values: Sequence[object], loop: int) -> None:
        for v in values:
            self._loop_of.setdefault(v.id, loop)  # pyright: ignore[reportAttributeAccessIssue]

    def _walk(self, graph: Graph, loop: int) -> None:
        self._own(graph.inputs, loop)
        for op in graph.ops:
            if isinstance(op, Op):
                self._own(op.outs, loop)
                continue
            if op.bodies:
                self._structured(op, loop)
            for link in op.links:
                self._own(link.outs, loop)

    def _structured(self, op: Structured, loop: int) -> None:
        indices = [n.index for body in op.bodies for n in body.nodes()] + [link.index for link in op.links]
        inner = {v.id for body in op.bodies for v in body.inputs}
        for body in op.bodies:
            for x in body.ops:
                inner.update(v.id for y in ([x] if isinstance(x, Op) else x.links) for v in y.outs)
        place = _Place(min(indices), max(indices), frozenset(inner))
        self._place.update((link.index, place) for link in op.links)
        within = loop
        if op.kind in ("scan", "while"):
            trips = op.trips
            line = user_line(op.info)
            self.loops.append(Loop(place.first, place.last, trips, f"{op.kind} {line}".strip(), loop))
            within = len(self.loops) - 1
        for body in op.bodies:
            self._walk(body, within)


def kernel_seconds(decisions: Decisions, chosen: Sequence[Strategy]) -> list[float]:
    """By cluster, what one run takes on the hardware, whatever ratio the search weighed it by.

    Arguments and results compute nothing: what the search adds for them only decides between equal plans.
    """
    model = replace(decisions.model, computation_ratio=None)
    by_group: dict[int, float] = {}
    for cluster, group in zip(decisions.clustering.clusters, decisions.class_of, strict=True):
        if group not in by_group:
            is_kernel = cluster.ops[0].name not in NO_KERNELS
            by_group[group] = model.compute_seconds(cluster, chosen[cluster.index]) if is_kernel else 0.0
    return [by_group[group] for group in decisions.class_of]


def timeline(
    decisions: Decisions, chosen: Sequence[Strategy], seconds: Sequence[float], positions: Positions,
    memory: np.ndarray,
) -> Timeline:  # fmt: skip
    """The timeline of chosen strategies that take ``seconds``, by cluster; ``memory``: the bytes held at each node."""
    costs: dict[Cost, int] = {}
    known: dict[tuple[int, str], int] = {}  # clusters of a class cost the same
    runs: list[tuple[int, int]] = []
    for cluster, group in zip(decisions.clustering.clusters, decisions.class_of, strict=True):
        op = cluster.ops[0]
        if not seconds[cluster.index]:
            continue
        line = decisions.program.lines(op.info)
        cost = known.get((group, line))
        if cost is None:
            new = Cost(
                f"{label_of(cluster)} {line}".strip(),
                seconds[cluster.index],
                cluster.flops * chosen[cluster.index].share,
            )
            cost = known[group, line] = costs.setdefault(new, len(costs))
        runs.append((op.index, cost))
    steps = np.flatnonzero(np.diff(memory, prepend=-1.0))
    held = zip(steps.tolist(), memory[steps].tolist(), strict=True)
    return Timeline(tuple(costs), tuple(sorted(runs)), tuple(positions.loops), tuple(held))


def label_of(cluster: OpCluster) -> str:
    """The primitives of a cluster, the first few."""
    names = list(dict.fromkeys(op.name for op in cluster.ops))
    return "+".join(names[:_NAMES]) + ("+…" if len(names) > _NAMES else "")
