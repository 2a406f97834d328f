"""Published searches for stages: none below the exact one, each by its paper's claim, all with the right numbers."""

import contextlib
from typing import Any

import numpy as np
import pytest

import sbp_jax as sbp
from pipeline.stages.stage_cases import all_plans, fits, linear, options, random_costs, total_of
from pipeline.steps import batch, check, mlp_state, mlp_step
from sbp_jax.pipeline.searches import search_stages
from sbp_jax.pipeline.stages import StageCosts, Stages, in_flight_of

NAMES = list(sbp.planner.solvers().of("stages"))
OTHERS = [n for n in NAMES if n != "alpa_inter"]
SIZES = (1, 2, 4)
FOUR = sbp.placement("cpu", ranks=[[0, 1], [2, 3]])


def found(
    name: str, costs: StageCosts, devices: int, microbatches: int, limit: float | None = None, **given: Any
) -> Stages:
    return search_stages(
        name, given, costs, options(*SIZES), devices, microbatches, limit_bytes=limit, in_flight=in_flight_of("1f1b"),
        overlaps=False,
    )  # fmt: skip


def slowest(stages: Stages, microbatches: int) -> float:
    """Seconds from one micro-batch to the next, with each stage's part of what it does once a step."""
    each = zip(stages.seconds, stages.transfer_seconds, stages.once_seconds, strict=True)
    return max(s + t + o / microbatches for s, t, o in each)


@pytest.mark.parametrize("seed", range(20))
def test_no_search_is_below_the_bound_and_each_covers_all_layers_and_devices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, devices, m = int(rng.integers(2, 12)), (4, 8)[seed % 2], int(rng.integers(1, 9))
    work = rng.uniform(0.2, 2.0, layers)
    once = np.zeros((layers, layers + 1, len(SIZES))) + rng.uniform(0, 1)
    costs = linear(work, SIZES, transfer_seconds=list(rng.uniform(0, 0.2, layers)), once_seconds=once)
    best = found("alpa_inter", costs, devices, m)
    assert best.gap <= 1e-9
    for name in OTHERS:
        stages = found(name, costs, devices, m)
        assert stages.total_seconds >= best.bound_seconds * (1 - 1e-9), name
        assert [i for i, _ in stages.ranges] == [0, *(j for _, j in stages.ranges[:-1])]
        assert stages.ranges[-1][1] == layers and sum(stages.devices) == devices
        assert stages.note == "no bound proven"


@pytest.mark.parametrize("seed", range(12))
def test_pipedream_and_piper_find_the_least_of_the_slowest_of_all_plans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, devices, m = int(rng.integers(1, 6)), 4, int(rng.integers(1, 6))
    costs = linear(rng.uniform(0.2, 2.0, layers), SIZES, transfer_seconds=list(rng.uniform(0, 0.5, layers)))
    given = np.concatenate((np.asarray(costs.transfer_seconds), np.zeros((1, len(SIZES))))) / 2
    given[0] = 0.0
    least = min(
        max(costs.seconds[i, j, o] + given[i, o] + given[j, o] for i, j, o in plan)
        for plan in all_plans(layers, SIZES, devices, use_all=True)
    )
    for name in ("pipedream", "piper"):
        assert slowest(found(name, costs, devices, m), m) == pytest.approx(least)


@pytest.mark.parametrize("seed", range(16))
def test_pipers_pace_is_the_least_of_all_plans_where_micro_batches_wait_to_come_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, m, name = int(rng.integers(2, 6)), int(rng.integers(2, 6)), ("1f1b", "eager_1f1b")[seed % 2]
    costs = random_costs(rng, layers, SIZES, is_rich=False)
    held = rng.uniform(0, 3, costs.seconds.shape)
    costs = StageCosts(costs.seconds, rng.uniform(0, 4, (layers, 3)), None, held, np.zeros_like(held))
    limit, window = (2.5 if seed % 3 == 0 else None), in_flight_of(name)

    def pace(plan: list[tuple[int, int, int]]) -> float:
        """What each further micro-batch adds."""
        return total_of(plan, costs, 2, True, window) - total_of(plan, costs, 1, True, window)

    plans = [p for p in all_plans(layers, SIZES, 4, use_all=True) if fits(p, costs, [0] * layers, limit)]
    how = {"limit_bytes": limit, "in_flight": window, "overlaps": True, "window": window}
    if not plans:
        with pytest.raises(sbp.PlanError):
            search_stages("piper", {}, costs, options(*SIZES), 4, m, **how)
        return
    best = search_stages("piper", {}, costs, options(*SIZES), 4, m, **how)
    assert best.slowest_seconds == pytest.approx(min(map(pace, plans)), rel=1e-5)
    others = [search_stages(n, {}, costs, options(*SIZES), 4, m, **{**how, "limit_bytes": None}) for n in NAMES]
    if limit is None:
        assert best.slowest_seconds <= min(f.slowest_seconds for f in others) * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(16))
