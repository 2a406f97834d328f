"""The buffers of results that other values are held in: which is taken, and when it is free."""

import itertools
import random

import numpy as np

from sbp_jax.planner.memory.places import Place, largest_free, smallest_free
from sbp_jax.trace import Value


def _place(size: int) -> Place:
    return Place(Value(0, (size,), np.dtype("int8"), 1.0), [], [])


def test_a_place_is_taken_where_nothing_is_at_the_same_time():
    draw = random.Random(0)
    for _ in range(50):
        place, taken = _place(1), []
        for _ in range(40):
            start = draw.randrange(60)
            end = start + draw.randrange(8)
            free = all(end < a or start > b for a, b in taken)
            assert place.take(start, end) == free
            if free:
                taken.append((start, end))
        assert list(zip(place.starts, place.ends, strict=True)) == sorted(taken)
        assert all(b < c for (_, b), (c, _) in itertools.pairwise(sorted(taken)))


def test_the_smallest_place_that_is_large_enough_is_taken_first():
    places = [_place(n) for n in (1, 4, 4, 16)]
    sizes = [1, 4, 4, 16]
    assert [smallest_free(places, sizes, 3, 5, 9) for _ in range(4)] == [1, 2, 3, None]
    assert smallest_free(places, sizes, 17, 0, 1) is None
    assert [largest_free(places, 9, 12) for _ in range(2)] == [0, None]  # the others are taken until 9


def test_few_places_are_tried_for_one_value():
    """A step that returns a thousand gradients was quadratic: 378 s for GPT-3's."""
    places = [_place(8) for _ in range(1000)]
    for place in places[:999]:
        assert place.take(0, 10)
    assert smallest_free(places, [8] * 1000, 8, 3, 4) is None
    assert largest_free(places, 3, 4) == 999
