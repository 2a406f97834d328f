"""Stages against every plan, on what is known by hand, and what they promise."""

import itertools

import numpy as np
import pytest

from pipeline.stages.stage_cases import all_plans, fits, linear, options, random_costs, total_of
from sbp_jax.errors import PlanError
from sbp_jax.pipeline.stages import StageCosts, Stages, in_flight_of, plan_stages, submesh_options
from sbp_jax.schedules import StageSeconds, by_name, simulate

SIZES = (1, 2, 4)


def plan_of(found: Stages) -> list[tuple[int, int, int]]:
    return [(i, j, o) for (i, j), o in zip(found.ranges, found.options, strict=True)]


@pytest.mark.parametrize("seed", range(120))
def test_no_plan_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, devices = int(rng.integers(1, 6)), int(rng.integers(1, 8))
    microbatches, overlaps, use_all = int(rng.integers(1, 7)), bool(rng.random() < 0.5), bool(rng.random() < 0.7)
    costs = random_costs(rng, layers, SIZES, is_rich=seed % 4 > 0)
    window = in_flight_of(("1f1b", "gpipe", "eager_1f1b")[seed % 3]) if seed % 7 % 2 else None
    limit = float(rng.uniform(3, 9)) if seed % 4 > 1 else None
    schedule = ("1f1b", "gpipe", "eager_1f1b")[seed % 3]
    least = int(rng.integers(1, layers + 1)) if seed % 5 == 0 else 1
    most = int(rng.integers(least, layers + 1)) if seed % 5 < 2 else None
    held = [
        min({"1f1b": a + 1, "gpipe": microbatches, "eager_1f1b": 2 * a + 1}[schedule], microbatches) for a in range(5)
    ]
    totals = [
        total_of(p, costs, microbatches, overlaps, window)
        for p in all_plans(layers, SIZES, devices, use_all)
        if fits(p, costs, held, limit) and least <= len(p) <= (most or layers)
    ]
    best = min(totals, default=np.inf)

    def found(epsilon: float) -> Stages:
        return plan_stages(
            costs, options(*SIZES), devices, microbatches, limit_bytes=limit, in_flight=in_flight_of(schedule),
            overlaps=overlaps, window=window, least_stages=least, most_stages=most, use_all=use_all, epsilon=epsilon,
        )  # fmt: skip

    if not np.isfinite(best):
        with pytest.raises(PlanError):
            found(0.0)
        return
    exact = found(0.0)
    plan = plan_of(exact)
    assert exact.total_seconds == pytest.approx(best)
    assert exact.bound_seconds == pytest.approx(best) and exact.note == "exact"
    assert exact.total_seconds == pytest.approx(total_of(plan, costs, microbatches, overlaps, window))
    assert (
        fits(plan, costs, held, limit)
        and sum(exact.devices) <= devices
        and (not use_all or sum(exact.devices) == devices)
    )
    assert least <= len(plan) <= (most or layers)
    assert limit is None or max(exact.memory_bytes) <= limit
    near = found(0.2)
    assert best <= near.total_seconds * (1 + 1e-9) and near.total_seconds * (1 - 0.2) <= best * (1 + 1e-9)
    assert near.bound_seconds <= best * (1 + 1e-9) and near.gap <= 0.2 + 1e-9
    assert near.tables <= exact.tables


