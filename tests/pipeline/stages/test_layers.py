"""Layers against every way to cut, and what is said where they cannot be as even as asked."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from sbp_jax.errors import PlanError
from sbp_jax.pipeline.stages import Layers, cluster_layers, layers, squares


def by_trying_all(flops: np.ndarray, cost: np.ndarray, most: int, bound: float) -> tuple[float, float] | None:
    """The least (largest bytes, sum of squares) of at most so many layers within the bound; None without any."""
    found = []
    for count in range(most):
        for cuts in itertools.combinations(range(1, len(flops)), count):
            sums = np.add.reduceat(flops, [0, *cuts])
            if sums.max() <= bound * (1 + 1e-9):
                found.append((max((cost[c - 1] for c in cuts), default=0.0), float((sums**2).sum())))
    return min(found, default=None)


def random_ops(seed: int) -> tuple[np.ndarray, np.ndarray, int, float]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 10))
    flops = rng.integers(0, 6, count).astype(float) if seed % 2 else rng.uniform(0, 5, count)
    cost = rng.integers(0, 4, count - 1).astype(float)
    return flops, cost, int(rng.integers(1, 6)), float(rng.choice([0.0, 0.2, 0.5, 1.0]))


def objective(found: Layers) -> tuple[float, float]:
    return found.largest_crossing_bytes, float(np.square(found.flops).sum())


def check_consistent(found: Layers, flops: np.ndarray, cost: np.ndarray, most: int) -> None:
    assert found.bounds[0] == 0 and found.bounds[-1] == len(flops) and list(found.bounds) == sorted(set(found.bounds))
    assert 1 <= found.count <= most
    assert found.flops == pytest.approx([flops[a:b].sum() for a, b in itertools.pairwise(found.bounds)])
    assert found.crossing_bytes == tuple(cost[c - 1] for c in found.bounds[1:-1])
    assert max(found.flops) <= (1 + found.delta) * flops.sum() / most * (1 + 1e-8) or not flops.any()


@pytest.mark.parametrize("seed", range(150))
def test_no_way_to_cut_is_better(seed: int) -> None:
    flops, cost, most, delta = random_ops(seed)
    found = cluster_layers(flops, cost, most, delta=delta)
    check_consistent(found, flops, cost, most)
    if not flops.any():
        assert found.count == 1
        return
    mean = flops.sum() / most
    best = by_trying_all(flops, cost, most, (1 + delta) * mean)
    if best is None:
        assert found.delta > delta and "relaxed" in found.note
        best = by_trying_all(flops, cost, most, (1 + found.delta) * mean)
        assert by_trying_all(flops, cost, most, (1 + found.delta) * mean * (1 - 1e-6)) is None
    else:
        assert found.delta == delta and found.note == ""
    assert objective(found) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(40))
def test_thinned_candidates_keep_the_bytes_and_come_near(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    flops, cost = rng.lognormal(0, 1, 400), rng.integers(1, 5, 399) * float(seed % 2) + 1.0
    exact = cluster_layers(flops, cost, 8)
    monkeypatch.setattr(layers, "_EXACT", 8 * 20)
    thinned = cluster_layers(flops, cost, 8)
    check_consistent(thinned, flops, cost, 8)
    assert thinned.largest_crossing_bytes == exact.largest_crossing_bytes
    # Without moving the cuts afterwards it is up to 2.7 % where all cuts are equal.
    assert objective(exact)[1] <= objective(thinned)[1] * (1 + 1e-12)
    assert objective(thinned)[1] <= objective(exact)[1] * (1.02 if seed % 2 else 1.01)


def test_thinned_candidates_have_the_only_cuts_that_are_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    # Exactly fifty ops a layer, and cheaper cuts beside each of the seven.
    cost = np.where(np.arange(1, 400) % 50 == 0, 2.0, 1.0)
    monkeypatch.setattr(layers, "_EXACT", 8 * 20)
    assert cluster_layers(np.ones(400), cost, 8, delta=0.0).bounds == tuple(range(0, 401, 50))


@pytest.mark.parametrize("seed", range(40))
def test_squares_of_a_long_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = np.concatenate(([0.0], np.cumsum(rng.uniform(0.01, 1, 60))))
    parts = int(rng.integers(1, 12))
    bound = points[-1] / parts * 1.3 + 1.0
    # Row by row without divide and conquer.
    lengths = points[None, :] - points[:, None]
    step = np.where((lengths > 0) & (lengths <= bound), lengths**2, np.inf)
    least = np.where(np.arange(61) == 0, 0.0, np.inf)
    for _ in range(parts):
        least = np.minimum(least, (least[:, None] + step).min(axis=0))
    cuts = squares.least_squares(points, parts, bound)
    at = np.concatenate(([0.0], points[cuts + 1], points[-1:]))
    assert len(cuts) < parts and np.diff(at).max() <= bound
    assert np.square(np.diff(at)).sum() == pytest.approx(least[-1])


def test_uniform_ops_give_equal_layers() -> None:
    found = cluster_layers(np.ones(24), np.ones(23), 6)
    assert found.bounds == (0, 4, 8, 12, 16, 20, 24)
    assert (found.delta, found.note) == (0.5, "")


def test_cuts_go_where_few_bytes_cross() -> None:
    # Blocks of four ops: between blocks 1 byte, within them 5.
    cost = np.array([1.0 if k % 4 == 3 else 5.0 for k in range(23)])
    assert cluster_layers(np.ones(24), cost, 3, delta=0.2).bounds == (0, 8, 16, 24)
    # Four layers of 6 blocks: two of two blocks, so that no cut is within one.
    assert sorted(cluster_layers(np.ones(24), cost, 4, delta=0.4).flops) == [4, 4, 8, 8]
    assert cluster_layers(np.ones(24), cost, 4, delta=0.2).bounds == (0, 6, 12, 18, 24)


def test_ops_without_flops_do_not_matter_but_their_cuts_do() -> None:
    found = cluster_layers([0, 4, 0, 0, 4, 0], [0, 9, 2, 7, 0], 2)
    assert (found.bounds, found.crossing_bytes) == ((0, 3, 6), (2.0,))


def test_one_heavy_op_relaxes_delta_and_is_named() -> None:
    found = cluster_layers([1, 1, 10, 1, 1], np.ones(4), 3, delta=0.5)
    assert found.note == (
        "delta=0.5 is not possible: op 2 alone has 2.14 times the mean flops of 3 layers; relaxed to 1.14, the "
        "smallest that is"
    )
    assert found.bounds == (0, 2, 3, 5)
    assert found.delta == pytest.approx(30 / 14 - 1)


def test_uneven_ops_relax_delta() -> None:
    assert cluster_layers([2, 2, 2], [1, 1], 2, delta=0.1).note == (
        "delta=0.1 is not possible: no 2 layers are that even; relaxed to 0.333, the smallest that is"
    )


def test_no_flops_at_all_are_one_layer() -> None:
    assert cluster_layers([0, 0], [1], 2) == Layers((0, 2), (0.0,), (), 0.5, "all 2 ops have 0 flops: one layer")


def test_the_same_ops_give_the_same_layers() -> None:
    flops, cost = np.ones(100), np.ones(99)
    assert cluster_layers(flops, cost, 7) == cluster_layers(list(flops), list(cost), 7)


@pytest.mark.parametrize(
    ("flops", "cost", "most", "delta", "message"),
    [
        ([], [], 1, 0.5, r"flops has shape \(0,\): give one number for each op, of at least one op"),
        ([1, 2], [1, 2], 1, 0.5, r"crossing_bytes has shape \(2,\), flops has 2 ops: give 1 numbers, one for each cut"),
        ([1, -2], [1], 1, 0.5, r"flops\[1\] is -2: give finite numbers of at least 0"),
        ([1, 2], [np.nan], 1, 0.5, r"crossing_bytes\[0\] is nan: give finite numbers of at least 0"),
        ([1, 2], [1], 0, 0.5, r"layers=0: give at least 1"),
        ([1, 2], [1], 1, -1.0, r"delta=-1.0: give a finite number of at least 0; 0.5 lets a layer be half above"),
    ],
)
def test_what_cannot_be(flops: Sequence[float], cost: Sequence[float], most: int, delta: float, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        cluster_layers(flops, cost, most, delta=delta)
