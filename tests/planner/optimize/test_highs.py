"""The solver that others share: silent, whatever its version."""

import pytest

from sbp_jax.planner.optimize import highs


def test_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    # HiGHS 1.16 printed its version from its constructor, before anyone could tell it to be silent.
    solver = highs.new()
    x, y = solver.addBinary(), solver.addBinary()
    solver.addConstr(x + y <= 1)
    solver.maximize(x + 2 * y)
    assert solver.getInfo().objective_function_value == 2
    assert capfd.readouterr() == ("", "")
