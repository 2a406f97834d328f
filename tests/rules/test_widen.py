"""Strategies of a factor map by what divides its sizes: the same as by the sizes themselves."""

import itertools
import random

import pytest

from sbp_jax.rules import Factors, Linear
from sbp_jax.rules.widen import _strategies, strategies
from sbp_jax.signature import ReduceOp

SIZES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 18, 24, 30, 64, 96, 1000)
MESHES = ((8,), (2, 4), (4, 2), (3, 2), (2, 2, 2), (1, 8), (6,))


def factor_map(seed: int) -> Factors:
    """Up to four factors, dims of one or two of them, some blocked, one reduced."""
    pick = random.Random(seed)
    n = pick.randint(1, 4)
    sizes = tuple(pick.choice(SIZES) for _ in range(n))

    def dims(some: list[int]) -> tuple[tuple[int, ...], ...]:
        cut = pick.randint(0, len(some))
        return (tuple(some[:cut]), *((f,) for f in some[cut:])) if cut else tuple((f,) for f in some)

    kept = list(range(n - 1)) if n > 1 and pick.random() < 0.5 else list(range(n))
    reduced: tuple[tuple[int, ReduceOp], ...] = ((n - 1, "sum"),) if len(kept) < n else ()
    blocked = frozenset(f for f in kept if pick.random() < 0.2)
    linear = (Linear(frozenset({0})),) if pick.random() < 0.5 else ()
    return Factors((dims(list(range(n))), dims(kept)), (dims(kept),), sizes, blocked, reduced, linear)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_only_what_divides_the_sizes_matters(mesh: tuple[int, ...]) -> None:
    seen = 0
    for seed, useful in itertools.product(range(150), (True, False)):
        f = factor_map(seed)
        parts = f.ins, f.outs, f.sizes, f.blocked, f.reduced, f.linear, f.addends
        linear = (useful,) * len(f.linear)
        expected = _strategies.__wrapped__(parts, f.even, f.once, mesh, linear, False)
        assert strategies(f, mesh, linear) == expected
        seen += len(expected) > 1
    assert seen > 30


def test_a_shape_never_seen_is_known() -> None:
    """Eager ops: strategies are found once for all shapes that divide alike."""
    before = _strategies.cache_info().misses
    for n in (4099 * 8, 5003 * 8, 6007 * 8):
        strategies(Factors((((0,), (1,)),), (((0,), (1,)),), (n, 7 * n)), (8,), ())
    assert _strategies.cache_info().misses <= before + 1
