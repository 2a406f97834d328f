"""Rules against the whole on random shapes, types and parameters; ``make soundness`` tries many more."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from random_cases import FAMILIES
from rule_cases import is_key, whole_values
from sbp_jax.rules.check import check

EXAMPLES = int(os.environ.get("SBP_SOUNDNESS_EXAMPLES", "5"))


@pytest.mark.parametrize("family", FAMILIES)
def test_random_ops_are_sound(family: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(case=FAMILIES[family], mesh=st.sampled_from([(2,), (4,), (2, 2)]), seed=st.integers(0, 99))
    def run(case, mesh, seed) -> None:
        function, args = case
        for op, operands in whole_values(function, tuple(args)):
            if op.primitive is not None and not any(map(is_key, (*operands, *op.outs))):
                assert check(op, [np.asarray(x) for x in operands], mesh, seed=seed, most=8)[1] == []

    run()
