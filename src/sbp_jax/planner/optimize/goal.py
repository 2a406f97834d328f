"""What a search is asked for."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..budget import Budget, Stops
from ..costs.cost_graph import CostGraph
from ..memory.protocol import FootprintLike

# With more clusters a class than this layers are planned as one: they change all at once.
_SHARED = 2.0


@dataclass(frozen=True, slots=True)
class Start:
    """What is known of a problem from searches of parts of it: plans, cheapest first if they fit, and prices for bytes.

    ``prices``: seconds a byte by point, which proved the best bound there. ``known_seconds``: of a plan of the same
    step in another form; only cheaper ones are asked for.
    """

    plans: Sequence[Sequence[int]]
    prices: Mapping[int, float] = field(default_factory=dict)
    known_seconds: float = math.inf


# What to begin with; None: nothing is known.
FindStart = Callable[[], Start | None]


@dataclass(frozen=True, slots=True)
class Goal:
    """A planning problem: choose one strategy for each node, at the least seconds a step.

    Attributes:
        problem: seconds by choice, and by pair of choices.
        footprint: the bytes over the step of any choice.
        limit_bytes: what a device may hold; None: anything.
        gap: stop when the proven relative gap is at most this.
        budget: what the search may spend.
        progress: told what is being done.
        thorough: whether to spend all of it where that proves more.
        below: plans of so many seconds or more are of no interest.
        patience: multiplies the work that a search takes to fit into memory, where it is not thorough.
        tell_smallest: whether to look for the smallest limit that a plan fits into, where none was found that does.
        names_limit: whether the user named the limit: the smallest one is then looked for as long as it takes.
        guesses: plans that may be good, whether they fit or not.
        find_start: gives plans and prices to begin with, or None; asked where the cheapest plan does not fit.
        clusters_per_class: how many clusters of ops share one decision, on average.
        start_gap: no prices are searched for where a plan to begin with leaves a gap of no more than this.
        start_stops: stops of the search for a plan that fits, where its plan is only what others start from.
        whole_bytes: of all values together, uncut: within such a limit no plan can hold too much.
    """

    problem: CostGraph
    footprint: FootprintLike
    limit_bytes: float | None = None
    gap: float = 0.0
    budget: Budget = field(default_factory=Budget)
    progress: Callable[[str], None] = lambda _: None
    thorough: bool = False
    below: float = math.inf
    patience: float = 1.0
    tell_smallest: bool = True
    names_limit: bool = True
    guesses: Sequence[Sequence[int]] = ()
    find_start: FindStart | None = None
    clusters_per_class: float = 1.0
    start_gap: float = 0.0
    start_stops: Stops = ()
    whole_bytes: float = math.inf

    @property
    def shares_layers(self) -> bool:
        """Whether most decisions are of many layers at once. A plan between two is then none of them, whatever is
        tried: gaps under a memory limit stay open."""
        return self.clusters_per_class > _SHARED

    @property
    def holds_too_much(self) -> bool:
        """Whether every plan does: by each node's and edge's least, at the point where the cheapest nodes peak."""
        if self.limit_bytes is None or self.whole_bytes <= self.limit_bytes:
            return False
        point = int(self.footprint.over_time([int(c.argmin()) for c in self.problem.nodes]).argmax())
        held = self.footprint.at(point)
        least = sum(float(c.min()) for c in held.nodes) + sum(float(m.min()) for m in held.edges.values())
        return least > self.limit_bytes
