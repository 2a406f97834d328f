"""The limits of the slowest stage, and of what is done once a step, with the least total: branch and bound.

For two limits, the table gives the least sum of latencies over all plans within them. This sum does not fall when a
limit does, so that over a box of limits (from lowest to highest, for both) no total is below

    least sum at the highest limits + (m - 1) * lowest pace + lowest once

A box whose bound is not below the best total is left out; another is tried at its highest limits, and cut in two. A
plan that is found settles all limits between its own and those tried. Boxes with the lowest bounds come first.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from .costs import Problem
from .table import Adds, Stage, fill

# Of the mean seconds of a stage: what one stage more must gain at least. Far above rounding, far below any measurement.
_TIE = 1e-12
# Parts of a total that are not told apart.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, order=True)
class _Box:
    """Plans whose largest pace is one of ``paces[p0..p1]``, and largest once one of ``onces[o0..o1]``.

    No total of theirs is below ``bound``, no sum of latencies below ``sums``.
    """

    bound: float
    p0: int
    p1: int
    o0: int
    o1: int
    sums: float


class Search:
    """Branch and bound over the limits; ``best`` is None when there are no stages at all."""

    def __init__(self, problem: Problem, epsilon: float) -> None:
        self.problem, self.epsilon = problem, epsilon
        possible = np.isfinite(problem.pace) & (problem.most_after >= 0)
        self.paces, self.onces = np.unique(problem.pace[possible]), np.unique(problem.once[possible])
        self.best: tuple[Stage, ...] | None = None
        self.total, self.tables = np.inf, 0
        self.floor = np.inf
        if len(self.paces):
            self.tie = _TIE * float(problem.latency[possible].mean())
            self.adds = Adds(np.where(possible, problem.latency + self.tie, np.inf))
            self.root = self._tried(len(self.paces) - 1, len(self.onces) - 1)

    def run(self) -> float:
        """Search; returns what no plan is below."""
        boxes: list[_Box] = []
        self._split(boxes, 0, len(self.paces) - 1, 0, len(self.onces) - 1, self.root or 0.0)
        while boxes:
            box = heapq.heappop(boxes)
            shrunk = self._shrunk(box)
            if shrunk is None:
                continue
            p1, o1 = shrunk
            sums = self._tried(p1, o1)
            if sums is not None:
                self._split(boxes, box.p0, p1, box.o0, o1, max(sums, box.sums))
        return min(self.floor, self.total)

    def _weighted(self, pace: float, once: float) -> float:
        return (self.problem.microbatches - 1) * pace + once

    def _shrunk(self, box: _Box) -> tuple[int, int] | None:
        """The box's highest limits without those that cannot be better by epsilon; None where none can."""
        goal = self.total * (1 - max(self.epsilon, _ROUNDING))
        corner = box.sums + self._weighted(self.paces[box.p0], self.onces[box.o0])
        if corner >= goal:
            self.floor = min(self.floor, corner)
            return None
        left = goal - corner
        each = max(self.problem.microbatches - 1, 0)
        p1, o1 = box.p1, box.o1
        if each:
            p1 = min(p1, int(np.searchsorted(self.paces, self.paces[box.p0] + left / each, "right")) - 1)
        o1 = min(o1, int(np.searchsorted(self.onces, self.onces[box.o0] + left, "right")) - 1)
        if p1 < box.p1:
            self.floor = min(self.floor, box.sums + self._weighted(self.paces[p1 + 1], self.onces[box.o0]))
        if o1 < box.o1:
            self.floor = min(self.floor, box.sums + self._weighted(self.paces[box.p0], self.onces[o1 + 1]))
        return p1, o1

    def _tried(self, p1: int, o1: int) -> float | None:
        """The least sum of latencies within two limits; None where there are no stages within them."""
        self.tables += 1
        problem = self.problem
        allowed = (problem.pace <= self.paces[p1]) & (problem.once <= self.onces[o1])
        table = fill(problem, allowed, self.adds)
        if table is None:
            return None
        value, row = table.best()
        found = table.stages(row, self.tie / 4)
        total = problem.total_seconds(found)
        if total < self.total:
            self.best, self.total = found, total
        # The plan's own limits: all between them and those tried have the same sum, and no better total.
        _, pace, once = problem.stage_seconds(found)
        self.reached = int(np.searchsorted(self.paces, pace)), int(np.searchsorted(self.onces, once))
        return value - problem.layers * 2 * self.tie

    def _split(self, boxes: list[_Box], p0: int, p1: int, o0: int, o1: int, sums: float) -> None:
        """Add what is left of a box after the try at its highest limits."""
        pace, once = self.reached
        # A plan that beats the one found has a lower pace, or a lower once.
        for a, b, c, d in ((p0, min(pace - 1, p1), o0, o1), (max(pace, p0), p1, o0, min(once - 1, o1))):
            if a > b or c > d:
                continue
            for part in self._halves(a, b, c, d):
                bound = sums + self._weighted(self.paces[part[0]], self.onces[part[2]])
                heapq.heappush(boxes, _Box(bound, *part, sums))

    def _halves(self, a: int, b: int, c: int, d: int) -> list[tuple[int, int, int, int]]:
        """Cut along the limit that matters more, at half of its range in seconds."""
        paces, onces = self.paces, self.onces
        is_pace = (self.problem.microbatches - 1) * (paces[b] - paces[a]) >= onces[d] - onces[c]
        values, low, high = (paces, a, b) if is_pace and b > a else (onces, c, d)
        if high == low:
            return [(a, b, c, d)]
        middle = int(np.searchsorted(values, (values[low] + values[high]) / 2, "right")) - 1
        middle = min(max(middle, low), high - 1)
        if values is paces:
            return [(a, middle, c, d), (middle + 1, b, c, d)]
        return [(a, b, c, middle), (a, b, middle + 1, d)]
