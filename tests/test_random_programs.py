"""Whole random programs: planned, lowered, run, verified, equal to one device. SBP_PROGRAMS=5000 runs that many."""

import os

import jax
import pytest

from random_programs import Invalid, check, generate

COUNT = int(os.environ.get("SBP_PROGRAMS", "30"))
FIRST = int(os.environ.get("SBP_FIRST_PROGRAM", "0"))
_CLEAR_EVERY = 50


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_equal_to_plain_jax(seed: int) -> None:
    try:
        check(seed)
    except Invalid as error:
        pytest.skip(f"not a program: {error}")
    if seed % _CLEAR_EVERY == 0:
        jax.clear_caches()  # thousands of compiled programs would fill the memory


def test_a_seed_is_one_program() -> None:
    assert str(generate(7)) == str(generate(7)) != str(generate(8))
