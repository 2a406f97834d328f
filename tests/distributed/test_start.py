"""Processes that start together, or say why they do not."""

from collections.abc import Iterator

import pytest

from world import World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(processes=3, devices=2) as world:
        yield world


def test_every_process_knows_its_rank(world: World) -> None:
    assert world.run("return sbp.env.get_rank(), sbp.env.get_world_size(), sbp.env.get_local_rank()") == [
        [0, 3, 0],
        [1, 3, 1],
        [2, 3, 2],
    ]


def test_devices_of_all_processes_are_seen(world: World) -> None:
    assert world.run("return jax.device_count(), jax.local_device_count()") == [[6, 2]] * 3


def test_texts_are_gathered_in_rank_order(world: World) -> None:
    source = """
from sbp_jax.processes import store
return [store().gather("words", f"{args[0]}{sbp.env.get_rank()}") for _ in range(3)]
"""
    assert world.run(source, "w") == [[["w0", "w1", "w2"]] * 3] * 3


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_barrier_names_who_is_missing(world: World, missing: int) -> None:
    source = """
import time
from sbp_jax.processes import store
if sbp.env.get_rank() == args[0]:
    time.sleep(4)
store().barrier(f"the test's barrier {args[0]}", timeout_seconds=1)
"""
    errors = world.errors(source, missing)
    for error in errors[:missing] + errors[missing + 1 :]:
        assert error is not None
        assert error[0] == "ProcessError" and f"rank {missing} has not come within 1 s" in error[1]
