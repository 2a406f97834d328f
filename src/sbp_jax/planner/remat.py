"""When memory is short: what not to hold from the forward part of a step to the backward one.

Arguments need not be held in the signature that a layer reads them in (parameters are gathered twice, as ZeRO's third
stage does); that is tried where nothing fits otherwise. With ``remat="auto"`` what was computed need not be held either.

The cheapest plan of all says what each value weighs and each op costs; ``cut.py`` turns that into mixes of holding and
making again. The mixes that may fit are planned under the limit like any program, and the cheapest plan wins, be it
one that recomputes nothing and splits more. Between two mixes, one of which does not fit, the dearer one is used for
as many of the first layers as it takes.
"""

from collections.abc import Collection
from dataclasses import replace

from ..errors import PlanError
from ..plan import PlanData, Recomputed
from ..trace import Program, recompute
from .cost import CostModel
from .cut import Ladder, Rung, Sizes, Turn, find_turn
from .make import make_plan
from .request import Request
from .spell import fingerprint

_PARTS = 12


def plan_to_fit(program: Program, request: Request, name: str = "function") -> PlanData:
    """The cheapest plan found within the memory limit; its gap is that of its own mix of holding and making again.

    Raises ``PlanError`` where no mix fits into a firm limit.
    """
    limit = request.memory_limit_bytes
    if limit is None:
        return make_plan(program, request, name)
    refusal = None
    if not request.remat:
        try:
            return make_plan(program, replace(request, limit_is_firm=True), name)
        except PlanError as error:
            refusal = error
    free = make_plan(program, replace(request, memory_limit_bytes=None), name)
    if free.memory_per_device <= limit:
        return free
    return _Choice(program, request, name, free, limit, refusal).best()


class _Choice:
    """Plans of one program with different mixes of holding and making again."""

    def __init__(
        self, program: Program, request: Request, name: str, free: PlanData, limit: float, refusal: PlanError | None
    ) -> None:
        self.program, self.request, self.name, self.free, self.limit = program, request, name, free, limit
        self.sizes = Sizes(program, free, CostModel(request.cluster, request.placement.shape))
        self.tried: list[PlanData] = []
        self.refusals = [refusal] if refusal is not None else []

    def best(self) -> PlanData:
        if not self.refusals:
            self.attempt(self.program, self.request)
        turn = find_turn(self.program, self.sizes)
        if turn is not None:
            if not self.tried:
                self.mix(turn, (), 0.0)
            if self.request.remat:
                ladder = Ladder(self.program, self.free, turn, self.sizes)
                self.climb(turn, ladder, ladder.rungs())
        if self.tried:
            return min(self.tried, key=lambda p: p.objective)
        if self.request.limit_is_firm:
            raise self.refusals[-1]
        self.free.notes.append(f"does not fit by the memory model: {self.refusals[-1]}")
        return self.free

    def climb(self, turn: Turn, ladder: Ladder, rungs: list[Rung]) -> None:
        """Plan the first mix that should fit, the one before it, which fits if it is split more, and one in between."""
        enough = next((k for k, r in enumerate(rungs) if self.fits(r.saved_bytes)), len(rungs) - 1)
        for k in (enough, enough - 1, enough + 1):
            if 0 <= k < len(rungs):
                self.mix(turn, rungs[k].nodes, rungs[k].seconds)
        if enough > 0 and self.fits(rungs[enough].saved_bytes):
            less, more = rungs[enough - 1].nodes, rungs[enough].nodes
            parts = sorted(more - less)
            for part in range(1, _PARTS):  # the dearer mix for a growing number of the first nodes
                first = parts[len(parts) * part // _PARTS :][:1]
                nodes = less | {n for n in more if not first or n < first[0]}
                if self.fits(ladder.saved(nodes)):
                    self.mix(turn, nodes, ladder.seconds_of(nodes))
                    break

    def fits(self, saved_bytes: float) -> bool:
        return self.free.memory_per_device - saved_bytes <= self.limit

    def mix(self, turn: Turn, nodes: Collection[int], seconds: float) -> None:
        """Plan the program with these nodes made again, unless what that costs already loses."""
        if self.tried and self.free.objective + seconds >= min(p.objective for p in self.tried):
            return
        program, origin = recompute(self.program, turn.node, nodes)
        pins = {k: self.request.pins[o] for k, o in enumerate(origin) if o in self.request.pins}
        plan = self.attempt(program, replace(self.request, pins=pins))
        if plan is not None:
            plan.fingerprint = fingerprint(self.program)
            plan.recomputed = Recomputed(turn.node, tuple(sorted(nodes)))
            again = f"{len(nodes)} nodes are run again in the backward part" if nodes else "nothing is computed again"
            plan.notes.append(
                f"to fit, arguments are read anew in the backward part, {again}; the gap is proven for this choice"
            )

    def attempt(self, program: Program, request: Request) -> PlanData | None:
        try:
            plan = make_plan(program, replace(request, limit_is_firm=True), self.name)
        except PlanError as error:
            self.refusals.append(error)
            return None
        self.tried.append(plan)
        return plan
