"""Every strategy of every rule, piece by piece, against the whole."""

import numpy as np
import pytest

from rule_cases import CASES, NEWER, is_key, whole_values
from sbp_jax.rules.check import check


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", CASES | NEWER)
def test_every_strategy_is_sound(name: str, mesh: tuple[int, ...]) -> None:
    function, args = (CASES | NEWER)[name]
    tried = 0
    for op, operands in whole_values(function, args):
        if any(map(is_key, (*operands, *op.outs))) or op.primitive is None:
            continue
        count, wrong = check(op, [np.asarray(x) for x in operands], mesh)
        tried += count
        assert wrong == []
    assert tried > 1
