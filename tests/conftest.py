"""Settings of every test: 8 simulated CPU devices, whatever the machine has."""

import os
from collections.abc import Iterator
from importlib.metadata import version

# Before jax is imported anywhere: the number of simulated devices is fixed when its backend starts.
_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()
# The CPU's code need not be fast, and takes a third less time to compile so. What XLA makes of the program is the same.
if "--xla_backend_optimization_level" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"
# Fused loops compile in half the time without MLIR. Newer versions stop at a flag that they do not know.
if version("jaxlib").startswith("0.10.") and "--xla_cpu_use_fusion_emitters" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Plans are printed as wide as the terminal is.
os.environ["COLUMNS"] = "160"

import jax
import pytest

MESH_SHAPES: tuple[tuple[int, int], ...] = ((1, 8), (2, 4), (8, 1))


@pytest.fixture(scope="session", autouse=True)
def _eight_devices() -> None:
    """Stop at once, with the reason, where the simulated devices are missing."""
    if jax.device_count("cpu") < 8:
        pytest.exit(f"the tests need 8 CPU devices, there are {jax.device_count('cpu')}: XLA_FLAGS must hold {_FLAG}=8")


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled() -> Iterator[None]:
    """Compiled programs of a module are of no use to the next, and fill the memory."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def mesh_shapes() -> tuple[tuple[int, int], ...]:
    """The 2-d mesh shapes that every model is checked on; their axes are named ("dp", "tp")."""
    return MESH_SHAPES


@pytest.fixture(params=MESH_SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def mesh_shape(request: pytest.FixtureRequest) -> tuple[int, int]:
    """One of ``MESH_SHAPES``: a test that takes it runs once for each."""
    return request.param
