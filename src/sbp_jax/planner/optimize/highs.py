"""HiGHS, with one thread, a fixed seed, and limits by work: the same run on every machine.

Huangfu and Hall, "Parallelizing the dual revised simplex method", Math. Prog. Comp. 10 (2018).
"""

import functools
import math
from types import ModuleType
from typing import Any

from ...errors import SbpError
from ..budget import WORK_A_SECOND, Budget

# Work: of a simplex iteration for each row; of the search with binaries for each column, each time that HiGHS asks
# whether to go on (it tells nothing finer; measured: 8 to 12 microseconds a column). What a run takes at least.
_ROW_WORK = 1.5
_COLUMN_WORK = 1_600.0
_RUN_WORK = 200_000.0
_MOST_ITERATIONS = 2**31 - 1
# Branching goes on so long for the gap that it began with: most often that is soon closed.
_LONG = WORK_A_SECOND


def highspy() -> ModuleType:
    """HiGHS, imported when a program is solved: what plans for one device, or reads plans, needs none."""
    try:
        import highspy as found
    except ImportError as error:
        raise SbpError("planning for several devices needs HiGHS: install highspy") from error
    return found


@functools.cache
def _silent() -> type:
    """The solver's class, silent from the first call: HiGHS 1.16 prints its version at any call made before it is told
    to be silent, and its constructor makes one."""

    class Silent(highspy().Highs):
        def enableCallbacks(self) -> None:
            self.silent()
            super().enableCallbacks()

    return Silent


def new() -> Any:
    """A silent solver."""
    solver = _silent()()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 0)
    return solver


def run(solver: Any, budget: Budget, branching: bool, reserve_seconds: float = 0.0) -> bool:
    """Go on until the program is solved, its gap is small enough for the work that it took, or the budget is over.

    False where nothing is left, and nothing was run.

    ``branching``: whether it has binaries. ``reserve_seconds`` of the clock, if there is a limit, are left.
    """
    left = budget.seconds_left - reserve_seconds
    if left <= 0 or budget.work_left <= 0:
        return False
    n_rows, n_columns = solver.getNumRow(), solver.getNumCol()
    # It counts the seconds of all its runs.
    solver.setOptionValue("time_limit", solver.getRunTime() + left if left < math.inf else math.inf)
    asked = [0]
    if branching:
        solver.setOptionValue("simplex_iteration_limit", _MOST_ITERATIONS)
        each = _COLUMN_WORK * max(n_columns, 1)
        most = budget.work_left / each

        def ask(kind: Any, words: str, out: Any, answer: Any, data: Any) -> None:
            asked[0] += 1
            work = asked[0] * each
            if asked[0] > most or (work > _LONG and out.mip_gap <= budget.gap_after(work)):
                answer.user_interrupt = True

        kind = highspy().cb.HighsCallbackType.kCallbackMipInterrupt
        solver.setCallback(ask, None)
        solver.startCallback(kind)
        try:
            solver.run()
        finally:
            solver.stopCallback(kind)
    else:
        most = budget.work_left / (_ROW_WORK * max(n_rows, 1))
        solver.setOptionValue("simplex_iteration_limit", int(min(most + 1, _MOST_ITERATIONS)))
        solver.run()
    iterations = max(solver.getInfo().simplex_iteration_count, 0)
    budget.spend(_RUN_WORK + max(iterations * n_rows * _ROW_WORK, asked[0] * n_columns * _COLUMN_WORK))
    return True
