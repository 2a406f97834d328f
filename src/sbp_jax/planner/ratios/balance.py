"""The ratios at which both sides finish at the same time.

Parts whose cuts are one and the same, for nothing moves between them, have one ratio; it is the one at which the longer
side takes least, computing and receiving. That is AccPar's equation for it (section 5): what the sides compute and
receive takes both equally long. A ratio is a fraction that leaves whole lengths on every dim that it cuts.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .layouts import received
from .problem import Problem, Way

# Fractions tried at once; then those between the two beside the best.
_TRIED = 64

# The layouts of what is made and of what is read, and the bytes of the whole value.
_Moved = tuple[int, int, float]


def ratios(problem: Problem, ways: Sequence[Way], known: Mapping[int, float], mean_ratio: float) -> dict[int, float]:
    """By place of a part that is cut the first side's part. ``known``: those of before, for what moves."""
    found: dict[int, float] = {}
    for members in together(problem, ways):
        common = math.gcd(*(ways[i].length for i in members))
        inner = {i: known.get(i, mean_ratio) for i in members}
        between = _between(problem, ways, inner)

        def longer(ratio: float, members: Sequence[int] = members, between: Sequence[_Moved] = between) -> float:
            sides = np.zeros(2)
            for i in members:
                sides += problem.run_seconds(i, ways[i], ratio)
            for source, target, size_bytes in between:
                sides += problem.sides.seconds(source, target, size_bytes, ratio)
            return float(sides.max())

        ratio = _least(longer, max(common, 2))
        found.update(dict.fromkeys(members, ratio))
    return found


def together(problem: Problem, ways: Sequence[Way]) -> list[list[int]]:
    """The places of parts that are cut, those together between which nothing moves: each list has one ratio."""
    home = list(range(len(ways)))

    def root(i: int) -> int:
        while home[i] != i:
            home[i] = home[home[i]]
            i = home[i]
        return i

    for i, way in enumerate(ways):
        for value, operand in problem.reads(i):
            maker = problem.number.get(problem.made[value.id][1])
            if maker is None or operand < 0 or way.factor < 0 or ways[maker].factor < 0:
                continue
            if way.ins[operand] >= 0 and problem.made_as(ways, value) == way.ins[operand]:
                a, b = sorted((root(i), root(maker)))
                home[b] = a
    found: dict[int, list[int]] = {}
    for i, way in enumerate(ways):
        if way.factor >= 0:
            found.setdefault(root(i), []).append(i)
    return list(found.values())


def _between(problem: Problem, ways: Sequence[Way], members: Mapping[int, float]) -> list[_Moved]:
    """What moves to or from a set of parts: layouts and bytes, each value once to each layout."""
    found: dict[tuple[int, int], _Moved] = {}
    for i, way in enumerate(ways):
        for value, operand in problem.reads(i):
            maker = problem.number.get(problem.made[value.id][1])
            source = problem.made_as(ways, value)
            target = problem.layout(i, way, operand)
            if source != target and (i in members or maker in members):
                found[value.id, target] = source, target, float(value.size_bytes)
    return [x for x in found.values() if received(*x, 0.5) is not None]


def _least(longer: Callable[[float], float], whole: int) -> float:
    """The fraction ``k / whole``, neither 0 nor 1, at which a function is least."""
    low, high = 1, whole - 1
    while True:
        step = max(1, (high - low) // _TRIED)
        tried = [*range(low, high, step), high]
        k = min(tried, key=lambda k: (longer(k / whole), k))
        if step == 1:
            return k / whole
        low, high = max(low, k - step), min(high, k + step)
