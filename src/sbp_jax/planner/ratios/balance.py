"""The ratios at which both sides finish at the same time.

Parts whose cuts are one and the same, for nothing moves between them, have one ratio; it is the one at which the side
that computes longer and the one that receives longer take least together. AccPar (section 5) looks for equal sums of
what a side computes and receives; but a side receives what the other has finished, so that the two do not add up on
one side alone. A ratio is a fraction that leaves whole lengths on every dim that it cuts.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from .problem import Move, Problem, Way

# Fractions tried at once; then those between the two beside the best.
_TRIED = 64


def ratios(problem: Problem, ways: Sequence[Way]) -> dict[int, float]:
    """By place of a part that is cut the first side's part."""
    found: dict[int, float] = {}
    moves = problem.moves(ways)
    for members in together(problem, ways):
        common = math.gcd(*(ways[i].length for i in members))
        between = [m for m in moves if m.ends & set(members)]

        def longer(ratio: float, members: Sequence[int] = members, between: Sequence[Move] = between) -> float:
            run = np.sum([problem.run_seconds(i, ways[i], ratio) for i in members], axis=0)
            sent = [max(problem.sides.seconds(m.source, m.target, m.size_bytes, ratio)) for m in between]
            return float(run.max()) + sum(sent)

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
