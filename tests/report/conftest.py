"""The plan that most tests of reports look at."""

import pytest

import sbp_jax as sbp
from report_case import make


@pytest.fixture(scope="session")
def plan() -> sbp.Plan:
    """The best plan, made here."""
    return make()


@pytest.fixture(scope="session")
def loaded(plan: sbp.Plan, tmp_path_factory: pytest.TempPathFactory) -> sbp.Plan:
    """The same plan, read from a file."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan.save(path)
    return sbp.Plan.load(path)