def test_dnn_replication_finds_the_least_of_the_largest_loads_of_all_plans(seed: int) -> None:
    """A load is a device's over the replicas, with what is sent and done once; the tables of several are not read."""
    rng = np.random.default_rng(seed)
    layers, devices, m = int(rng.integers(1, 6)), int(rng.integers(2, 9)), int(rng.integers(1, 6))
    shape = (layers, layers + 1, len(SIZES))
    costs = random_costs(rng, layers, SIZES, is_rich=False)
    costs = StageCosts(costs.seconds, rng.uniform(0, 0.5, layers), rng.uniform(0, 2, shape), rng.uniform(1, 3, shape),
                       rng.uniform(0, 1, shape))  # fmt: skip
    limit = None if seed % 2 else 4.0
    half = np.append(np.asarray(costs.transfer_seconds)[:, 0], 0.0) / 2

    def load(i: int, j: int, o: int) -> float:
        sent = (half[i] if i else 0.0) + half[j]
        return float(costs.seconds[i, j, 0]) / SIZES[o] + sent + float(costs.once_seconds[i, j, o]) / m  # type: ignore[index]

    held = [min(after + 1, m) for after in range(layers)]
    plans = [p for p in all_plans(layers, SIZES, devices, use_all=True) if fits(p, costs, held, limit)]
    if not plans:
        with pytest.raises(sbp.PlanError, match="'dnn_replication' finds no stages"):
            found("dnn_replication", costs, devices, m, limit)
        return
    stages = found("dnn_replication", costs, devices, m, limit)
    mine = [(i, j, o) for (i, j), o in zip(stages.ranges, stages.options, strict=True)]
    assert mine in plans
    assert max(load(*s) for s in mine) == pytest.approx(min(max(load(*s) for s in p) for p in plans))


