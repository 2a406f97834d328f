"""AccPar on unlike devices: every product is cut along one of three dims, in pieces that take equally long.

Song, Chen, Qian, Li and Chen, "AccPar: Tensor Partitioning for Heterogeneous Deep Learning Accelerators", HPCA 2020,
sections 4 (the three types and what moves between them) and 5 (ratios, dynamic program, halves of halves). Devices, the
fastest first, are halved until each is alone, and each half shares anew what it has. What differs: a part that is no
product may also run on both sides or on one; costs are this library's; parts between which nothing moves have one
ratio; that, a few beside it, and whole ops on one device are simulated, and the shortest run is taken.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ...cluster import Cluster
from ...errors import PlanError
from ...trace import Program
from ..catalogue import Option, lookup, register
from ..placing import Cut, Devices, Placing, PlacingTask, finished, placeable, steps_of
from .balance import ratios
from .layouts import Sides
from .pieces import Pieces, in_pieces
from .problem import Problem, Way

# Ways and ratios are found in turn, each for the other, at most so often.
_ROUNDS = 4
# By so much of what is left of the whole a side gets more, or less, in a try.
_SHIFT = 1 / 8
# Shifts and factors of the faster sides' parts that are tried in turn until all that is held fits in memory.
_SHARES = (0.0, 1.0), (0.0, 0.75), (0.5, 1.0), (0.0, 0.5), (0.75, 1.0)
_RATIO = Option(
    "ratio", "balanced", "how two sides share an op: so that both take equally long, or in halves, to compare with",
    possible=("balanced", "equal"),
)  # fmt: skip
_TRIES = Option(
    "tries", 4, "ratios that are simulated: that of the cost model, and others that give a side more or less", least=1
)


@register(
    "accpar_ratios", family="placing", decides="which dim of every product is cut, and in which ratio", promises="none",
    paper="Song, Chen, Qian, Li, Chen: AccPar: Tensor Partitioning for Heterogeneous Deep Learning Accelerators, "
    "HPCA 2020, sections 4 and 5", options=(_RATIO, _TRIES),
)  # fmt: skip
def accpar_ratios(task: PlacingTask) -> Placing:
    """Pieces of ops on all devices, or whole ops on one where that is not longer."""
    if task.program is None:
        raise PlanError(
            "solver 'accpar_ratios' cuts the ops of a program, and was given a graph of ops alone: name it in "
            "sbp.place_ops(fn, ..., solver='accpar_ratios')"
        )
    if len(task.devices) == 1:
        raise PlanError(
            "solver 'accpar_ratios' shares every op among devices, and there is one: give sbp.Devices of two or more, "
            "or take solver 'one_device'"
        )
    cut = _Cutting(task, task.program)
    if task.options["ratio"] == "equal":
        return cut.placing()
    try:
        pieces = cut.best(task.options["tries"])
    except PlanError:  # too little memory for any
        return _alone(task, "pieces on several devices would not fit in memory")
    try:
        whole = _alone(task, "pieces on several devices would take longer")
    except PlanError:
        return pieces
    return min(pieces, whole, key=lambda x: x.seconds)


def _alone(task: PlacingTask, why: str) -> Placing:
    """All ops whole on one device. ``PlanError`` where no device has the memory."""
    found = lookup("one_device", "placing").run(PlacingTask(task.graph, task.devices))
    return replace(found, notes=(*found.notes, f"nothing is cut: {why}"))


_Level: TypeAlias = tuple[Problem, list[Way], dict[int, float]]


class _Cutting:
    """A program's pieces for one task."""

    def __init__(self, task: PlacingTask, program: Program) -> None:
        self.task, self.program = task, program
        whole = steps_of(program, task.devices).seconds.sum(axis=0)
        self.order = tuple(sorted(range(len(task.devices)), key=lambda d: (whole[d], d)))
        self.first: _Level | None = None

    def best(self, tries: int) -> Placing:
        """The shortest of a few ratios: more for the faster side while that is shorter, else less.

        Where memory is short, the first that fits of others comes before. ``PlanError`` where none does.
        """
        best, (start, scale) = self.that_fits()
        shift, step = start, _SHIFT
        for _ in range(tries - 1):
            try:
                found = self.placing(shift + step, scale)
            except PlanError:  # too much for some memory
                found = best
            if found.seconds < best.seconds:
                best, shift = found, shift + step
            elif shift == start and step > 0:
                step = -step
            else:
                step /= 2
        return best

    def that_fits(self) -> tuple[Placing, tuple[float, float]]:
        """The first of ``_SHARES`` that fits in memory."""
        refused: PlanError | None = None
        for share in _SHARES:
            try:
                return self.placing(*share), share
            except PlanError as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def placing(self, shift: float = 0.0, scale: float = 1.0) -> Placing:
        """Pieces where they belong, in the best order found. ``PlanError`` where they do not fit in memory."""
        pieces, notes = self.pieces(shift, scale)
        where = {step: group[0] for step, group in pieces.groups.items()}
        # Nothing is searched for among pieces, and a merged one would wait for all that its parts wait for.
        parts = placeable(pieces.program, self.task.devices, len(pieces.groups) + 1, where)
        task = PlacingTask(parts.graph, self.task.devices)
        found = finished(task, np.argmin(parts.graph.seconds, axis=1).tolist())
        return replace(found, cut=Cut(pieces.program, parts, pieces.arguments), notes=(*found.notes, *notes))

    def pieces(self, shift: float, scale: float) -> tuple[Pieces, list[str]]:
        """The program in pieces, each a single device's, and what was cut, in words."""
        pieces, notes, groups = Pieces.whole(self.program, self.order), list[str](), [self.order]
        while groups:
            group = groups.pop(0)
            if len(group) > 1:
                halves = halves_of(group, [self.task.devices.kinds[d] for d in group])
                problem, ways, ratio = self.level(pieces, group, halves)
                ratio = {i: min(max(scale * (r + shift * (1.0 - r)), 0.0), 1.0) for i, r in ratio.items()}
                pieces = in_pieces(pieces, problem, ways, ratio)
                notes.append(_words(problem, ways, ratio, self.task.devices))
                groups += halves
        return pieces, notes

    def level(self, pieces: Pieces, group: tuple[int, ...], halves: tuple[tuple[int, ...], tuple[int, ...]]) -> _Level:
        """How the halves of a group share what it has."""
        is_first = group == self.order
        if is_first and self.first is not None:
            return self.first
        found = steps_of(pieces.program, self.task.devices)
        mine = [k for k, step in enumerate(found.steps) if pieces.groups[id(step)] == group]
        problem = Problem.of(pieces.program, found, mine, self.task.devices, Sides.of(self.task.devices, *halves))
        if self.task.options["ratio"] == "equal":
            half = dict.fromkeys(range(len(mine)), 0.5)
            level = problem, problem.best(half, 0.5), half
        else:
            level = problem, *balanced(problem)
        if is_first:
            self.first = level
        return level


