"""Which mixes of holding and making again are planned under a limit, and in which order.

First the mix that should fit as it is, or holds least; from there those that make less again and hold more, to the one
that makes nothing again. What holds more is split as much at least, so a mix saves no more than what it does not make
again: where that is hardly anything it is passed over, and the first that does not fit is the last. Between two mixes,
one of which does not fit, the more expensive one is used for as many of the first layers as it takes.
"""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ..budget import Budget
from .held import Held
from .min_cut import Ladder, Rung

# Mixes looked at between two. Where none fits, so many that hold least are planned, in each of two steps.
_PARTS, _EVERY = 12, 3
_LEAST = (2, 1)
# What holds so little more, as a part, holds about the same.
_SAME = 0.01
# A mix that holds more is planned if it makes again for so much less, as a part of the step; between two mixes for the
# second; any, while little work is done (a part of the budget).
_WORTH, _WORTH_BETWEEN = 0.01, 0.005
_LITTLE = 0.1
# A mix is but a start where the next one may save such a part of the step without a limit.
_CLEARLY = 0.03


class Outcome(Enum):
    """What came of a mix: a plan; none was found that fits; none was asked for, or would be the cheapest."""

    PLANNED = auto()
    TOO_LARGE = auto()
    NOT_WORTH = auto()


@dataclass(slots=True)
class Climb:
    """The mixes of a ladder, planned one after the other.

    Attributes:
        base_bytes: what the plan holds that the ladder is made for; ``base_seconds``: its step.
        limit: in bytes per device, as all others here.
        thorough: whether mixes that save hardly anything are planned, too.
        budget: for all of it.
        looks: the part of it for judging what mixes hold.
        mix: plans the one that makes some nodes again, and holds about so many bytes; whether it is but a start, for a
            mix that takes clearly less comes after it.
        none_again: plans the one that makes nothing again.
        cannot_fit: whether something that holds so much cannot, by what is known.
        cheapest: the nodes that the cheapest plan makes again, and its seconds; None before there is one.
    """

    ladder: Ladder
    held: Held
    base_bytes: float
    base_seconds: float
    limit: float
    thorough: bool
    budget: Budget
    looks: Budget
    mix: Callable[[Collection[int], float, bool], Outcome]
    none_again: Callable[[], Outcome]
    cannot_fit: Callable[[float], bool]
    cheapest: Callable[[], tuple[Collection[int], float] | None]

    def run(self) -> None:
        """Plan mixes; where none is found that fits, those that hold least of all."""
        rungs = [Rung(frozenset(), 0.0, 0.0), *self.ladder.rungs()]
        over_turn = [self.base_bytes - r.saved_bytes for r in rungs]
        holding = [self.held(r.nodes, self.looks) for r in rungs]
        surely, perhaps = self._first_within(holding), self._first_within(over_turn)
        first = rungs[surely].nodes
        if surely > 0 and holding[surely] > self.limit:
            first = self._holding_least([*_between(rungs[surely - 1].nodes, first), first])
        if surely > 0:
            saves = self.ladder.seconds_of(first) - self.ladder.seconds_of(rungs[surely - 1].nodes)
            self._plan(first, is_start=saves > _CLEARLY * self.base_seconds)
        if self.cheapest() is None:
            self._plan_least(rungs, self.held(first, self.looks))
        self._descend(rungs[: max(surely, 1)], perhaps)
        known = self.cheapest()
        if known is None:
            return
        if surely + 1 < len(rungs) and holding[surely + 1] < holding[surely]:
            self._plan(rungs[surely + 1].nodes)
        best = next((k for k, r in enumerate(rungs) if r.nodes == set(known[0])), 0)
        if best == 0 or self.budget.over:
            return
        between = _between(rungs[best - 1].nodes, rungs[best].nodes)
        surest = least = None
        if holding[best] <= self.limit:
            surest = next((n for n in between if self.held(n, self.looks) <= self.limit), None)
        if over_turn[best - 1] > self.limit:
            # In other signatures one may do that holds too much in these: the least that could be enough.
            spared = self.base_bytes - self.limit
            least = next((n for n in between if self.ladder.saved(n) >= spared), None)
        for nodes in dict.fromkeys(n for n in (surest, least) if n is not None):
            saves = self.ladder.seconds_of(known[0]) - self.ladder.seconds_of(nodes)
            if self._is_worth(saves, known[1], _WORTH_BETWEEN):
                self._plan(nodes)

    def _first_within(self, holding: Sequence[float]) -> int:
        return next((k for k, x in enumerate(holding) if x <= self.limit), holding.index(min(holding)))

    def _holding_least(self, mixes: Sequence[frozenset[int]]) -> frozenset[int]:
        """Of those that hold about the least, the cheapest: of every third one, and those next to the best of these."""
        some = dict.fromkeys([*range(_EVERY - 1, len(mixes), _EVERY), len(mixes) - 1])
        best = min(some, key=lambda k: self.held(mixes[k], self.looks))
        some |= dict.fromkeys(k for k in range(best - _EVERY + 1, best + _EVERY) if 0 <= k < len(mixes))
        holding = {k: self.held(mixes[k], self.looks) for k in some}
        least = [mixes[k] for k, x in holding.items() if x <= (1 + _SAME) * min(holding.values())]
        return min(least, key=self.ladder.seconds_of)

    def _plan(self, nodes: frozenset[int], is_start: bool = False) -> Outcome:
        holds = self.held(nodes, self.looks)
        return Outcome.TOO_LARGE if self.cannot_fit(holds) else self.mix(nodes, holds, is_start)

    def _descend(self, rungs: Sequence[Rung], perhaps: int) -> None:
        """Plan mixes that hold more and more until one does not fit; while none is known that does, as far as the first
        that ``perhaps`` fits and one more."""
        known = self.cheapest()
        again = math.inf if known is None else self.ladder.seconds_of(known[0])
        for k in range(len(rungs) - 1, -1, -1):
            nodes, known = rungs[k].nodes, self.cheapest()
            if known is None and k < max(perhaps - 1, 1):
                return
            seconds = self.ladder.seconds_of(nodes)
            if known is not None and not self._is_worth(again - seconds, known[1], _WORTH):
                continue
            outcome = self._plan(nodes) if k else self.none_again()
            if outcome is not Outcome.TOO_LARGE:
                again = seconds
            elif self.cheapest() is not None:
                return

    def _is_worth(self, saves: float, of: float, part: float) -> bool:
        """Whether a mix is planned that saves at most so many seconds of a step; any is where all are asked for."""
        return self.thorough or self.budget.part <= _LITTLE or saves >= part * of

    def _plan_least(self, rungs: Sequence[Rung], refused: float) -> None:
        """Plan the mixes that hold least until one fits: those next to the ladder's least, then of all."""
        least = min(rungs, key=lambda r: self.held(r.nodes, self.looks))
        mixes, others = [least.nodes], [r.nodes for r in rungs[1:]]
        for less, more in itertools.pairwise(rungs):
            (mixes if least in (less, more) else others).extend(_between(less.nodes, more.nodes))
        known = {refused}
        for some, count in zip((mixes, mixes + others), _LEAST, strict=True):
            # Of those that hold the same, which often are the same program, the cheapest.
            by_seconds = sorted(some, key=self.ladder.seconds_of, reverse=True)
            cheapest = {self.held(n, self.looks): n for n in by_seconds}
            for holds, nodes in sorted(cheapest.items(), key=lambda item: item[0])[:count]:
                if self.cheapest() is None and nodes and holds < math.inf and holds not in known:
                    known.add(holds)
                    self.mix(nodes, holds, False)
            if self.cheapest() is not None:
                return


def _between(less: frozenset[int], more: frozenset[int]) -> list[frozenset[int]]:
    """The more expensive of two mixes for a growing number of the first nodes, the less expensive one for the rest."""
    parts = sorted(more - less)
    ends = dict.fromkeys(parts[len(parts) * part // _PARTS] for part in range(1, _PARTS)) if parts else {}
    return [less | {n for n in more if n < end} for end in ends]
