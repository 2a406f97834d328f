"""When memory is short: what not to hold from the forward part of a step to the backward one.

Arguments need not be held in the signature that a layer reads them in (parameters are gathered twice, as ZeRO's third
stage does); that is tried where memory is nearly used up. With ``remat="auto"`` what was computed need not be held
either.

The cheapest plan of all says what each value weighs and each op costs; ``min_cut.py`` turns that into mixes of holding
and making again, ``climb.py`` says which of them are tried. They are planned under the limit like any program, and the
cheapest plan wins, be it one that recomputes nothing and splits more.
"""

import functools
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ...plan import PlanData, Recomputed
from ...rules.widen import code_of
from ...trace import Program, fingerprint, read_anew, recompute
from ..budget import WORK_A_SECOND
from ..costs.op_cost import CostModel
from ..effort import usual
from ..make import make_plan
from ..memory.infeasible import NoneCheaper, TooSmall
from ..optimize.goal import Start
from ..request import Request
from .climb import Climb, Outcome
from .held import Held
from .known import Known, again_from
from .min_cut import Ladder, Sizes, Turn, find_turn

# A plan that holds more than this part of the limit may have been made more expensive by it.
_NEARLY = 0.8
# The part of the budget for holding all, where reading arguments anew is the only other mix.
_FIRST = 0.75
# Each other mix has what is left, and at least this part of the budget; when that is over, to be given up; this part
# while none fits.
_OTHER, _ONE_OF_SEVERAL, _LATE, _WHILE_NONE = 0.25, 1.0, 0.1, 0.5
# Mixes differ by more than this: where there may be several, a proven gap of so much is small enough for one, after so
# many seconds of work.
_COARSE = ((0.0, 0.03), (10.0, 0.05))
# For a mix that is but a start for others no prices are searched for where its first plans leave no more than this.
_ANY = 0.1
# Where that took less than this part of the budget, the cheapest is searched on; or, if its gap is at most the second,
# less than the third.
_EARLY, _FINE, _EARLIER = 0.33, 0.02, 0.2
# A mix whose smallest limit is told is searched for a plan once more: with what is left, or this part of the budget.
_TELLING = 0.05
# What the gap is of, at the end of a note.
_PROVEN = "; the gap is proven over the mixes that a plan was found for"
# Seconds of work for looking at what mixes hold.
_LOOK_SECONDS = 10.0
# Arguments are read anew where a plan fits anyway if that frees this part of the limit, and promises this part of the
# step, reading twice not counted (13 searches of the zoo under a limit: 6.1 to 24 % were promised where 5 to 8 % were
# saved, 0 to 2.4 % where nothing was). Or where the first plan leaves such a gap: it says little of what may fit.
_WORTH, _WORTH_OF_STEP, _OPEN = 0.02, 0.03, 0.1


def plan_to_fit(program: Program, request: Request, name: str = "function") -> PlanData:
    """The cheapest plan found within the memory limit; its gap is proven over the mixes of holding and making again
    that were tried.

    Raises ``TooSmall`` where no mix fits into a firm limit.
    """
    limit = request.memory_limit_bytes
    if limit is None:
        return make_plan(program, request, name)
    start = time.perf_counter()
    found = _within(limit, program, request, name)
    found.planning_seconds = time.perf_counter() - start
    return found


def _within(limit: float, program: Program, request: Request, name: str) -> PlanData:
    # Where nothing fits the smallest limit is looked for at the end, for the mixes that hold least.
    tells_smallest = request.tell_smallest
    request = replace(request, names_limit=request.limit_is_firm, tell_smallest=False)
    choice = _Choice(program, request, name, limit, tells_smallest)
    held = None if request.remat else choice.attempt(program, _part(request, _FIRST))
    if held is not None and (held.memory_per_device < _NEARLY * limit or choice.is_over or _is_close(held, request)):
        return choice.deepened()
    if choice.refusals and choice.is_over and request.limit_is_firm:
        choice.look_for_smallest()
        if choice.tried:
            return choice.deepened()
        raise choice.refusal
    known = held if held is not None and held.optimality_gap <= _OPEN else None
    free = known or make_plan(program, replace(_part(request, 1.0), memory_limit_bytes=None), name)
    if held is None and free.memory_per_device <= limit:
        return free
    return choice.best(free)