def test_dnn_replication_takes_replicas_for_as_fast_as_devices_and_pipedream_does_not() -> None:
    costs = linear([4.0, 1.0, 1.0], SIZES)
    slow = StageCosts(costs.seconds * np.array([1.0, 4.0, 16.0]))
    assert found("dnn_replication", costs, 3, 4).devices == found("pipedream", costs, 3, 4).devices == (2, 1)
    assert found("dnn_replication", slow, 3, 4).devices == (2, 1)
    assert found("pipedream", slow, 3, 4).devices == (1, 1, 1)
    # Whose replicas sum much does not pay.
    sums = np.broadcast_to(np.array([0.0, 8.0, 12.0]), costs.seconds.shape)
    alone = found("dnn_replication", StageCosts(costs.seconds, once_seconds=sums), 3, 4)
    assert alone.devices == (1, 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_pipers_slowest_stage_is_at_most_pipedreams_and_dapples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs, m = random_costs(rng, 6, SIZES, is_rich=seed % 2 > 0), 4
    costs = StageCosts(np.where(np.isfinite(costs.seconds), costs.seconds, 9.0), costs.transfer_seconds,
                       costs.once_seconds)  # fmt: skip
    mine, pipedream, dapple = (found(name, costs, 8, m) for name in ("piper", "pipedream", "dapple"))
    assert slowest(mine, m) <= slowest(pipedream, m) * (1 + 1e-9)
    assert slowest(mine, m) <= slowest(dapple, m) * (1 + 1e-9)
    assert mine.total_seconds <= pipedream.total_seconds * (1 + 1e-9)


def test_piper_keeps_to_memory_where_pipedream_does_not() -> None:
    """The best stages hold too much; the first of two holds two micro-batches, so that it must be shorter."""
    costs = linear([1.0] * 8, SIZES, weights=1.0, activations=2.0)
    with pytest.raises(sbp.PlanError, match=r"search 'pipedream' finds stages that do not fit: stage \d \(layers"):
        found("pipedream", costs, 4, 4, limit=5.0)
    assert max(found("piper", costs, 4, 4, limit=7.0).memory_bytes) <= 7.0


def test_even_layers_are_cut_evenly_by_all_that_balance() -> None:
    costs = linear([1.0] * 8, SIZES)
    for name in ("torchgpipe", "vpipe", "distir", "hetpipe"):
        stages = found(name, costs, 4, 1000)
        assert len({j - i for i, j in stages.ranges}) == 1, name


def test_vpipes_moves_end_at_the_best_cuts_of_uneven_layers() -> None:
    """Half of the work is in the first layer; even cuts put two more to it."""
    costs = linear([6.0, 1, 1, 1, 1, 1, 1], SIZES)
    exact = found("alpa_inter", costs, 4, 64)
    moved, even = found("vpipe", costs, 4, 64), found("distir", costs, 4, 64)
    assert moved.total_seconds <= even.total_seconds and exact.total_seconds <= moved.total_seconds


def test_pipetransformer_shrinks_as_layers_freeze() -> None:
    costs = linear([1.0] * 16, SIZES, weights=1.0)
    lengths = [len(found("pipetransformer", costs, 4, 8, frozen=n).ranges) for n in (0, 8, 12, 16)]
    assert lengths[0] == 4 and lengths[-1] == 1 and lengths == sorted(lengths, reverse=True)


def test_rannc_with_a_block_for_each_layer_is_no_worse_than_with_few() -> None:
    rng = np.random.default_rng(3)
    costs = linear(rng.uniform(0.2, 2.0, 12), SIZES)
    paces = [found("rannc", costs, 4, 1000, blocks=n).slowest_seconds for n in (12, 4, 2)]
    assert paces == sorted(paces)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_a_step_are_plain_jaxs(name: str) -> None:
    run = check(mlp_step, mlp_state, batch(), sbp.Pipeline("auto", 4, search=name), FOUR, steps=1)
    plan: Any = run.plan(mlp_state(), batch())
    assert any(f"search {name!r}" in note for note in plan.notes)
    run.close()


def test_bad_input_says_what_is_possible() -> None:
    with pytest.raises(sbp.PlanError, match=r"'pipr' is not known; did you mean 'piper'\? Possible: .*'pipedream'"):
        sbp.Pipeline(search="pipr")
    with pytest.raises(sbp.PlanError, match=r"'tofu' decides the signature of every value, not a pipeline's stages"):
        sbp.Pipeline(search="tofu")
    with pytest.raises(sbp.PlanError, match=r"name it in sbp\.Pipeline\(stages='auto', search='piper'\)"):
        sbp.AutoParallelConfig(solver="piper")
    with pytest.raises(sbp.PlanError, match=r"decides the stages, and stages=4 is given"):
        sbp.Pipeline(4, search="piper")
    with pytest.raises(sbp.PlanError, match=r"no option 'blocks'; its options: none"):
        sbp.Pipeline(search="piper", search_options={"blocks": 3})
    with pytest.raises(sbp.PlanError, match=r"passes=0 of solver 'vpipe': .* at least 1"):
        sbp.Pipeline(search="vpipe", search_options={"passes": 0})
    with pytest.raises(sbp.PlanError, match=r"search_options are those of a search"):
        sbp.Pipeline(search_options={"passes": 3})
    with pytest.raises(sbp.PlanError, match=r"workers=3: 4 devices have stages of 1, 2, 4 devices"):
        found("hetpipe", linear([1.0] * 4, SIZES), 4, 2, workers=3)

    for name in ("torchgpipe", "pipetransformer"):
        with pytest.raises(sbp.PlanError, match=r"stages=3: 8 layers on 4 devices can have 1, 2, 4 stages"):
            found(name, linear([1.0] * 8, SIZES), 4, 2, stages=3)
    with pytest.raises(sbp.PlanError, match=r"frozen=9: the step has 8 layers"):
        found("pipetransformer", linear([1.0] * 8, SIZES), 4, 2, frozen=9)
    with pytest.raises(sbp.PlanError, match=r"solver 3 is not known\. Possible: 'alpa_inter'"):
        sbp.Pipeline(search=3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", range(20))
def test_within_a_limit_no_search_is_below_the_bound_or_above_the_limit(seed: int) -> None:
    """Piper finds stages wherever there are some."""
    rng = np.random.default_rng(seed)
    layers, m = int(rng.integers(2, 10)), int(rng.integers(1, 9))
    costs = linear(rng.uniform(0.2, 2.0, layers), SIZES, transfer_seconds=list(rng.uniform(0, 0.3, layers)),
                   weights=1.0, activations=0.5)  # fmt: skip
    free = found("alpa_inter", costs, 4, m)
    limit = 0.8 * max(free.memory_bytes)
    answers = {}
    for name in NAMES:
        with contextlib.suppress(sbp.PlanError):
            answers[name] = found(name, costs, 4, m, limit)
    assert ("piper" in answers) == ("alpa_inter" in answers)
    for name, stages in answers.items():
        assert max(stages.memory_bytes) <= limit * (1 + 1e-9), name
        assert stages.total_seconds >= answers["alpa_inter"].bound_seconds * (1 - 1e-9), name


def test_a_search_wants_a_schedule_whose_groups_may_be_unlike() -> None:
    pipeline = sbp.Pipeline(microbatches=4, schedule="chimera", search="piper")
    with pytest.raises(sbp.PlanError, match=r"search='piper' chooses groups .* schedule 'chimera'.*'1f1b'"):
        sbp.plan(mlp_step, mlp_state(), batch(), placement=FOUR, config=sbp.AutoParallelConfig(pipeline=pipeline))
