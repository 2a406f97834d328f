"""What ``stages="auto"`` shares out: the forward ops in their order, a loop over layers as so many of them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..microbatches.units import made_by, nodes_of
from . import boundaries
from .case import Case, Cases
from .layer_loops import group_counts
from .phases import Phases, assign

# A loop over layers is shared out in at most so many parts.
_MOST_PARTS = 64


class Items:
    """The forward ops of a step as items: by item the ``unit`` that it is (a part of), its ``part``; ``work``; between
    each and the next the bytes that cross."""

    def __init__(self, cases: Cases) -> None:
        self.cases, case = cases, cases.whole
        self.parts = max((n for n in group_counts(cases.layered) if n <= _MOST_PARTS), default=1)
        work = boundaries.forward_work(case.parts, case.factors, case.forward)
        self.unit: list[int] = []
        self.part: list[int] = []
        self.work: list[float] = []
        for k, number in enumerate(case.forward):
            n = self.parts if number in cases.layered.loops else 1
            self.unit += [number] * n
            self.part += range(n)
            self.work += [float(work[k]) / n] * n
        self.crossing = self.crossing_of({})

    def crossing_of(self, parts: Mapping[int, float]) -> list[float]:
        """``crossing``, where of each value only a part crosses."""
        case = self.cases.whole
        between = [*boundaries.crossing_bytes(case.parts, case.forward, parts), 0.0]
        return [float(between[k]) for k, number in enumerate(case.forward)
                for _ in range(self.parts if number in self.cases.layered.loops else 1)]  # fmt: skip

    def layers(self, most: int) -> tuple[list[int], int]:
        """By item its layer, and how many there are: about equal work, cut where little crosses.

        Where there are loops, a layer is about so many parts of one, a whole number: stages of equal work can be made
        of such.
        """
        count = max(1, min(len(self.unit), most))
        if parts := [w for k, w in zip(self.unit, self.work, strict=True) if k in self.cases.layered.loops and w]:
            whole = sum(self.work) / min(parts)
            count = min(count, max(1, round(whole / math.ceil(whole / count))))
        while True:
            found = boundaries.alike(np.asarray(self.work), np.asarray(self.crossing[:-1]), count)
            used = sorted(set(found))
            if len(used) == count or count == 1:
                return [used.index(layer) for layer in found], len(used)
            count = len(used)

    def in_stages(self, stages: Sequence[int]) -> tuple[Case, dict[int, int]]:
        """The step with its layers in as many groups as stages of items take; by its forward op the stage."""
        own: dict[int, list[int]] = {}
        for number, s in zip(self.unit, stages, strict=True):
            own.setdefault(number, []).append(s)
        groups = next(
            n for n in range(1, self.parts + 1)
            if self.parts % n == 0 and all(_is_constant(s, n) for k, s in own.items() if len(s) > 1)
        )  # fmt: skip
        case = self.cases.in_groups(groups)
        if case.grouped is None:
            return case, {k: s[0] for k, s in own.items()}
        unit_of = {n.index: k for k, u in enumerate(self.cases.whole.parts.units) for n in nodes_of(u)}
        seen: dict[int, int] = {}
        made: dict[int, int] = {}
        stage_of: dict[int, int] = {}
        for number in case.forward:
            unit = case.parts.units[number]
            k = next((unit_of[o] for n in nodes_of(unit) if (o := case.grouped.origin[n.index]) in unit_of), -1)
            part = seen[k] = seen.get(k, -1) + 1
            of = own.get(k, [0])
            latest = max((made[x.id] for x in unit.reads if x.id in made), default=0)
            stage_of[number] = max(latest, of[min(part * len(of) // groups, len(of) - 1)])
            made.update((v.id, stage_of[number]) for v in made_by(unit))
        return case, stage_of


class Spread:
    """Over which layers the nodes and values of a step lie: those of a loop over layers over all of the loop's."""

    def __init__(self, items: Items, layers: Sequence[int], count: int, case: Case) -> None:
        self.count = count
        first: dict[int, int] = {}
        self._of_loop: dict[int, np.ndarray] = {}
        for number, layer in zip(items.unit, layers, strict=True):
            first.setdefault(number, layer)
        loops = items.cases.layered.loops & set(first)
        for number in loops:
            mine = [layer for k, layer in zip(items.unit, layers, strict=True) if k == number]
            self._of_loop[first[number]] = np.bincount(mine, minlength=count) / len(mine)
        self.phases: Phases = assign(case.parts, first, count, case.backward)
        self._stacked = items.cases.layered.dims if loops else {}
        touched = {
            k for k, u in enumerate(case.parts.units)
            if any(v.id in self._stacked for v in (*u.reads, *made_by(u)))
        }  # fmt: skip
        units = case.parts.units
        self._unit_of = {n.index: k for k, u in enumerate(units) for n in nodes_of(u)}
        self._in_loop = {n.index for k in touched for n in nodes_of(units[k])}

    def of_node(self, node: int, layer: int | None = None) -> np.ndarray:
        """Which part of a node of the step is each layer's; ``layer``: where it was put as a whole, -1 for all."""
        where = self.phases.stage[self._unit_of[node]] if layer is None and node in self._unit_of else layer
        return self._share(node in self._in_loop, -1 if where is None else where)

    def of_argument(self, number: int) -> np.ndarray:
        """The same for an argument of the step."""
        value = self.phases.cut.program.input_ops[number].outs[0].id
        return self._share(value in self._stacked, self.phases.home.get(number, 0))

    def _share(self, is_stacked: bool, layer: int) -> np.ndarray:
        if layer < 0:
            return np.full(self.count, 1.0 / self.count)
        if is_stacked and self._of_loop:
            return self._of_loop.get(layer, next(iter(self._of_loop.values())))
        return np.eye(self.count)[layer]


def _is_constant(stages: Sequence[int], groups: int) -> bool:
    length = len(stages) // groups
    return all(len(set(stages[g * length : (g + 1) * length])) == 1 for g in range(groups))