def _part(request: Request, part: float) -> Request:
    """With a part of the work that is left; of a user's time, with what a part of the default work takes: one mix alone
    would leave the others nothing."""
    if request.time_limit is None or not request.thorough:
        return replace(request, budget=request.budget.share(part))
    return replace(request, thorough=False, budget=usual(request.budget, part))


def _is_close(plan: PlanData, request: Request) -> bool:
    """Whether a plan costs hardly more than any does without a limit: no mix saves what another search is worth."""
    free = plan.statistics.get("free_seconds")
    enough = max((gap for _, gap in request.budget.stops), default=0.0)
    return free is not None and plan.objective * (1 - enough) <= free


@dataclass(eq=False, slots=True)
class _Refused:
    """A mix that no plan was found for that fits, and what to search it again with. ``holds``: bytes per device, as
    the plan that the mixes are judged by would hold (``held.py``)."""

    error: TooSmall
    holds: float
    program: Program
    request: Request
    origin: Sequence[int] | None
    finish: Callable[[PlanData], None]


class _Choice:
    """Plans of one program with different mixes of holding and making again."""

    def __init__(
        self, program: Program, request: Request, name: str, limit: float, tells_smallest: bool = True
    ) -> None:  # fmt: skip
        self.program, self.request, self.name, self.limit = program, request, name, limit
        self.tells_smallest = tells_smallest
        self.tried: list[PlanData] = []
        self.programs: list[tuple[Program, Request, Sequence[int]]] = []
        """Of the plans tried, their programs, what was asked, the node that each node is, or is a copy of."""
        self.refusals: list[_Refused] = []
        self.cut = False
        """Whether nothing was left for a mix."""
        self.held_all = False
        """Whether the program as it is was searched, and found dearer where it is not among the refusals."""

    @property
    def is_over(self) -> bool:
        return self.request.budget.over

    @property
    def cheapest(self) -> int:
        """The position of the cheapest plan among those tried."""
        return min(range(len(self.tried)), key=lambda k: self.tried[k].objective)

    @property
    def refusal(self) -> TooSmall:
        """Of the mixes that do not fit, the error of the smallest: the smallest limit that works, and what every plan
        holds at least, whatever the mix."""
        told = [r for r in self.refusals if r.request.tell_smallest]
        smallest = min(told or self.refusals, key=lambda r: r.error.smallest_bytes)
        return smallest.error.where(min(r.error.least_bytes for r in self.refusals))

    def look_for_smallest(self) -> None:
        """The smallest plans of the mixes that hold least, for the error. What fits is a plan, too.

        The same mixes and the same search whatever the limit: at one that an error names a plan is found, then.
        """
        if not self.tells_smallest or any(r.request.tell_smallest for r in self.refusals):
            return
        smallest = min(self.refusals, key=lambda r: r.holds)
        least = min(self.refusals, key=lambda r: r.error.least_bytes)
        told = math.inf
        for r in dict.fromkeys((least, smallest)):
            if r.error.least_bytes >= told:  # proven: none of its plans is smaller
                continue
            asked = replace(r.request, tell_smallest=True, budget=self.request.budget.at_least(_TELLING))
            if self.attempt(r.program, asked, r.origin, r.finish, r.holds) is not None:
                return
            told = self.refusals[-1].error.smallest_bytes
            # Of the two errors of this mix, the one that tells more: the other one's time may have been up.
            worse = r if self.refusals[-1].error.smallest_bytes < math.inf else self.refusals[-1]
            self.refusals.remove(worse)

    def best(self, base: PlanData) -> PlanData:
        """The cheapest plan that fits. What values weigh and ops cost is taken from ``base``."""
        asked = self.request
        model = CostModel(asked.cluster, asked.placement.shape, uneven=asked.uneven)
        sizes = Sizes(self.program, base, model)
        turn = find_turn(self.program, sizes)
        if turn is None:
            if asked.remat:
                self.hold_all(base)
        elif asked.remat:
            frees_much = self.frees_much(self.freed(turn, base, sizes, model))
            ladder, held = Ladder(self.program, base, turn, sizes), Held(self.program, base, turn, sizes, asked)
            none_again = functools.partial(self.none_again, base, turn, frees_much)
            self.climb(base, turn, ladder, held, none_again)
            if not self.tried:
                none_again()
        elif not self.tried or self.may_save(turn, base, sizes, model):
            self.mix(turn, (), 0.0, base.memory_per_device)
        if not self.tried:
            self.look_for_smallest()
        if self.tried:
            found = self.deepened()
            if found.recomputed is not None:
                found.notes.append(self.told(found.recomputed))
            known = [x for p in (base, *self.tried) if (x := p.statistics.get("free_seconds")) is not None]
            found.statistics |= {"free_seconds": min(known)} if known else {}
            found.bound = min(p.bound for p in self.tried)
            if self.cut and known:  # what was not tried has the bound that holds without a limit
                found.bound = min(found.bound, *known)
                found.notes = [n.removesuffix(_PROVEN) for n in found.notes]
                found.notes.append(
                    "memory is short: the search ended before every mix of holding and making again was tried; the gap "
                    "is that to the cheapest plan without a limit"
                )
            return found
        if self.request.limit_is_firm:
            raise self.refusal
        base.notes.append(f"does not fit by the memory model: {self.refusal}")
        return base

    def freed(self, turn: Turn, plan: PlanData, own: Sizes, model: CostModel) -> float:
        """The most bytes that reading arguments anew spares a plan over the turn: their copies, or all of them."""
        anew = {v.id: v for v in read_anew(self.program, turn.node)}
        copies = dict.fromkeys(anew, 0.0)
        for b in plan.boxing_list:
            if b.value_id in anew:
                copies[b.value_id] += model.local_bytes(anew[b.value_id], code_of(b.dst))
        least = 1 / self.request.placement.size
        return sum(max(copies[v.id], own(v) - v.size_bytes * least) for v in anew.values())

    def frees_much(self, freed: float) -> bool:
        """Whether so many bytes are a part of the limit that another plan may be worth."""
        return freed > _WORTH * self.limit

    def may_save(self, turn: Turn, base: PlanData, sizes: Sizes, model: CostModel) -> bool:
        """Whether reading arguments anew may save enough of the first plan's step for another search. Prices at all
        points count: which of several peaks alike has the price says little (docs/decisions/0008)."""
        first = self.tried[0]  # it holds all
        freed = self.freed(turn, base, sizes, model)
        if first is not base:
            freed = max(freed, self.freed(turn, first, Sizes(self.program, first, model), model))
        saved = freed * first.statistics.get("seconds_per_byte", 0.0)
        is_open = self.request.thorough or first.optimality_gap > _OPEN
        return self.frees_much(freed) and (is_open or saved > _WORTH_OF_STEP * first.objective)

    def climb(
        self, base: PlanData, turn: Turn, ladder: Ladder, held: Held, none_again: Callable[[], Outcome]
    ) -> None:  # fmt: skip
        """Plan the mixes of a ladder (``climb.py``)."""

        def mix(nodes: Collection[int], holds: float, is_start: bool) -> Outcome:
            return self.mix(turn, nodes, base.objective + ladder.seconds_of(nodes), holds, is_start)

        def cannot_fit(holds: float) -> bool:
            less = [r for r in self.refusals if r.holds <= holds < math.inf]
            return any(r.error.least_bytes > self.limit for r in less)

        def cheapest() -> tuple[Collection[int], float] | None:
            if not self.tried:
                return None
            plan = self.tried[self.cheapest]
            return () if plan.recomputed is None else plan.recomputed.nodes, plan.objective

        budget, thorough = self.request.budget, self.request.thorough
        looks = budget.some(_LOOK_SECONDS)
        Climb(ladder, held, base.memory_per_device, base.objective, self.limit, thorough, budget, looks, mix,
              none_again, cannot_fit, cheapest).run()  # fmt: skip

    def none_again(self, base: PlanData, turn: Turn, frees_much: bool) -> Outcome:
        """Plan what makes nothing again: the program as it is, and with arguments read anew. That is first where it
        ``frees_much``: holding all may take far more then, and be searched in vain."""
        anew = self.mix(turn, (), 0.0, base.memory_per_device) if frees_much else Outcome.NOT_WORTH
        if anew is Outcome.TOO_LARGE and self.tried:
            return anew
        outcome = self.hold_all(base)
        if not (frees_much or self.tried):
            outcome = self.mix(turn, (), 0.0, base.memory_per_device)
        return Outcome.PLANNED if anew is Outcome.PLANNED else outcome

    def mix(
        self, turn: Turn, nodes: Collection[int], at_least: float, holds: float, is_start: bool = False
    ) -> Outcome:  # fmt: skip
        """Plan the program with these nodes made again, unless the seconds that it takes at least lose already.

        ``holds``: bytes that it will hold about. ``is_start``: any plan will do, for others to begin with.
        """
        if self.tried and at_least >= self.tried[self.cheapest].objective:
            return Outcome.NOT_WORTH
        if not nodes and not read_anew(self.program, turn.node):
            return Outcome.NOT_WORTH
        program, origin = recompute(self.program, turn.node, nodes)
        if len(program.nodes) == len(self.program.nodes):
            return Outcome.NOT_WORTH

        def finish(plan: PlanData) -> None:
            plan.fingerprint = fingerprint(self.program)
            plan.recomputed = Recomputed(turn.node, tuple(sorted(nodes)))

        return self.one_of_several(program, origin, holds, finish, bool(self.tried or nodes), is_start)

    def hold_all(self, base: PlanData) -> Outcome:
        """Plan the program as it is."""
        origin = range(len(self.program.nodes))
        return self.one_of_several(
            self.program, origin, base.memory_per_device, lambda _: None, all_that_is_left=bool(self.tried)
        )

    def one_of_several(
        self, program: Program, origin: Sequence[int], holds: float, finish: Callable[[PlanData], None],
        all_that_is_left: bool, is_start: bool = False,
    ) -> Outcome:  # fmt: skip
        """A plan of one mix, in its part of the budget."""
        # Nothing found yet: better late than not at all, but for a user who set the limit, once there is an answer.
        is_late = self.is_over and bool(self.tried)
        if self.is_over and self.request.thorough and (self.tried or self.refusals):
            self.cut = True
            return Outcome.NOT_WORTH
        asked = self.request
        pins = {k: asked.pins[o] for k, o in enumerate(origin) if o in asked.pins}
        part = (_ONE_OF_SEVERAL if asked.remat else _OTHER) if self.tried else _WHILE_NONE
        if asked.thorough:
            asked = _part(asked, part)
        else:
            budget = asked.budget.at_least(_LATE if is_late else part, of_left=1.0 if all_that_is_left else 0.0)
            # As far as it takes to tell mixes apart.
            stops = tuple((seconds * WORK_A_SECOND, gap) for seconds, gap in _COARSE if asked.remat)
            asked = replace(asked, budget=replace(budget, stops=(*budget.stops, *stops)))
        start_gap = _ANY if is_start and not asked.thorough else 0.0
        asked = replace(asked, pins=pins, find_start=self.known(origin), start_gap=start_gap)
        refused, tried = len(self.refusals), len(self.tried)
        self.attempt(program, asked, None if program is self.program else origin, finish, holds)
        if len(self.tried) > tried:
            return Outcome.PLANNED
        if len(self.refusals) == refused:
            return Outcome.NOT_WORTH
        self.cut |= is_late and self.refusals[-1].error.least_bytes <= self.limit
        return Outcome.TOO_LARGE

    def known(self, origin: Sequence[int]) -> Callable[..., Start] | None:
        """What a search begins with: the cheapest plan so far, which its own must be cheaper than."""
        return Known(self.tried[self.cheapest], self.programs[self.cheapest][2], origin).start if self.tried else None

    def deepened(self) -> PlanData:
        """The cheapest plan, after a search on in its mix if it was told from the others early; of a user's time that
        is all that is left, unless that is for plans that hide more (``overlap.py``)."""
        self.finish_start()
        plan, (_, asked, _) = self.tried[self.cheapest], self.programs[self.cheapest]
        request = self.request
        early = _EARLY if plan.optimality_gap > _FINE else _EARLIER
        is_early = request.remat and request.budget.part < early
        is_searched = asked.thorough or not (request.thorough or is_early)
        is_proven = request.budget.closes(plan.objective, plan.bound, request.gap)
        if not (is_searched or request.hides or is_proven or self.is_over):
            budget = request.budget if request.thorough else request.budget.share(1.0)
            self.search_on(self.cheapest, replace(asked, thorough=request.thorough, budget=budget))
        return self.tried[self.cheapest]

    def finish_start(self) -> None:
        """Search on in a mix that was but a start, where it is or may be the cheapest by what tells mixes apart."""
        asked, cheapest = self.programs[0][1], self.tried[self.cheapest].objective
        if asked.start_gap and not self.is_over and cheapest - self.tried[0].bound > _COARSE[0][1] * cheapest:
            self.search_on(0, replace(asked, budget=asked.budget.again()))

    def search_on(self, k: int, request: Request) -> None:
        """Another search in the mix of a plan, from this one, or for one that is cheaper than the cheapest."""
        plan, (program, _, origin), best = self.tried[k], self.programs[k], self.tried[self.cheapest]
        begin = again_from(plan, len(program.nodes)) if plan is best else self.known(origin)
        refused = len(self.refusals)
        again = self.attempt(program, replace(request, find_start=begin, start_gap=0.0), origin)
        if again is not None:
            again.fingerprint, again.recomputed = plan.fingerprint, plan.recomputed
            plan.bound = again.bound = min(max(plan.bound, again.bound), plan.objective, again.objective)
        elif plan is not best and len(self.refusals) == refused:  # proven: none is cheaper
            plan.bound = max(plan.bound, best.objective)

    def told(self, again: Recomputed) -> str:
        """What a mix does, and why."""
        anew = ["arguments are read anew in the backward part"] if read_anew(self.program, again.turn) else []
        n = len(again.nodes)
        some = f"{n} nodes are run again in the backward part" if n else "nothing is computed again"
        what = ", ".join([*anew, some])
        if any(r.origin is None for r in self.refusals):
            return f"to fit, {what}{_PROVEN}"
        return f"memory is short: {what}{', which is cheaper than holding all' if self.held_all else ''}{_PROVEN}"

    def attempt(
        self, program: Program, request: Request, origin: Sequence[int] | None = None,
        finish: Callable[[PlanData], None] = lambda _: None, holds: float = math.inf,
    ) -> PlanData | None:  # fmt: skip
        """A plan of one mix, with what ``finish`` adds; None where none fits, or none is cheaper than what is known."""
        self.held_all |= origin is None
        try:
            plan = make_plan(program, replace(request, limit_is_firm=True), self.name)
        except NoneCheaper:
            return None
        except TooSmall as error:
            self.refusals.append(_Refused(error, holds, program, request, origin, finish))
            return None
        finish(plan)
        self.tried.append(plan)
        self.programs.append((program, request, range(len(program.nodes)) if origin is None else origin))
        return plan
