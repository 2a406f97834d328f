"""AccPar on unlike devices: every product is cut along one of three dims, in pieces that take equally long.

Song, Chen, Qian, Li and Chen, "AccPar: Tensor Partitioning for Heterogeneous Deep Learning Accelerators", HPCA 2020,
sections 4 (the three types and what moves between them) and 5 (ratios, dynamic program, halves of halves). Devices, the
fastest first, are halved until each is alone, and each half shares anew what it has. What differs: a part that is no
product may also run on both sides or on one; costs are this library's; parts between which nothing moves have one ratio;
ratios for each cut, one ratio for all, and whole ops on one device are simulated, and the shortest run is taken.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

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


@register(
    "accpar_ratios", family="placing", decides="which dim of every product is cut, and in which ratio", promises="none",
    paper="Song, Chen, Qian, Li, Chen: AccPar: Tensor Partitioning for Heterogeneous Deep Learning Accelerators, "
    "HPCA 2020, sections 4 and 5",
    options=(
        Option("ratio", "balanced", "balanced: both sides finish at the same time; equal: halves, however unlike the "
               "devices are, to compare with", possible=("balanced", "equal")),
    ),
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
    is_equal = task.options["ratio"] == "equal"
    tried = [functools.partial(_placed, task, *x) for x in _shared(task, task.program, is_equal)]
    found, refused = list[Placing](), list[PlanError]()
    for one in tried if is_equal else [*tried, functools.partial(_alone, task)]:
        try:
            found.append(one())
        except PlanError as error:  # too little memory for it
            refused.append(error)
    if not found:
        raise refused[0]
    return min(found, key=lambda x: x.seconds)


def _shared(task: PlacingTask, program: Program, is_equal: bool) -> list[tuple[Pieces, tuple[str, ...]]]:
    """The program in pieces, each a single device's: with a ratio for each cut, and with one for all."""
    whole = steps_of(program, task.devices).seconds.sum(axis=0)
    order = tuple(sorted(range(len(task.devices)), key=lambda d: (whole[d], d)))
    found = []
    for mode in ("equal",) if is_equal else ("balanced", "single"):
        pieces, notes = Pieces.whole(program, order), list[str]()
        groups = [order]
        while groups:
            group = groups.pop(0)
            if len(group) > 1:
                halves = halves_of(group, [task.devices.kinds[d] for d in group])
                pieces, words = _halved(pieces, group, Sides.of(task.devices, *halves), task.devices, mode)
                groups += halves
                notes.append(words)
        found.append((pieces, tuple(notes)))
    return found


def halves_of(group: tuple[int, ...], kinds: Sequence[Cluster]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two halves of a group of devices, as near the middle as can be without parting devices of one kind.

    Devices of one kind alone are parted in the middle. ``kinds`` in the order of the group.
    """
    between = [k for k in range(1, len(group)) if kinds[k - 1] != kinds[k]] or range(1, len(group))
    at = min(between, key=lambda k: (abs(2 * k - len(group)), k))
    return group[:at], group[at:]


def _halved(
    pieces: Pieces, group: Sequence[int], sides: Sides, devices: Devices, mode: str
) -> tuple[Pieces, str]:  # fmt: skip
    """What a group shares, shared by its two halves; in words, how."""
    found = steps_of(pieces.program, devices)
    mine = [k for k, step in enumerate(found.steps) if pieces.groups[id(step)] == tuple(group)]
    problem = Problem.of(pieces.program, found, mine, devices, sides)
    if mode == "equal":
        half = dict.fromkeys(range(len(mine)), 0.5)
        ways, ratio = problem.best(half, 0.5), half
    else:
        ways, ratio = balanced(problem)
    if mode == "single":
        ratio = dict.fromkeys(ratio, _mean(problem, ways, ratio))
    return in_pieces(pieces, problem, ways, ratio), _words(problem, ways, ratio, devices)


def balanced(problem: Problem) -> tuple[list[Way], dict[int, float]]:
    """Ways and ratios that fit each other: by place in ``problem.mine``, ratios of those that are cut."""
    whole = problem.seconds.sum(axis=0)
    mean = float(whole[1] / whole.sum()) if whole.sum() else 0.5
    known: dict[int, float] = {}
    best: tuple[float, list[Way], dict[int, float]] | None = None
    for _ in range(_ROUNDS):
        ways = problem.best(known, mean)
        ratio = ratios(problem, ways, known, mean)
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


def _placed(task: PlacingTask, pieces: Pieces, notes: tuple[str, ...]) -> Placing:
    """Pieces where they belong, in the best order found. ``PlanError`` where they do not fit in memory."""
    where = {step: group[0] for step, group in pieces.groups.items()}
    parts = placeable(pieces.program, task.devices, task.most * len(task.devices), where)
    found = finished(PlacingTask(parts.graph, task.devices), np.argmin(parts.graph.seconds, axis=1).tolist())
    return replace(found, cut=Cut(pieces.program, parts, pieces.arguments), notes=(*found.notes, *notes))


def _alone(task: PlacingTask) -> Placing:
    """All ops whole on one device."""
    found = lookup("one_device", "placing").run(PlacingTask(task.graph, task.devices))
    return replace(found, notes=(*found.notes, "nothing is cut: pieces on several devices would take longer"))
