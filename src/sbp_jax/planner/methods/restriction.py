"""Restrictions: which choices a family of plans leaves, and the search within it.

A wish is a score of signatures. Of a node's choices those with the least score are kept, so a wish is always met as
nearly as can be: what should be split along every axis, but has no dim that divides, stays whole, and is noted.
Choices are only taken away, never added, so the best plan of a family never beats the best plan of all.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...rules.widen import Code
from ..costs.cost_graph import CostGraph, Subset
from ..memory.protocol import FootprintLike, MemoryTable
from .node_roles import Counts, Leaf, NodeRoles

Score = Callable[[Code], float]
# Values that a note names.
_NAMED = 3
# That weights are split comes before the other wishes of tensor parallelism.
_MATTERS = 3


@dataclass(slots=True)
class Restriction:
    """The choices kept, by node, and pairs of leaves that must have one signature."""

    roles: NodeRoles
    kept: dict[int, np.ndarray] = field(default_factory=dict)
    together: list[tuple[Leaf, Leaf]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def wish(self, leaves: Iterable[Leaf], score: Score, words: str) -> None:
        """Keep of each leaf the choices of the least score; where that is above 0, say which are not ``words``."""
        self.wish_each(((leaf, score) for leaf in leaves), words)

    def wish_each(self, wishes: Iterable[tuple[Leaf, Score]], words: str) -> None:
        """As ``wish``, with a score for each leaf."""
        short: dict[str, None] = {}
        for leaf, score in wishes:
            kept = self.kept.get(leaf.node, np.arange(len(leaf.codes)))
            scores = np.array([score(leaf.codes[k]) for k in kept])
            best = scores.min()
            self.kept[leaf.node] = kept[scores <= best]
            if best > 0:
                dims = "x".join(map(str, leaf.shape))
                why = "pinned" if leaf.node in self.roles.pinned else f"({dims})"
                short[f"{leaf.label} {why}"] = None
        if short:
            named = ", ".join(list(short)[:_NAMED])
            more = f" and {len(short) - _NAMED} more" if len(short) > _NAMED else ""
            self.notes.append(f"as nearly {words} as can be: {named}{more}")

    def along(self, axes: Sequence[int], others_whole: bool, of_features: Sequence[int] = ()) -> None:
        """Split every value that counts examples on that dim along ``axes``, as nearly as each op can.

        ``others_whole``: what does not count examples is not split along ``axes``. Along ``of_features`` matrices of
        weights are split, and nothing is on a dim that data have.
        """
        sizes = self.roles.axis_sizes
        weights = [math.log2(n) for n in sizes]  # where not all axes can be: the larger ones
        known: dict[tuple[Code, Counts], float] = {}

        def wrong(code: Code, counts: Counts) -> float:
            if (code, counts) not in known:
                batch, of_data, is_matrix = counts
                far = [a for a in axes if (code[a] != batch if batch is not None else others_whole and code[a] >= 0)]
                far += [a for a in of_features if code[a] in of_data]
                far += [a for a in of_features if is_matrix and code[a] < 0] * _MATTERS
                known[code, counts] = sum(weights[a] for a in far)
            return known[code, counts]

        for flow in self.roles.flows:
            codes = self.roles.signatures[flow.node]
            kept = self.kept.get(flow.node, np.arange(len(codes)))
            scores = np.array([
                sum(wrong(c, counts) for way in flow.dims for c, counts in zip(codes[k], way, strict=True))
                for k in kept
            ])  # fmt: skip
            self.kept[flow.node] = kept[scores <= scores.min() + 1e-9]

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


def divided_on(axis_sizes: Sequence[int], axes: Sequence[int], dim: int) -> Score:
    """0 for what every axis of ``axes`` splits on one dim; else how many times too large the pieces are."""
    return lambda code: float(np.prod([axis_sizes[a] for a in axes if code[a] != dim], initial=1.0)) - 1.0


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A problem and its bytes with some of the choices only."""

    problem: CostGraph
    footprint: FootprintLike
    choices: Subset


@dataclass(frozen=True, slots=True)
class _Footprint:
    """The bytes of choices that are numbered among those kept."""

    base: FootprintLike
    choices: Subset

    def over_time(self, choice: Sequence[int]) -> np.ndarray:
        return self.base.over_time(self.choices.widen(choice))

    def at(self, point: int) -> CostGraph:
        return self.choices.of(self.base.at(point))

    def held(self, choice: Sequence[int], point: int) -> list[tuple[str, float]]:
        return self.base.held(self.choices.widen(choice), point)

    def by_interval(self) -> Iterator[MemoryTable]:
        places = self.choices.places
        for t in self.base.by_interval():
            a, rows = places[t.a]
            if t.b < 0:
                yield replace(t, a=a, bytes=t.bytes[rows])
            else:
                b, columns = places[t.b]
                yield replace(t, a=a, b=b, bytes=t.bytes[rows[:, None], columns])


def narrow(problem: CostGraph, footprint: FootprintLike, restriction: Restriction) -> Narrowed:
    """The problem within a restriction. Leaves that must be alike are one node."""
    kept = [restriction.kept.get(n, np.arange(len(c))) for n, c in enumerate(problem.nodes)]
    tied: list[tuple[int, int, np.ndarray]] = []
    deciders: set[int] = set()
    followers: set[int] = set()
    for a, b in restriction.together:
        # One decides, the other follows; classes of layers may have brought leaves together otherwise already.
        if a.node == b.node or a.node in followers or b.node in deciders | followers:
            continue
        of_b = {b.codes[k]: int(k) for k in kept[b.node]}
        kept[a.node] = np.array([k for k in kept[a.node] if a.codes[k] in of_b])
        follows = np.full(len(a.codes), -1)
        follows[kept[a.node]] = [of_b[a.codes[k]] for k in kept[a.node]]
        tied.append((a.node, b.node, follows))
        deciders.add(a.node)
        followers.add(b.node)
    choices = Subset(tuple(k[:1] if n in followers else k for n, k in enumerate(kept)), tuple(tied))
    return Narrowed(choices.of(problem), _Footprint(footprint, choices), choices)
