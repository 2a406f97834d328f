"""What a search may spend: work, which is the same on every machine, and seconds only where the user gives a limit.

Work counts what is looked at: an entry of a matrix is 1. What a search finds so hangs on the problem alone, not on what
else a machine does. The clock is read where the user set a limit for it, and nowhere else.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

# ``(work, gap)``: from so much work on a gap of so much is small enough.
Stops = tuple[tuple[float, float], ...]
# About what one core does in a second. Limits are written as seconds of work: what they take on a clock differs.
WORK_A_SECOND = 1.5e8
# Below this part of its cost a plan is as good as the best one.
EQUAL = 1e-9


@dataclass(slots=True)
class Budget:
    """``work`` as counted by ``spend``; ``seconds`` of ``clock``, infinite unless the user sets a limit.

    Attributes:
        stops: ``(work, gap)``: from so much work on a proven gap of so much is small enough. In the order of work.
        parent: of a part of a budget: what is spent is spent there, too.
    """

    work: float = math.inf
    seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic
    spent: float = 0.0
    began: float = field(default=0.0)
    stops: Stops = ()
    parent: "Budget | None" = None

    def __post_init__(self) -> None:
        if self.seconds < math.inf:
            self.began = self.clock()

    def spend(self, work: float) -> None:
        """Count some work."""
        self.spent += work
        if self.parent is not None:
            self.parent.spend(work)

    def some(self, seconds: float = math.inf, part: float = 1.0) -> "Budget":
        """For a step of a search: at most work worth so many seconds, at most ``part`` of the work and clock left."""
        work = min(seconds * WORK_A_SECOND, part * self.work_left)
        return Budget(work, part * self.seconds_left, self.clock, parent=self)

    def share(self, part: float) -> "Budget":
        """For a search of its own, which stops as this one does: ``part`` of the work and clock left."""
        return Budget(part * self.work_left, part * self.seconds_left, self.clock, stops=self.stops, parent=self)

    def stopping(self, stops: Stops) -> "Budget":
        """For what is left of a search: this budget, what is spent of it included, with these stops too."""
        return replace(self, seconds=self.seconds_left, stops=(*self.stops, *stops), parent=self)

    def at_least(self, part: float, of_left: float = 1.0) -> "Budget":
        """For a search of its own: ``of_left`` of what is left, or ``part`` of all the work there was if that is more;
        the clock goes on."""
        work = max(of_left * self.work_left, part * self.work)
        return Budget(work, self.seconds_left, self.clock, stops=self.stops, parent=self)

    def again(self, stops: Stops = ()) -> "Budget":
        """For another search: as much work as there was at first, with these stops too; the clock goes on."""
        return Budget(self.work, self.seconds_left, self.clock, stops=(*self.stops, *stops), parent=self)

    def unbounded(self) -> "Budget":
        """For a search that stops as this one does, but takes the work that it takes. Nothing of that counts here: what
        comes after it has as much as without it. The clock goes on."""
        return Budget(math.inf, self.seconds_left, self.clock, stops=self.stops)

    @property
    def work_left(self) -> float:
        """By work alone."""
        return max(0.0, self.work - self.spent)

    @property
    def seconds_left(self) -> float:
        """By the clock; infinite without a limit, and the clock is not read then."""
        return math.inf if self.seconds == math.inf else self.seconds - (self.clock() - self.began)

    @property
    def part(self) -> float:
        """Which part of the budget is spent: 1 or more when it is over."""
        part = self.spent / self.work if self.work > 0 else 1.0
        if self.seconds < math.inf:
            part = max(part, 1.0 - self.seconds_left / self.seconds) if self.seconds > 0 else 1.0
        return part

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.spent >= self.work or self.seconds_left <= 0

    @property
    def small_gap(self) -> float:
        """The proven relative gap for which more work is not worth while, as of now."""
        return self.gap_after(0.0)

    def gap_after(self, work: float) -> float:
        """The same, once so much more is spent."""
        return max((gap for at, gap in self.stops if self.spent + work >= at), default=0.0)

    def closes(self, cost: float, bound: float, gap: float) -> bool:
        """Whether a plan of this cost is good enough: by ``gap``, or by what more work is worth."""
        return cost - bound <= max(gap, self.small_gap, EQUAL) * abs(cost)
