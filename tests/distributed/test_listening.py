"""What a run on one machine listens on, read from the kernel: loopback only."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from world import World

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
_LISTENS = "0A"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(processes=2, devices=2) as started:
        yield started


def listening() -> list[str]:
    """The addresses, as the kernel writes them, on which this process has sockets that listen."""
    mine = {path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in mine:
                found.append(fields[1].partition(":")[0])
    return found


def is_loopback(address: str) -> bool:
    """127.x.x.x, ::1, and ::ffff:127.x.x.x, in the kernel's byte order."""
    if len(address) == 8:
        return address.endswith("7F")
    return address == "00000000000000000000000001000000" or (
        address.startswith("0000000000000000FFFF0000") and address.endswith("7F")
    )


def case_listening() -> list[str]:
    """After collectives of every kind have connected the processes."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import sbp_jax as sbp

    p = sbp.placement("cpu", ranks=range(4), axis_names="dp")
    x = sbp.tensor(np.arange(16.0, dtype=np.float32).reshape(4, 4), placement=p, sbp="S(0)")
    jax.block_until_ready(x.to_global(sbp="S(1)").to_global(sbp="B").array)
    step = sbp.auto_parallel(lambda w, b: jnp.sum(b @ w), placement=p, in_sbp=("B", "S(0)"))
    jax.block_until_ready(step(np.ones((4, 4), np.float32), np.ones((8, 4), np.float32)))
    return listening()


def test_everything_listens_on_loopback(world: World) -> None:
    answers = world.run(case_listening)
    assert answers[0], "rank 0 has the coordinator at least"
    for rank, addresses in enumerate(answers):
        assert all(map(is_loopback, addresses)), (rank, addresses)


def test_addresses_are_read_as_the_kernel_writes_them() -> None:
    assert is_loopback("0100007F") and is_loopback("0000000000000000FFFF00000100007F")
    assert not is_loopback("00000000") and not is_loopback("0" * 32) and not is_loopback("0101A8C0")
