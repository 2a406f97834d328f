"""Ranks and RDMA from variables and files; several processes are in ``tests/distributed``."""

import subprocess
import sys
from pathlib import Path

import pytest

import sbp_jax as sbp
from sbp_jax.processes.ranks import World, read
from sbp_jax.processes.rdma import find_rdma


def test_a_process_on_its_own() -> None:
    env = sbp.env
    assert (env.get_world_size(), env.get_rank(), env.get_local_rank(), env.get_node_size()) == (1, 0, 0, 1)
    assert env.is_multi_client() is False
    assert env.rdma_is_initialized() is False


@pytest.mark.parametrize(
    ("variables", "world"),
    [
        ({}, World()),
        (
            {
                "RANK": "5",
                "WORLD_SIZE": "8",
                "LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "4",
                "NODE_RANK": "1",
                "NNODES": "2",
            },
            World(5, 8, 1, 4, 1, 2),
        ),
        (
            {
                "RANK": "5",
                "WORLD_SIZE": "8",
                "SLURM_LOCALID": "3",
                "SLURM_NTASKS_PER_NODE": "4(x2)",
                "SLURM_NODEID": "1",
            },
            World(5, 8, 3, None, 1, None),
        ),
        (
            {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "SBP_GENERATION": "3"},
            World(0, 1, 2, 4, None, None, 3),
        ),
        ({"RANK": "3", "WORLD_SIZE": "4"}, World(3, 4, 3)),
    ],
)
def test_variables_say_who_this_is(variables: dict[str, str], world: World) -> None:
    assert read(variables) == world


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(sbp.ProcessError, match="WORLD_SIZE is 'four': it must be a whole number"):
        read({"WORLD_SIZE": "four"})


def test_env_starts_no_backend() -> None:
    source = """
import sbp_jax as sbp
env = sbp.env
print(env.get_world_size(), env.get_rank(), env.get_node_size(), env.is_multi_client())
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300)
    assert found.stdout.split() == ["1", "0", "1", "False"], found.stderr


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    """Two InfiniBand ports, of which one is down, and one of RoCE."""
    for name, port, state, link in (
        ("mlx5_0", 1, "4: ACTIVE", "InfiniBand"),
        ("mlx5_1", 1, "1: DOWN", "InfiniBand"),
        ("mlx5_10", 1, "4: ACTIVE", "Ethernet"),
    ):
        folder = tmp_path / name / "ports" / str(port)
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "link_layer").write_text(f"{link}\n")
        (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
    return tmp_path


@pytest.mark.parametrize(
    ("hca", "names"),
    [
        ("", ["mlx5_0", "mlx5_10"]),
        ("mlx5_1", ["mlx5_10"]),
        ("=mlx5_0", ["mlx5_0"]),
        ("^mlx5_0", ["mlx5_10"]),
        ("mlx5_0:1,mlx5_10:2", ["mlx5_0"]),
    ],
)
def test_rdma_uses_the_active_ports_that_nccl_is_told(adapters: Path, hca: str, names: list[str]) -> None:
    found = find_rdma({"NCCL_IB_HCA": hca}, adapters)
    assert [port.name for port in found.adapters] == names
    assert str(found).startswith(f"NCCL uses RDMA over {names[0]}:1 (") and "400 Gb/sec" in str(found)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1: NCCL is told to use no RDMA; unset it"),
        ({"NCCL_NET": "Socket"}, "NCCL_NET=Socket: NCCL is told to use TCP"),
        ({"NCCL_IB_HCA": "mlx5_7"}, r"NCCL_IB_HCA=mlx5_7 leaves none of this machine's adapters: mlx5_0:1"),
        ({"JAX_PLATFORMS": "cpu"}, "this run is on CPUs"),
    ],
)
def test_variables_that_turn_rdma_off_are_named(adapters: Path, variables: dict[str, str], message: str) -> None:
    with pytest.raises(sbp.ProcessError, match=message):
        find_rdma(variables, adapters)


def test_no_adapter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sbp.ProcessError, match="there is no RDMA adapter on this machine"):
        find_rdma({}, tmp_path / "none")


def test_init_rdma_on_cpus_is_an_error() -> None:
    with pytest.raises(sbp.ProcessError, match="Gloo uses TCP"):
        sbp.env.init_rdma()
    assert sbp.env.rdma_is_initialized() is False
