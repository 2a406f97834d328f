"""Processes that start together, or say why they do not."""

from collections.abc import Iterator

import pytest

from world import World, alone, free_port


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


def test_a_case_that_one_process_leaves_names_why() -> None:
    """An exception in one process: the others stop waiting for it, and nobody waits in an exit barrier."""
    ended = alone(
        """
import sbp_jax as sbp
from sbp_jax.processes import store
sbp.distributed.initialize(timeout_seconds=100)
if sbp.env.get_rank() == 1:
    raise ValueError("the data is gone")
store().barrier("the next step", timeout_seconds=100)
""",
        processes=3,
    )
    assert [one.code for one in ended] == [1, 1, 1], ended
    for one in ended[0], ended[2]:
        assert "the next step: rank 1 has not come and will not" in one.output
        assert "Rank 1 failed with ValueError: the data is gone" in one.output


def test_everything_listens_on_loopback_only() -> None:
    """JAX's coordinator and Gloo: 127.0.0.2 is loopback too, and nobody's default. Rank 1 goes there from 127.0.0.1."""
    ended = alone(
        """
import os, jax, jax.numpy as jnp
import sbp_jax as sbp
from jax.experimental import multihost_utils
sbp.distributed.initialize(timeout_seconds=100)
multihost_utils.process_allgather(jnp.ones(3))
files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
mine = {os.readlink(file) for file in files if os.path.islink(file)}
for name in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(name).read().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if state == "0A" and f"socket:[{rest[5]}]" in mine:
            print("listens", local.partition(":")[0])
""",
        extra={"MASTER_ADDR": "127.0.0.2"},
    )
    assert [one.code for one in ended] == [0, 0], ended
    for one, address in zip(ended, ("0200007F", "0100007F"), strict=True):
        listening = [line.split()[1] for line in one.output.splitlines() if line.startswith("listens")]
        assert listening and all(found.endswith(address) for found in listening), listening


def test_places_are_found_without_variables() -> None:
    """Addresses and ranks as arguments, as a scheduler of one's own would give them."""
    ended = alone(
        """
import os, sbp_jax as sbp
rank, port = int(os.environ["MY_RANK"]), os.environ["MY_PORT"]
sbp.distributed.initialize(f"127.0.0.1:{port}", 3, rank, timeout_seconds=100)
env = sbp.env
print("found", env.get_rank(), env.get_world_size(), env.get_local_rank(), env.get_node_size(), env.is_multi_client())
sbp.distributed.initialize()
try:
    sbp.distributed.initialize(num_processes=4)
except sbp.ProcessError as error:
    print("refused", error)
""",
        processes=3,
        extra=[
            dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "NNODES"))
            | {"MY_RANK": str(rank), "MY_PORT": str(port)}
            for port in [free_port()]
            for rank in range(3)
        ],
    )
    assert [one.code for one in ended] == [0, 0, 0], ended
    for rank, one in enumerate(ended):
        assert f"found {rank} 3 {rank} 1 True" in one.output
        assert f"refused this process is rank {rank} of 3 already" in one.output


def test_processes_that_were_told_other_numbers_all_say_so() -> None:
    ended = alone(
        "import sbp_jax as sbp\nsbp.distributed.initialize(timeout_seconds=100)",
        processes=3,
        extra=[{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "3"}, {"WORLD_SIZE": "3"}],
    )
    for one in ended:
        assert one.code == 1 and "ProcessError: the processes disagree on their number" in one.output
        assert "was told 3, rank 0 was told 2" in one.output


def test_an_early_exit_stops_those_that_wait_for_it() -> None:
    ended = alone(
        """
import sys, sbp_jax as sbp
sbp.distributed.initialize(timeout_seconds=100)
if sbp.env.get_rank() == 1:
    sys.exit(0)
try:
    sbp.distributed.barrier(timeout_seconds=100)
except sbp.ProcessError as error:
    print(error)
sbp.distributed.all_reduce(1.0, timeout_seconds=100)
""",
        processes=3,
    )
    for one in ended[0], ended[2]:
        assert one.code == 1, ended
        assert "barrier() (collective number 1 of this process)" in one.output
        assert "rank 1 has not come and will not" in one.output and "Rank 1 has ended" in one.output
        assert "cannot start its devices, which begin together in all processes: rank 1 has ended" in one.output


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sys.exit(0)", "raise ValueError('x')", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_nobody_waits_for_ever_in_a_compiled_step(how: str) -> None:
    """A process ends while the others are in a collective of their devices: all end within the limits given."""
    ended = alone(
        f"""
import os, sys, jax.numpy as jnp, sbp_jax as sbp
from jax.experimental import multihost_utils
sbp.distributed.initialize(timeout_seconds=100, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=5)
multihost_utils.process_allgather(jnp.ones(3))
print("began", flush=True)
if sbp.env.get_rank() == 1:
    {how}
multihost_utils.process_allgather(jnp.ones(3))
""",
        processes=3,
        timeout=180,
    )
    assert all("began" in one.output for one in ended), ended
    assert all(one.code is not None for one in ended), ended
    assert ended[0].code != 0 and ended[2].code != 0


@pytest.mark.slow
def test_sigterm_ends_a_process() -> None:
    """JAX's pre-emption service would swallow it."""
    ended = alone(
        """
import os, signal, time, sbp_jax as sbp
sbp.distributed.initialize(timeout_seconds=100, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=5)
sbp.distributed.barrier()
if sbp.env.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""",
    )
    assert ended[1].code == -15, ended
    assert ended[1].seconds < ended[0].seconds  # rank 0 hears of it by JAX's heartbeat
