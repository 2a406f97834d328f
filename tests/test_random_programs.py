"""Whole random programs: planned, lowered, run, verified, equal to one device. SBP_PROGRAMS=5000 runs that many."""

import os

import jax
import pytest

from random_programs import Invalid, check, check_again, generate

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


def test_made_again_anywhere_it_is_the_same() -> None:
    more = [check_again(seed) for seed in range(0, 36, 3)]
    assert sum(n > 0 for n in more) > 8


def test_a_seed_is_one_program() -> None:
    assert str(generate(7)) == str(generate(7)) != str(generate(8))