def halves_of(group: tuple[int, ...], kinds: Sequence[Cluster]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two halves of a group of devices, as near the middle as can be without parting devices of one kind.

    Devices of one kind alone are parted in the middle. ``kinds`` in the order of the group.
    """
    between = [k for k in range(1, len(group)) if kinds[k - 1] != kinds[k]] or range(1, len(group))
    at = min(between, key=lambda k: (abs(2 * k - len(group)), k))
    return group[:at], group[at:]


def balanced(problem: Problem) -> tuple[list[Way], dict[int, float]]:
    """Ways and ratios that fit each other: by place in ``problem.mine``, ratios of those that are cut."""
    whole = problem.seconds.sum(axis=0)
    mean = float(whole[1] / whole.sum()) if whole.sum() else 0.5
    known: dict[int, float] = {}
    best: tuple[float, list[Way], dict[int, float]] | None = None
    for _ in range(_ROUNDS):
        ways = problem.best(known, mean)
        ratio = ratios(problem, ways)
        seconds = problem.total(ways, ratio, mean)
        if best is not None and seconds >= best[0]:
            break
        best, known, mean = (seconds, ways, ratio), {**known, **ratio}, _mean(problem, ways, ratio)
    assert best is not None
    return best[1], best[2]


def _mean(problem: Problem, ways: Sequence[Way], ratio: dict[int, float]) -> float:
    """The ratio of all that is cut, by the seconds that it takes."""
    cut = [i for i, way in enumerate(ways) if way.factor >= 0 and i in ratio]
    weight = problem.seconds[cut].sum(axis=1)
    return float(np.average([ratio[i] for i in cut], weights=weight)) if weight.sum() else 0.5


def _words(problem: Problem, ways: Sequence[Way], ratio: dict[int, float], devices: Devices) -> str:
    kinds = [kind for i, way in enumerate(ways) if (kind := problem.kind_of(i, way))]
    counts = [f"{kinds.count(kind)} by {kind}" for kind in dict.fromkeys(sorted(kinds))]
    sides = [" and ".join(devices.names[d] for d in group) for group in problem.sides.groups]
    part = _mean(problem, ways, ratio)
    what = f"products cut: {', '.join(counts)}" if counts else "no product can be cut"
    return f"{sides[0]} against {sides[1]}, {100 * part:.3g} % to {100 * (1 - part):.3g} % on the whole; {what}"
