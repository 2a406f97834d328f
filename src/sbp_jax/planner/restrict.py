"""Restrictions: which choices a family of plans leaves, and the search within it.

A wish is a score of signatures. Of a node's choices those with the least score are kept, so a wish is always met as
nearly as can be: what should be split along every axis, but has no dim that divides, stays whole, and is noted.
Choices are only taken away, never added, so the best plan of a family never beats the best plan of all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ..rules.widen import Code
from .anatomy import Anatomy, Leaf
from .problem import IMPOSSIBLE, Problem

Score = Callable[[Code], float]
_NAMED = 3


@dataclass(slots=True)
class Restriction:
    """The choices kept, by node, and pairs of leaves that must have one signature."""

    anatomy: Anatomy
    kept: dict[int, np.ndarray] = field(default_factory=dict)
    together: list[tuple[Leaf, Leaf]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def wish(self, leaves: Iterable[Leaf], score: Score, words: str) -> None:
        """Keep of each leaf the choices of the least score; where that is above 0, say which are not ``words``."""
        short: dict[str, None] = {}
        for leaf in leaves:
            kept = self.kept.get(leaf.node, np.arange(len(leaf.codes)))
            scores = np.array([score(leaf.codes[k]) for k in kept])
            best = scores.min()
            self.kept[leaf.node] = kept[scores <= best]
            if best > 0:
                dims = "x".join(map(str, leaf.shape))
                why = "pinned" if leaf.node in self.anatomy.pinned else f"({dims})"
                short[f"{leaf.label} {why}"] = None
        if short:
            named = ", ".join(list(short)[:_NAMED])
            more = f" and {len(short) - _NAMED} more" if len(short) > _NAMED else ""
            self.notes.append(f"as nearly {words} as can be: {named}{more}")

    def alike(self, a: Leaf, b: Leaf) -> None:
        """Two leaves must have one signature, where they can."""
        left = {a.codes[k] for k in self.kept.get(a.node, range(len(a.codes)))}
        right = {b.codes[k] for k in self.kept.get(b.node, range(len(b.codes)))}
        if a.node != b.node and left & right:
            self.together.append((a, b))


def whole(axis_sizes: Sequence[int], axes: Sequence[int]) -> Score:
    """0 for what no axis of ``axes`` splits, more the more pieces there are."""
    return lambda code: float(sum(axis_sizes[a] > 1 and code[a] >= 0 for a in axes))


def divided(axis_sizes: Sequence[int], axes: Sequence[int], ndim_of_one: bool = False) -> Score:
    """0 for what every axis of ``axes`` splits; else how many times too large the pieces are.

    ``ndim_of_one``: only one dim may be split; what splits several counts as not split.
    """

    def score(code: Code) -> float:
        dims = {code[a] for a in axes if axis_sizes[a] > 1 and code[a] >= 0}
        if ndim_of_one and len(dims) > 1:
            return float("inf")
        missing = [axis_sizes[a] for a in axes if axis_sizes[a] > 1 and code[a] < 0]
        # Partial values hold as much as whole ones and are still to be reduced.
        return float(np.prod(missing, initial=1.0)) - 1.0 + 0.5 * sum(code[a] < -1 for a in axes)

    return score


class Bytes(Protocol):
    """What searches ask of a ``Footprint``."""

    def over_time(self, choice: Sequence[int]) -> np.ndarray: ...
    def at(self, point: int) -> Problem: ...


@dataclass(frozen=True, slots=True)
class _Footprint:
    """The bytes of choices that are numbered among those kept."""

    base: Bytes
    kept: Sequence[np.ndarray]

    def over_time(self, choice: Sequence[int]) -> np.ndarray:
        return self.base.over_time([int(k[c]) for k, c in zip(self.kept, choice, strict=True)])

    def at(self, point: int) -> Problem:
        return _sliced(self.base.at(point), self.kept)


def _sliced(problem: Problem, kept: Sequence[np.ndarray]) -> Problem:
    return replace(
        problem,
        nodes=[c[k] for c, k in zip(problem.nodes, kept, strict=True)],
        edges={(a, b): m[np.ix_(kept[a], kept[b])] for (a, b), m in problem.edges.items()},
    )


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A problem and its bytes with fewer choices; ``widen`` gives the choice in the whole problem's numbers."""

    problem: Problem
    footprint: Any
    kept: tuple[np.ndarray, ...]

    def widen(self, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice among those kept, as one among all."""
        return tuple(int(k[c]) for k, c in zip(self.kept, choice, strict=True))


def narrow(problem: Problem, footprint: Bytes, restriction: Restriction) -> Narrowed:
    """The problem within a restriction."""
    kept = [restriction.kept.get(n, np.arange(len(c))) for n, c in enumerate(problem.nodes)]
    result = _sliced(problem, kept)
    for a, b in restriction.together:
        apart = np.array(
            [[0.0 if a.codes[i] == b.codes[j] else IMPOSSIBLE for j in kept[b.node]] for i in kept[a.node]]
        )
        result.connect(a.node, b.node, apart)
    return Narrowed(result, _Footprint(footprint, kept), tuple(kept))
