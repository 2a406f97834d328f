"""The solver that others share: silent, whatever its version."""

import numpy as np
import pytest

from sbp_jax.planner.budget import Budget
from sbp_jax.planner.optimize import highs


def test_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    # HiGHS 1.16 printed its version from its constructor, before anyone could tell it to be silent.
    solver = highs.new()
    x, y = solver.addBinary(), solver.addBinary()
    solver.addConstr(x + y <= 1)
    solver.maximize(x + 2 * y)
    assert solver.getInfo().objective_function_value == 2
    assert capfd.readouterr() == ("", "")


def test_branching_stops_where_more_work_is_not_worth_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap that was not small enough when it began is, after some work."""

    def spent(budget: Budget) -> tuple[float, float]:
        random = np.random.default_rng(0)
        solver, n = highs.new(), 60
        x = [solver.addBinary() for _ in range(n)]
        for _ in range(8):
            solver.addConstr(sum(int(a) * v for a, v in zip(random.integers(20, 100, n), x, strict=True)) <= 600)
        solver.setObjective(sum(-int(c) * v for c, v in zip(random.integers(20, 100, n), x, strict=True)))
        highs.run(solver, budget, branching=True)
        return budget.spent, solver.getInfo().mip_gap

    monkeypatch.setattr(highs, "_LONG", 0.0)
    work, gap = spent(Budget(work=2e7))
    stopped, wider = spent(Budget(work=2e7, stops=((1e6, 0.1),)))
    assert stopped < 0.5 * work
    assert gap <= wider <= 0.1
