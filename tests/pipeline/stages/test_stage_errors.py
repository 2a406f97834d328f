"""What is said where there are no stages, and of numbers that cannot be."""

import re
from typing import Any

import numpy as np
import pytest

from pipeline.stages.stage_cases import linear, options, random_costs
from sbp_jax.errors import PlanError, ScheduleError
from sbp_jax.pipeline.stages import StageCosts, in_flight_of, plan_stages


def message(*args: Any, **more: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan_stages(*args, **more)
    return str(caught.value)


def test_a_layer_that_fits_nowhere_is_named_with_its_bytes() -> None:
    costs = linear([1.0] * 3, (1, 2), activations=100.0)
    weights = np.zeros(costs.seconds.shape)
    # Stages with layer 1: 3 MiB on each device of two.
    weights[:2, 2:, :] = 6 * 2**20 / np.array([1, 2])
    weights[1, 2:, :] = weights[0, 2, :]
    heavy = StageCosts(costs.seconds, None, None, weights, costs.activation_bytes)
    said = message(heavy, options(1, 2), 4, 8, limit_bytes=2**20)
    assert said.startswith(
        "no stages fit in limit_bytes=1048576 (1 MiB) on 4 devices: layer 1 in no stage at all (layer 1: 2 MiB "
        "too much on the largest sub-mesh, 2). The smallest limit that does is 3145828 bytes, 2 MiB more. What helps: "
        "recompute activations (remat), smaller micro-batches, a schedule with fewer of them in flight"
    )
    smallest = int(re.search(r"limit that does is (\d+) bytes", said)[1])  # type: ignore[index]
    plan_stages(heavy, options(1, 2), 4, 8, limit_bytes=smallest)
    message(heavy, options(1, 2), 4, 8, limit_bytes=smallest - 1)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_limit_is_told(seed: int, schedule: str) -> None:
    rng = np.random.default_rng(seed)
    costs = random_costs(rng, 5, (1, 2, 4), is_rich=True)
    asked = {"in_flight": in_flight_of(schedule), "use_all": seed % 2 == 0}
    weights, activations = (np.rint(rng.uniform(0, 2e6, costs.seconds.shape)) for _ in range(2))
    whole = StageCosts(costs.seconds, None, None, weights, activations)
    said = message(whole, options(1, 2, 4), 8, 4, limit_bytes=1.0, **asked)
    assert "layers 0-4 in no stage at all (layer 0: " in said
    smallest = int(re.search(r"limit that does is (\d+) bytes", said)[1])  # type: ignore[index]
    plan_stages(whole, options(1, 2, 4), 8, 4, limit_bytes=smallest, **asked)
    assert f"limit that does is {smallest} bytes, 1 bytes more" in message(
        whole, options(1, 2, 4), 8, 4, limit_bytes=smallest - 1, **asked
    )


def test_layers_alone_are_told_with_as_few_in_flight_as_there_can_be() -> None:
    # Before the last layer there is always a stage that follows: two micro-batches.
    said = message(linear([1.0] * 8, (1,), activations=40.0), options(1), 8, 4, limit_bytes=30)
    assert "layers 0-7 in no stage at all (layer 0: 50 bytes too much on the largest sub-mesh, 1; layer 1: 50 " in said
    assert "layer 5: 50 bytes too much on the largest sub-mesh, 1; ...). The smallest limit that does is 160 " in said
    said = message(linear([1.0], (1,), activations=40.0), options(1), 1, 4, limit_bytes=30)
    assert "layer 0 in no stage at all (layer 0: 10 bytes too much on the largest sub-mesh, 1)." in said


def test_layers_that_fit_but_not_together() -> None:
    costs = linear([1.0] * 4, (1, 2), weights=100.0)
    said = message(costs, options(1, 2), 2, 4, limit_bytes=150)
    assert said.startswith(
        "no stages fit in limit_bytes=150 (150 bytes) on 2 devices: each layer does in some stage, but no stages with "
        "all layers do. The smallest limit that does is 200 bytes, 50 bytes more."
    )


def test_sub_meshes_that_do_not_add_up() -> None:
    costs = linear([1.0] * 3, (2, 4))
    assert message(costs, options(2, 4), 7, 4) == (
        "devices=7: 1 to 3 sub-meshes of 2, 4 devices do not add up to that; nearest possible: 6, 8 devices or "
        "use_all=False"
    )
    assert message(costs, options(2, 4), 16, 4, stages=2) == (
        "devices=16: 2 sub-meshes of 2, 4 devices do not add up to that; nearest possible: 8 devices or use_all=False"
    )
    assert message(costs, options(2, 4), 1, 4, use_all=False) == (
        "devices=1: 1 to 3 sub-meshes of 2, 4 devices do not add up to that; nearest possible: 2 devices"
    )
    assert plan_stages(costs, options(2, 4), 7, 4, use_all=False).devices == (2, 4)


def test_layers_without_seconds() -> None:
    seconds = np.ones((3, 4, 1))
    seconds[:2, 2:, :] = np.inf
    assert message(StageCosts(seconds), options(1), 1, 4) == (
        "layer 1: every stage with it has infinite seconds on every sub-mesh; give seconds of one"
    )
    seconds[:] = np.inf
    seconds[0, 2] = seconds[1, 3] = 1.0
    assert message(StageCosts(seconds), options(1), 2, 4) == (
        "no 1 to 3 sub-meshes have all 3 layers and 2 devices: seconds are infinite for the stages that would be "
        "needed. Give finite seconds of more stages, other sub-meshes, or use_all=False"
    )


GOOD = linear([1.0, 1.0], (1, 2))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": options(1)}, "1 sub-mesh options are given, seconds has 2: give as many"),
        ({"options": options(0, 1)}, "sub-mesh option 0 has 0 devices: give at least 1"),
        ({"devices": 0}, "devices=0: give at least 1"),
        ({"microbatches": 0}, "microbatches=0: give at least 1"),
        ({"epsilon": 1.0}, "epsilon=1.0: give a part of the total, of at least 0 and below 1"),
        ({"limit_bytes": 0}, "limit_bytes=0: give the bytes of one device's memory, above 0, or None"),
        ({"stages": 3}, "stages=3 of 2 layers: give numbers of at least 1, not above the layers, in order"),
        ({"stages": 2, "least_stages": 2}, "stages=2 is given with least_stages=2, most_stages=None: give either"),
        ({"least_stages": 2, "most_stages": 1}, "least_stages=2, most_stages=1 of 2 layers: give numbers"),
        ({"limit_bytes": 1, "in_flight": lambda after, m: 3 - after}, "in_flight(1, 4) is 2, in_flight(0, 4) is 3: a "),
    ],
)
def test_numbers_that_cannot_be(changed: dict[str, Any], words: str) -> None:
    asked = {"costs": GOOD, "options": options(1, 2), "devices": 2, "microbatches": 4} | changed
    assert message(**asked).startswith(words)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"seconds": np.ones((2, 2, 1))},
            "seconds has shape (2, 2, 1): give (L, L + 1, S) for L layers and S sub-mesh",
        ),
        ({"seconds": np.full((1, 2, 1), np.nan)}, "seconds[0, 1, 0] is nan: give numbers of at least 0, or inf"),
        ({"once_seconds": np.ones((2, 3, 1))}, "once_seconds has shape (2, 3, 1), seconds has (2, 3, 2): give both"),
        ({"weights_bytes": -np.ones((2, 3, 2))}, "weights_bytes[0, 1, 0] is -1: give numbers of at least 0"),
        (
            {"transfer_seconds": [0.0]},
            "transfer_seconds is [0.]: give 2 finite numbers of at least 0, one for each layer",
        ),
        ({"transfer_seconds": [0.0, np.inf]}, "transfer_seconds is [ 0. inf]: give 2 finite numbers"),
    ],
)
def test_arrays_that_cannot_be(arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        StageCosts(**({"seconds": GOOD.seconds} | arrays))
    assert str(caught.value).startswith(words)


def test_schedules_by_name() -> None:
    assert [in_flight_of("1f1b")(a, 3) for a in range(5)] == [1, 2, 3, 3, 3]
    assert [in_flight_of("gpipe")(a, 3) for a in range(5)] == [3] * 5
    for name in ("zb_h1", "chimera", "interleaved_1f1b", "pipedream"):
        with pytest.raises(
            ScheduleError, match=f"schedule '{name}' holds what does not depend on the stages after a stage"
        ):
            in_flight_of(name)
    with pytest.raises(ScheduleError, match=r"schedule '1f2b' is not known; possible: '1f1b', 'eager_1f1b', 'gpipe'$"):
        in_flight_of("1f2b")
