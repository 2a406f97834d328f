"""The limits of the pace, and of what is done once a step, with the least total: branch and bound.

For two limits, the table gives the least sum of latencies over all plans within them. This sum does not fall when a
limit does, so that over a box of limits (from lowest to highest, for both) no total is below

    least sum at the highest limits + (m - 1) * lowest pace + lowest once

A box whose bound is not below the best total is left out; another is tried at its highest limits, and cut in two. A
plan that is found settles all limits between its own and those tried. Boxes with the lowest bounds come first.

Where ways there and back hold up the next micro-batch, the sums of all stages from one on are within their limit, too.
Then the table has a row for each number of stages, which takes longer; it is filled only where the plan without these
limits, the least of all, is not within them.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from .costs import Problem
from .limits import Grid, Line
from .table import Adds, Stage, fill

# Of the mean seconds of a stage: what one stage more must gain at least. Far above rounding, far below any measurement.
_TIE = 1e-12
# Parts of a total that are not told apart, and of a pace: well below the step from one limit to the next.
_ROUNDING, _LESS = 5e-10, 1e-12


@dataclass(frozen=True, slots=True, order=True)
class _Box:
    """Plans whose pace is from ``p0`` to ``p1``, and largest once from ``o0`` to ``o1``.

    No total of theirs is below ``bound``, no sum of latencies below ``sums``.
    """

    bound: float
    p0: float
    p1: float
    o0: float
    o1: float
    sums: float


class Search:
    """Branch and bound over the limits; ``best`` is None when there are no stages at all."""

    def __init__(self, problem: Problem, epsilon: float) -> None:
        self.problem, self.epsilon = problem, epsilon
        possible = self.possible = np.isfinite(problem.pace) & (problem.most_after >= 0)
        paces, self.onces = np.unique(problem.pace[possible]), Grid(np.unique(problem.once[possible]))
        self.best: tuple[Stage, ...] | None = None
        self.total, self.tables = np.inf, 0
        self.floor = np.inf
        if len(paces):
            self.paces = Grid(paces) if problem.window is None else Line(float(paces[0]))
            self.lowest = float(paces[0]), float(self.onces.values[0])
            self.tie = _TIE * float(problem.latency[possible].mean())
            self.adds = Adds(np.where(possible, problem.latency + self.tie, np.inf))
            self.root = self._tried(np.inf, float(self.onces.values[-1]))
            # No plan that is better has a pace above the total, or there is one micro-batch.
            self.highest = float(paces[-1]) if problem.window is None else max(float(paces[-1]), self.total)

    def run(self) -> float:
        """Search; returns what no plan is below."""
        boxes: list[_Box] = []
        if self.root is not None:
            p0, o0 = self.lowest
            self._split(boxes, p0, self.highest, o0, float(self.onces.values[-1]), self.root)
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

    def _shrunk(self, box: _Box) -> tuple[float, float] | None:
        """The box's highest limits without those that cannot be better by epsilon; None where none can."""
        goal = self.total * (1 - max(self.epsilon, _ROUNDING))
        corner = box.sums + self._weighted(box.p0, box.o0)
        if corner >= goal:
            self.floor = min(self.floor, corner)
            return None
        left = goal - corner
        each = self.problem.microbatches - 1
        p1, o1 = box.p1, box.o1
        if each:
            p1 = max(min(p1, self.paces.at_most(box.p0 + left / each)), box.p0)
        o1 = max(min(o1, self.onces.at_most(box.o0 + left)), box.o0)
        if p1 < box.p1:
            self.floor = min(self.floor, box.sums + self._weighted(self.paces.above(p1), box.o0))
        if o1 < box.o1:
            self.floor = min(self.floor, box.sums + self._weighted(box.p0, self.onces.above(o1)))
        return p1, o1

    def _tried(self, pace: float, once: float) -> float | None:
        """The least sum of latencies within two limits; None where there are no stages within them."""
        problem = self.problem
        allowed = self.possible & (problem.pace <= pace) & (problem.once <= once)
        limits = None
        while True:
            self.tables += 1
            table = fill(problem, allowed, self.adds, limits=limits)
            if table is None:
                return None
            value, row = table.best()
            found = table.stages(row, self.tie / 4)
            _, reached, own_once = problem.stage_seconds(found)
            if problem.window is None or limits is not None or reached <= pace:
                break
            limits = problem.window * (pace * (1 + _LESS))
        total = problem.total_seconds(found)
        if total < self.total:
            self.best, self.total = found, total
        # The plan's own limits: all between them and those tried have the same sum, and no better total.
        self.reached = reached, own_once
        return value - problem.layers * 2 * self.tie

    def _split(self, boxes: list[_Box], p0: float, p1: float, o0: float, o1: float, sums: float) -> None:
        """Add what is left of a box after the try at its highest limits."""
        pace, once = self.reached
        # A plan that beats the one found has a lower pace, or a lower once.
        lower = (p0, min(self.paces.below(pace), p1), o0, o1), (max(pace, p0), p1, o0, min(self.onces.below(once), o1))
        for a, b, c, d in lower:
            if a > b or c > d:
                continue
            for part in self._halves(a, b, c, d):
                bound = sums + self._weighted(part[0], part[2])
                heapq.heappush(boxes, _Box(bound, *part, sums))

    def _halves(self, a: float, b: float, c: float, d: float) -> list[tuple[float, float, float, float]]:
        """Cut along the limit that matters more, at half of its range in seconds."""
        is_pace = (self.problem.microbatches - 1) * (b - a) >= d - c
        if is_pace and (cut := self.paces.halves(a, b)):
            return [(a, cut[0], c, d), (cut[1], b, c, d)]
        if cut := self.onces.halves(c, d):
            return [(a, b, c, cut[0]), (a, b, cut[1], d)]
        return [(a, b, c, d)]