@pytest.mark.parametrize("seed", range(150))
def test_no_plan_is_better_where_most_is_done_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, devices, microbatches = int(rng.integers(2, 6)), int(rng.integers(2, 7)), 1 + seed % 3
    shape = (layers, layers + 1, len(SIZES))
    costs = StageCosts(rng.uniform(0, 1, shape), None, rng.uniform(0, 4, shape))
    plans = all_plans(layers, SIZES, devices, use_all=False)
    best = min(total_of(p, costs, microbatches, False) for p in plans)
    for epsilon in (0.0, 0.1, 0.3, 0.6):
        found = plan_stages(costs, options(*SIZES), devices, microbatches, use_all=False, epsilon=epsilon)
        assert found.bound_seconds <= best * (1 + 1e-9) and best <= found.total_seconds * (1 + 1e-9)
        assert found.gap <= epsilon + 1e-9


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("seed", range(4))
def test_more_layers_and_devices_than_can_all_be_tried(seed: int, epsilon: float) -> None:
    # Alpa's own loop: all limits of the slowest, in order, each with a table of plain loops.
    rng = np.random.default_rng(seed)
    layers, devices, sizes, microbatches = 8, 16, (1, 2, 4, 8, 16), 6
    costs = random_costs(rng, layers, sizes, is_rich=False)
    seconds, best = costs.seconds, np.inf
    for slowest in np.unique(seconds[np.isfinite(seconds)]):
        least = np.full((layers + 1, devices + 1), np.inf)
        least[layers, 0] = 0.0
        for k, j, o in itertools.product(range(layers - 1, -1, -1), range(1, layers + 1), range(len(sizes))):
            if j > k and seconds[k, j, o] <= slowest:
                size = sizes[o]
                least[k, size:] = np.minimum(least[k, size:], least[j, : devices + 1 - size] + seconds[k, j, o])
        best = min(best, least[0, devices] + (microbatches - 1) * slowest)
    found = plan_stages(costs, options(*sizes), devices, microbatches, epsilon=epsilon)
    assert best <= found.total_seconds * (1 + 1e-9) and found.total_seconds * (1 - epsilon) <= best * (1 + 1e-9)
    assert found.bound_seconds <= best * (1 + 1e-9) and found.gap <= epsilon + 1e-9


def test_uniform_layers_give_equal_stages() -> None:
    # Eight layers on eight devices; two devices are not twice as fast as one, so that stages are as many as can be.
    costs = linear([1.0] * 8, (1, 2))
    slower = StageCosts(costs.seconds * np.array([1.0, 1.5]))
    assert plan_stages(slower, options(1, 2), 8, 64).ranges == tuple((k, k + 1) for k in range(8))
    four = plan_stages(slower, options(1, 2), 8, 64, stages=4)
    assert four.ranges == ((0, 2), (2, 4), (4, 6), (6, 8)) and four.devices == (2, 2, 2, 2)
    assert plan_stages(slower, options(1, 2), 4, 64).ranges == ((0, 2), (2, 4), (4, 6), (6, 8))


def test_a_heavy_last_layer_gets_a_stage_of_its_own() -> None:
    found = plan_stages(linear([1.0] * 6 + [6.0], (1,)), options(1), 2, 32)
    assert found.ranges == ((0, 6), (6, 7))
    more = plan_stages(linear([1.0] * 6 + [6.0], (1, 2)), options(1, 2), 4, 32, stages=3)
    assert more.ranges[-1] == (6, 7) and more.devices == (1, 1, 2)


def test_memory_makes_more_stages() -> None:
    # One stage on all four devices is as fast and without bubbles; its weights are held whole on each.
    costs = linear([1.0] * 4, (1, 2, 4))
    shape = costs.seconds.shape
    layers = np.maximum(np.arange(5)[None, :] - np.arange(4)[:, None], 0)[:, :, None]
    whole = StageCosts(costs.seconds, None, None, np.broadcast_to(layers * 10.0, shape))
    assert len(plan_stages(whole, options(1, 2, 4), 4, 8, limit_bytes=40).ranges) == 1
    assert plan_stages(whole, options(1, 2, 4), 4, 8, limit_bytes=39).ranges == ((0, 2), (2, 4))
    assert len(plan_stages(whole, options(1, 2, 4), 4, 8, limit_bytes=10).ranges) == 4


def test_memory_in_flight_makes_fewer_stages() -> None:
    # Devices of a stage share its activations; of p stages the first holds p micro-batches, 1F1B.
    costs = linear([1.0] * 4, (1, 2, 4), activations=12.0)
    slower = StageCosts(costs.seconds * np.array([1.0, 1.5, 2.2]), None, None, None, costs.activation_bytes)

    def count(limit: float, schedule: str = "1f1b") -> int:
        asked = in_flight_of(schedule)
        return len(plan_stages(slower, options(1, 2, 4), 4, 8, limit_bytes=limit, in_flight=asked).ranges)

    assert count(48) == 4 and count(47) < 4
    assert count(12) == 1
    # GPipe holds all eight, whatever the stages.
    assert count(96, "gpipe") == 4
    with pytest.raises(PlanError):
        count(95, "gpipe")


