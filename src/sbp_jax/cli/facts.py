"""What ``sbp-jax doctor`` looks at, gathered once: versions, environment, GPUs by their driver, devices by JAX.

JAX is asked in a process of its own: with wrong XLA_FLAGS it ends the process that it runs in.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = (
    "sbp-jax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "highspy", "jax-cuda12-plugin", "jax-cuda13-plugin",
    "jax-cuda12-pjrt", "jax-cuda13-pjrt", "jax-rocm7-plugin", "libtpu", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
)  # fmt: skip
# Of the environment only these are looked at, and shown.
_VARIABLES = re.compile(
    r"XLA_|JAX_|NCCL_|LIBTPU_|CUDA_|NVIDIA_VISIBLE|ROCR_|HIP_VISIBLE|LD_LIBRARY_PATH$|OMP_NUM_THREADS$|"
    r"SLURM_(NTASKS|PROCID|JOB_ID|JOB_NUM_NODES)$|OMPI_COMM_WORLD_(SIZE|RANK)$|(MASTER_ADDR|WORLD_SIZE|RANK)$"
)
_PROBE = """
import json, jax
found = {"jax": jax.__version__, "x64": bool(jax.config.jax_enable_x64), "backend": jax.default_backend()}
found["platform_version"] = str(jax.devices()[0].client.platform_version)
found["processes"] = jax.process_count()
found["devices"] = []
for d in jax.devices():
    stats = {}
    try: stats = d.memory_stats() or {}
    except Exception: pass
    found["devices"].append({"kind": d.device_kind, "platform": d.platform, "process": d.process_index,
                             "bytes": stats.get("bytes_limit")})
print("FOUND" + json.dumps(found))
"""
_PROBE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVIDIA's driver sees it; bytes of its memory, and those in use by anybody."""

    name: str
    driver: str
    memory_bytes: float
    used_bytes: float


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks read.

    ``devices``, ``backend`` ... are what JAX says when asked; ``crash`` is why it could not say. ``cuda`` is the
    newest CUDA that the driver runs; ``topology`` the table of ``nvidia-smi topo -m``. ``required`` are the oldest
    versions that sbp_jax takes.
    """

    python: str
    system: str
    versions: Mapping[str, str]
    required: Mapping[str, str]
    environment: Mapping[str, str]
    gpus: tuple[Gpu, ...] = ()
    cuda: str = ""
    topology: str = ""
    gpu_files: bool = False
    shared_memory_bytes: float | None = None
    cpus: int = 0
    backend: str = ""
    platform_version: str = ""
    devices: tuple[Mapping[str, Any], ...] = ()
    processes: int = 1
    x64: bool = False
    crash: str = ""


def gather(run: Any = subprocess.run) -> Facts:
    """This machine's. ``run`` starts other programs, as ``subprocess.run``."""
    gpus, cuda, topology = _nvidia(run)
    probed = _probe(run)
    required, shm = _required(), Path("/dev/shm")
    return Facts(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions=versions(tuple(dict.fromkeys((*PACKAGES, *required)))),
        required=required,
        environment={k: v for k, v in sorted(os.environ.items()) if _VARIABLES.match(k)},
        gpus=gpus,
        cuda=cuda,
        topology=topology,
        gpu_files=any(Path("/dev").glob("nvidia[0-9]*")),
        shared_memory_bytes=float(shutil.disk_usage(shm).total) if shm.is_dir() else None,
        cpus=os.cpu_count() or 0,
        **probed,
    )


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed, and of this one, which may also be run from its source."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "sbp-jax":
                found[name] = sys.modules["sbp_jax"].__version__
    return found


def _required() -> dict[str, str]:
    """The oldest versions, from the package's own metadata; nothing where it was not installed.

    What only ``sbp.flax`` needs counts where it is installed.
    """
    try:
        lines = importlib.metadata.requires("sbp-jax") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    pattern = re.compile(r"([\w\-]+)\s*>=\s*([\d.]+)\s*(;\s*extra\s*==\s*['\"]flax['\"])?\s*$")
    found = [m.groups() for line in lines if (m := pattern.match(line))]
    there = versions([name for name, _, optional in found if optional])
    return {name: least for name, least, optional in found if not optional or name in there}


def _nvidia(run: Any) -> tuple[tuple[Gpu, ...], str, str]:
    def ask(*words: str) -> str:
        try:
            done = run(["nvidia-smi", *words], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout if done.returncode == 0 else ""

    listed = ask("--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader,nounits")
    gpus = []
    for line in listed.splitlines():
        parts = [p.strip() for p in line.split(",")]
        if len(parts) == 4:
            total, used = (float(p) * 2**20 if p.replace(".", "").isdigit() else 0.0 for p in parts[2:])
            gpus.append(Gpu(parts[0], parts[1], total, used))
    if not gpus:
        return (), "", ""
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", ask())
    return tuple(gpus), cuda.group(1) if cuda else "", ask("topo", "-m") if len(gpus) > 1 else ""


def _probe(run: Any) -> dict[str, Any]:
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | dict(os.environ)  # a look must not take the memory
    try:
        done = run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"crash": f"it did not answer in {_PROBE_SECONDS:.0f} s"}
    answer = re.search(r"^FOUND(.*)$", done.stdout, re.M)
    if answer is None:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in said if "Unknown flag" in line or "Error" in line] or said
        return {"crash": (telling or [f"it ended with exit code {done.returncode}"])[-1]}
    found = json.loads(answer.group(1))
    return {
        "backend": found["backend"], "platform_version": found["platform_version"], "processes": found["processes"],
        "devices": tuple(found["devices"]), "x64": found["x64"],
    }  # fmt: skip
