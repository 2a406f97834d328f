"""How much a search may do: ``AutoParallelConfig(effort=...)`` and ``time_limit``, as a budget."""

import math
from dataclasses import dataclass

from .budget import WORK_A_SECOND, Budget


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds of work for one search, and the gaps that are small enough after so many: ``(seconds, gap)``."""

    seconds: float = math.inf
    stops: tuple[tuple[float, float], ...] = ()


# Small problems are solved to the end in the first part of a second: it costs little, and ties come out the same.
EFFORTS = {
    "quick": Effort(5.0, ((0.0, 1e-2),)),
    "default": Effort(30.0, ((0.2, 1e-2), (8.0, 2e-2))),
    "thorough": Effort(),
}


def budget_for(effort: str, time_limit: float | None) -> Budget:
    """The budget of one plan. A time limit is by the clock, and used up where that proves more, unless the effort is
    "quick".
    """
    asked = EFFORTS[effort if time_limit is None or effort == "quick" else "thorough"]
    return Budget(
        asked.seconds * WORK_A_SECOND, math.inf if time_limit is None else time_limit,
        stops=tuple((seconds * WORK_A_SECOND, gap) for seconds, gap in asked.stops),
    )  # fmt: skip


def usual(budget: Budget, part: float = 1.0) -> Budget:
    """Of what a thorough search may spend, a part of the work by default; the clock goes on."""
    by_default = budget_for("default", None)
    return Budget(part * by_default.work, budget.seconds_left, budget.clock, stops=by_default.stops, parent=budget)


def is_thorough(effort: str, time_limit: float | None) -> bool:
    """Whether all of the budget is to be spent where that proves more."""
    return effort == "thorough" or (time_limit is not None and effort != "quick")