def test_transfers_move_the_cut_to_the_thin_place() -> None:
    work = [1.0] * 6
    assert plan_stages(linear(work, (1,)), options(1), 2, 8).ranges == ((0, 3), (3, 6))
    thin = [0.0, 2.0, 2.0, 2.0, 0.1, 2.0]
    assert plan_stages(linear(work, (1,), transfer_seconds=thin), options(1), 2, 8).ranges == ((0, 4), (4, 6))
    # What overlaps, and is shorter than the compute, costs its latency only.
    found = plan_stages(linear(work, (1,), transfer_seconds=thin), options(1), 2, 8, overlaps=True)
    assert found.ranges == ((0, 3), (3, 6)) and found.transfer_seconds == (1.0, 1.0)
    assert found.total_seconds == pytest.approx(6 + 2 + 7 * 3)
    assert found.slowest_seconds == 3.0
    # But the way there and back holds up the next micro-batch, where no more are under way than there are stages.
    one = in_flight_of("1f1b")
    found = plan_stages(linear(work, (1,), transfer_seconds=thin), options(1), 2, 8, overlaps=True, window=one)
    assert found.ranges == ((0, 4), (4, 6)) and found.slowest_seconds == 4.0


def test_what_is_done_once_a_step_counts_once() -> None:
    once = np.zeros((2, 3, 1))
    once[0, 1], once[1, 2] = 5.0, 3.0
    found = plan_stages(linear([1.0, 1.0], (1,), once_seconds=once), options(1), 2, 4)
    assert found.once_seconds == (5.0, 3.0)
    assert found.total_seconds == pytest.approx(2 + 3 * 1 + 5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 3), (4, 2), (4, 8), (6, 9)])
def test_the_model_is_exact_for_equal_stages(schedule: str, stages: int, microbatches: int) -> None:
    found = plan_stages(linear([3.0] * stages, (1,)), options(1), stages, microbatches)
    timing = simulate(by_name(schedule, stages, microbatches), StageSeconds(1.0, 1.0, 1.0))
    assert found.total_seconds == pytest.approx(timing.makespan_seconds)


def test_the_model_and_unequal_stages() -> None:
    # Backward passes are twice the forward ones, so that the slowest stage is slowest in both.
    rng = np.random.default_rng(0)
    for _ in range(30):
        stages, microbatches = int(rng.integers(2, 6)), int(rng.integers(2, 12))
        work = rng.uniform(1, 3, stages)
        found = plan_stages(linear(work, (1,)), options(1), stages, microbatches)
        assert len(found.ranges) == stages
        each = [StageSeconds(w / 3, w / 3, w / 3) for w in work]
        gpipe = simulate(by_name("gpipe", stages, microbatches), each).makespan_seconds
        one_f_one_b = simulate(by_name("1f1b", stages, microbatches), each).makespan_seconds
        assert found.total_seconds == pytest.approx(gpipe)
        assert one_f_one_b <= gpipe * (1 + 1e-9)


def test_equal_plans_are_told_apart_by_stages_then_by_place() -> None:
    # One micro-batch, and devices that are of no use: all plans take as long.
    costs = linear([1.0] * 4, (1, 1))
    found = plan_stages(costs, options(1, 1), 3, 1, epsilon=0.0)
    assert found.ranges == ((0, 1), (1, 2), (2, 4)) and found.options == (0, 0, 0)
    assert len(plan_stages(costs, options(1, 1), 3, 1, use_all=False, epsilon=0.0).ranges) == 1


def test_the_same_costs_give_the_same_plan() -> None:
    costs = random_costs(np.random.default_rng(7), 10, (1, 2, 4, 8), is_rich=True)
    plans = [plan_stages(costs, options(1, 2, 4, 8), 16, 12, limit_bytes=12.0) for _ in range(2)]
    assert plans[0] == plans[1]


def test_a_large_cluster_needs_few_tables() -> None:
    sizes = [s.devices for s in submesh_options(16, 8)]
    costs = linear(np.random.default_rng(0).uniform(0.7, 1.3, 24), sizes)
    slower = StageCosts(costs.seconds * np.array(sizes) ** 0.2)
    found = plan_stages(slower, submesh_options(16, 8), 128, 64)
    assert found.gap <= 1e-3 and found.tables < 100
    assert sum(found.devices) == 128 and set(found.labels) <= set(map(str, submesh_options(16, 8)))
