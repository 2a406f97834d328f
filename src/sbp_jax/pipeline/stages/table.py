"""The table of Alpa's inter-operator dynamic program (arXiv 2201.12023, section 5.1, equation 3).

An entry is the best of all ways to cut layers k to the last into s stages on d devices. It is filled from the last
layer to the first, over all numbers of stages and of devices at once. Alpa's table has all s: how many stages follow
says what a stage holds in memory. Here there are only as many rows of s as can make a difference, the last one for "so
many or more"; most often this is one. And d runs only over what leaves enough devices for the layers before k, and
gives enough to the layers from k on: where stages must be fast this is a narrow band.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import InternalError
from .costs import Array, Problem

# A stage: its first layer, the layer after its last, its sub-mesh option.
Stage = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Rows:
    """How many stages follow, as rows 0 to ``last``; if ``is_open``, the last row is for all numbers from there on."""

    last: int
    is_open: bool


@dataclass(frozen=True, slots=True, eq=False)
class Adds:
    """What a stage adds to those after it.

    Attributes:
        cost: indexed [i, j, o]; or, with one axis more in front, [stages after it, i, j, o].
        combine: ``np.add`` or ``np.maximum``.
    """

    cost: Array
    combine: Callable[..., Any] = field(default=np.add)

    def of(self, stage: Stage, rows: slice) -> Any:
        """A number, or a column with one for each of these numbers of stages after it."""
        return float(self.cost[stage]) if self.cost.ndim == 3 else self.cost[(rows, *stage)][:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """``values[k]`` has a row for each number of stages from layer k on, a column for each number of devices."""

    problem: Problem
    allowed: Array
    adds: Adds
    rows: Rows
    values: Array
    limits: Array | None = None

    def best(self) -> tuple[float, int]:
        """The best of all layers on all devices, and its row, the first of equal ones."""
        column = self.values[0, :, -1].copy()
        column[: min(self.problem.least, self.rows.last)] = np.inf
        row = int(column.argmin())
        return float(column[row]), row

    def stages(self, row: int, slack: float) -> tuple[Stage, ...]:
        """The stages of a row's best, where values within ``slack`` are equal: of these the first by (j, option)."""
        found: list[Stage] = []
        at, devices = 0, self.problem.devices
        while at < self.problem.layers:
            limit = self.values[at, row, devices] + slack
            stage, row = self._first(at, row, devices, limit)
            found.append(stage)
            at, devices = stage[1], devices - self.problem.sizes[stage[2]]
        return tuple(found)

    def _first(self, at: int, row: int, devices: int, limit: float) -> tuple[Stage, int]:
        befores = (row - 1, row) if self.rows.is_open and row == self.rows.last else (row - 1,)
        for j, o in np.argwhere(self.allowed[at]).tolist():
            left = devices - self.problem.sizes[o]
            for before in befores:
                if left < 0 or not 0 <= before <= self.problem.most_after[at, j, o]:
                    continue
                value = self.values[j, before, left]
                reached = float(
                    np.ravel(self.adds.combine(value, self.adds.of((at, j, o), slice(before, before + 1))))[0]
                )
                way = reached - self.problem.returned[at, o]
                if reached <= limit and (self.limits is None or way <= self.limits[before]):
                    return (at, j, o), before
        raise InternalError(f"no stage from layer {at} reaches the value of the table in row {row}")


def rows_needed(problem: Problem, allowed: Array) -> Rows:
    """As few rows as tell apart what matters: which stages fit in memory, and limits of the number of stages."""
    if problem.most < problem.layers:
        return Rows(problem.most, False)
    limited = problem.most_after[allowed & (problem.most_after < problem.layers)]
    return Rows(max(int(limited.max(initial=-1)) + 1, problem.least if problem.least > 1 else 0), True)


def bands(problem: Problem, allowed: Array) -> tuple[Array, Array]:
    """For each layer k, the fewest and the most devices that stages from k on can have; inf where there are none."""
    layers = problem.layers
    smallest = np.where(allowed, np.array(problem.sizes, float), np.inf).min(axis=2)
    after, before = np.full(layers + 1, np.inf), np.full(layers + 1, np.inf)
    after[layers] = before[0] = 0.0
    for k in range(layers - 1, -1, -1):
        after[k] = (smallest[k] + after).min()
    for k in range(1, layers + 1):
        before[k] = (smallest[:, k] + before[:layers]).min()
    return after, problem.devices - before


def fill(
    problem: Problem, allowed: Array, adds: Adds, rows: Rows | None = None, limits: Array | None = None
) -> Table | None:
    """The table over the stages that are ``allowed``, or None where these cannot make a pipeline.

    ``limits``: by number of stages after a stage, what it and they may add up to at most, but for what it sends back.
    """
    allowed = allowed & (problem.most_after >= 0)
    low, high = bands(problem, allowed)
    if low[0] > problem.devices:
        return None
    if limits is not None:
        rows = Rows(min(problem.most, problem.devices // min(problem.sizes)), False)
    rows = rows or rows_needed(problem, allowed)
    depth = rows.last
    sizes = np.array(problem.sizes)
    values = np.full((problem.layers + 1, depth + 1, problem.devices + 1), np.inf)
    values[problem.layers, 0, 0 if problem.use_all else slice(None)] = 0.0
    spare = np.empty((depth + 1, problem.devices + 1))
    for k in range(problem.layers - 1, -1, -1):
        js, options = np.nonzero(allowed[k])
        # Devices from layer k on: those from layer j on and this stage's, within both bands.
        first = np.maximum(low[k], low[js] + sizes[options])
        last = np.minimum(high[k], high[js] + sizes[options])
        within = np.flatnonzero((first <= last) & np.isfinite(first) & np.isfinite(last))
        js, options, first, last = js[within], options[within], first[within].astype(int), last[within].astype(int)
        here = values[k]
        each = zip(js.tolist(), options.tolist(), first.tolist(), last.tolist(), strict=True)
        for j, o, a, b in each:
            size = problem.sizes[o]
            # The last row is a stage's successor only where it stands for more stages, too.
            count = min(int(problem.most_after[k, j, o]), problem.layers - j, depth - (not rows.is_open)) + 1
            found = spare[:count, : b + 1 - a]
            adds.combine(values[j, :count, a - size : b + 1 - size], adds.of((k, j, o), slice(0, count)), out=found)
            if limits is not None:
                found[found - problem.returned[k, o] > limits[:count, None]] = np.inf
            steps = min(count, depth)
            if steps:
                better = here[1 : steps + 1, a : b + 1]
                np.minimum(better, found[:steps], out=better)
            if rows.is_open and count > depth:
                better = here[depth, a : b + 1]
                np.minimum(better, found[depth], out=better)
    table = Table(problem, allowed, adds, rows, values, limits)
    return table if np.isfinite(table.best()[0]) else None
