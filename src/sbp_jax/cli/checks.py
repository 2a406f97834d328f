"""The checks of ``sbp-jax doctor``: each a small function of the facts, giving what it found and what to do.

A check gives None where it has nothing to look at. Fails are what cannot work; warnings what works but not as wanted.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..cluster.presets import preset_of
from .facts import Facts

Status = Literal["ok", "warn", "fail"]
_GIB = 2**30
# JAX's installation guide: the oldest drivers for wheels of CUDA 12 and 13.
_OLDEST_DRIVER = {"12": 525, "13": 580}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``do`` mends it."""

    check: str
    status: Status
    says: str
    do: str = ""


Check = Callable[[Facts], Finding | None]
CHECKS: dict[str, Check] = {}


def check(run: Callable[[Facts], tuple[Status, str, str] | str | None]) -> Check:
    """Register a check under its function's name; a plain text is an ok."""

    def wrapped(facts: Facts) -> Finding | None:
        found = run(facts)
        if found is None:
            return None
        return Finding(name, "ok", found) if isinstance(found, str) else Finding(name, *found)

    name = run.__name__.replace("_", " ")
    CHECKS[name] = wrapped
    return wrapped


def examine(facts: Facts) -> list[Finding]:
    """All checks that have something to look at."""
    return [found for run in CHECKS.values() if (found := run(facts)) is not None]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _cuda_wheels(f: Facts) -> list[str]:
    return [major for major in ("12", "13") if f"jax-cuda{major}-plugin" in f.versions]


def _flags(f: Facts) -> str:
    return f.environment.get("XLA_FLAGS", "")


@check
def packages(f: Facts):
    """As new as sbp_jax needs."""
    bad = {
        name: f"{name} {f.versions[name]} is too old" if name in f.versions else f"{name} is missing"
        for name, least in f.required.items()
        if _number(f.versions.get(name, "0")) < _number(least)
    }
    if not bad:
        return f"{len(f.required)} packages are new enough" if f.required else None
    return "fail", ", ".join(bad.values()), "pip install -U " + " ".join(f"'{n}>={f.required[n]}'" for n in bad)


@check
def jax_and_jaxlib(f: Facts):
    """Of the same release."""
    jax, jaxlib = f.versions.get("jax"), f.versions.get("jaxlib")
    if not jax or not jaxlib:
        return None
    if _number(jax)[:2] == _number(jaxlib)[:2] and _number(jaxlib) <= _number(jax):
        return f"jax {jax} with jaxlib {jaxlib}"
    return (
        "fail",
        f"jax {jax} with jaxlib {jaxlib}, which belong to different releases",
        f"pip install 'jax=={jax}' 'jaxlib=={jax}'",
    )


@check
def jax_starts(f: Facts):
    """JAX finds its devices."""
    if not f.crash:
        return f"{len(f.devices)} x {f.devices[0]['kind'] if f.devices else 'nothing'} ({f.backend})"
    unknown = re.search(r"Unknown flags? in XLA_FLAGS:\s*(.*)", f.crash)
    if unknown:
        return (
            "fail", f"XLA ends every program: it does not know {unknown.group(1).split('Perhaps')[0].strip()}",
            "take it out of XLA_FLAGS; flags come and go with jaxlib's versions",
        )  # fmt: skip
    return "fail", f"JAX does not start: {f.crash}", "python -c 'import jax; print(jax.devices())' shows all of it"


@check
def accelerator(f: Facts):
    """GPUs that are there are used."""
    there = len(f.gpus) or int(f.gpu_files)
    if not there or f.crash:
        return None
    if f.backend == "gpu":
        unseen = len(f.gpus) - len(f.devices)
        if f.gpus and unseen > 0 and f.processes == 1:
            hidden = "CUDA_VISIBLE_DEVICES" in f.environment
            return (
                "warn", f"JAX sees {len(f.devices)} of {len(f.gpus)} GPUs",
                "CUDA_VISIBLE_DEVICES hides the others" if hidden else "look for errors of the driver: nvidia-smi -q",
            )  # fmt: skip
        return f"JAX uses {len(f.devices)} GPUs"
    asked = f.environment.get("JAX_PLATFORMS", "")
    if asked and "cuda" not in asked and "gpu" not in asked:
        return (
            "warn",
            f"there are GPUs, but JAX_PLATFORMS={asked} keeps JAX from them",
            "unset JAX_PLATFORMS to use them",
        )
    if f.environment.get("CUDA_VISIBLE_DEVICES", "x") in ("", "-1"):
        return "warn", "there are GPUs, but CUDA_VISIBLE_DEVICES hides all of them", "unset CUDA_VISIBLE_DEVICES"
    driver = int(_number(f.gpus[0].driver)[0]) if f.gpus and _number(f.gpus[0].driver) else 0
    wheel = "cuda12" if 0 < driver < _OLDEST_DRIVER["13"] else "cuda13"
    if not _cuda_wheels(f):
        return "fail", "there are GPUs, but this JAX is for CPUs only", f"pip install -U 'jax[{wheel}]'"
    return (
        "fail", f"there are GPUs and JAX for CUDA {'/'.join(_cuda_wheels(f))}, but JAX runs on {f.backend}",
        "JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()' says why",
    )  # fmt: skip


@check
def cuda_plugin(f: Facts):
    """One, of jaxlib's version."""
    wheels = _cuda_wheels(f)
    if not wheels:
        return None
    jaxlib = f.versions.get("jaxlib", "")
    if len(wheels) > 1:
        return (
            "fail",
            "JAX's plugins for CUDA 12 and 13 are both installed",
            "pip uninstall jax-cuda12-plugin jax-cuda12-pjrt",
        )
    wrong = [
        f"{name} {version}" for name, version in f.versions.items()
        if re.match(r"jax-cuda\d+-", name) and _number(version) != _number(jaxlib)
    ]  # fmt: skip
    if wrong:
        jax = f.versions.get("jax", jaxlib)
        return "fail", f"{', '.join(wrong)} with jaxlib {jaxlib}", f"pip install -U 'jax[cuda{wheels[0]}]=={jax}'"
    return f"for CUDA {wheels[0]}, of jaxlib's version"


@check
def driver(f: Facts):
    """New enough for the CUDA that JAX brings."""
    wheels = _cuda_wheels(f)
    if not f.gpus or not wheels or not _number(f.gpus[0].driver):
        return None
    found, least = f.gpus[0].driver, _OLDEST_DRIVER[wheels[-1]]
    if _number(found)[0] >= least:
        return f"{found}, up to CUDA {f.cuda}" if f.cuda else found
    other = f", or pip install 'jax[cuda12]', which needs {_OLDEST_DRIVER['12']}" if wheels[-1] == "13" else ""
    return "fail", f"NVIDIA driver {found}; CUDA {wheels[-1]} needs {least} or newer", f"update the driver{other}"


@check
def cuda_libraries(f: Facts):
    """Those that JAX brings are not hidden by others."""
    path = f.environment.get("LD_LIBRARY_PATH", "")
    if not _cuda_wheels(f) or not re.search(r"cuda|cudnn|nccl", path, re.I):
        return None
    return "warn", f"LD_LIBRARY_PATH={path} may hide the CUDA libraries that JAX brings", "unset LD_LIBRARY_PATH"


@check
def gpu_memory(f: Facts):
    """Free, and of a size that plans may reckon with."""
    if not f.gpus or f.backend != "gpu":
        return None
    taken = [g for g in f.gpus if g.memory_bytes and g.used_bytes > 0.1 * g.memory_bytes]
    fraction = f.environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION") or f.environment.get("XLA_CLIENT_MEM_FRACTION")
    if taken:
        return (
            "warn", f"{max(g.used_bytes for g in taken) / _GIB:.1f} GiB of a GPU are in use already; JAX takes three "
            "quarters of a GPU's memory when it starts, and fails where they are not free",
            "end what holds it (nvidia-smi shows it), or set XLA_PYTHON_CLIENT_PREALLOCATE=false",
        )  # fmt: skip
    if f.environment.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "platform":
        return (
            "warn",
            "XLA_PYTHON_CLIENT_ALLOCATOR=platform: every allocation asks the driver, which is slow",
            "unset it",
        )
    if f.environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() in ("false", "0"):
        return (
            "warn", "XLA_PYTHON_CLIENT_PREALLOCATE=false: memory may be torn into pieces, so that plans near the limit "
            "do not fit", "unset it for long runs",
        )  # fmt: skip
    if not fraction:
        return (
            "warn", "JAX keeps to three quarters of a GPU's memory; plans reckon with nine tenths",
            "set XLA_PYTHON_CLIENT_MEM_FRACTION=0.92, or plan with memory_limit=",
        )  # fmt: skip
    if not re.fullmatch(r"0?\.\d+|1(\.0*)?", fraction):
        return "fail", f"XLA_PYTHON_CLIENT_MEM_FRACTION={fraction} is no fraction", "set it between 0 and 1, as 0.92"
    if float(fraction) < 0.9:
        return (
            "warn", f"JAX keeps to {float(fraction):.0%} of a GPU's memory; plans reckon with nine tenths",
            "raise XLA_PYTHON_CLIENT_MEM_FRACTION, or plan with memory_limit=",
        )  # fmt: skip
    return f"free; JAX may take {float(fraction):.0%}"


@check
def links(f: Facts):
    """How GPUs of this machine talk."""
    if len(f.gpus) < 2 or not f.topology:
        return None
    off = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if f.environment.get(name, "0") not in ("0", "")]
    if off:
        return (
            "warn",
            f"{', '.join(off)} is set: GPUs talk by way of the host",
            "unset it, if it is not for a known fault",
        )
    kinds = link_kinds(f.topology)
    if any(k.startswith("NV") for k in kinds):
        slow = sorted(k for k in kinds if not k.startswith("NV"))
        if not slow:
            return f"NVLink between all GPUs ({', '.join(sorted(kinds))})"
        return (
            "warn",
            f"NVLink between some GPUs only, others by {', '.join(slow)}",
            "`sbp-jax calibrate` measures them",
        )
    return (
        "warn", f"no NVLink: GPUs talk over PCIe ({', '.join(sorted(kinds))})",
        "plan by this machine's own rates: sbp-jax calibrate -o mine.toml, AutoParallelConfig(cluster='mine.toml')",
    )  # fmt: skip


def link_kinds(topology: str) -> set[str]:
    """The kinds of links between GPUs in ``nvidia-smi topo -m``: NV18, PIX, PXB, PHB, NODE, SYS."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", topology)
    rows = [line.split() for line in plain.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    rows = [row for row in rows if "X" in row]  # the header has none
    return {cell for row in rows for cell in row[1 : 1 + len(rows)] if cell != "X"}


@check
def shared_memory(f: Facts):
    """NCCL's, between processes of one machine."""
    if f.backend != "gpu" or len(f.devices) < 2 or f.shared_memory_bytes is None or f.shared_memory_bytes >= _GIB:
        return None
    return (
        "warn", f"/dev/shm has {f.shared_memory_bytes / 2**20:.0f} MiB; NCCL needs more between several GPUs",
        "start the container with --shm-size=8g, or --ipc=host",
    )  # fmt: skip


@check
def cluster_preset(f: Facts):
    """Costs that stand for these devices."""
    if not f.devices or f.crash:
        return None
    kind = f.devices[0]["kind"]
    if f.backend == "cpu":
        return "cpu: plans reckon with a host's devices"
    found = preset_of(kind)
    if found is None:
        return (
            "warn", f"no preset describes {kind!r}: plans would reckon with another machine's rates",
            "sbp-jax calibrate -o mine.toml; then AutoParallelConfig(cluster='mine.toml')",
        )  # fmt: skip
    mixed = {d["kind"] for d in f.devices}
    if len(mixed) > 1:
        return (
            "warn",
            f"devices differ: {', '.join(sorted(mixed))}; plans take all for {found.name}",
            "plan for one kind",
        )
    return f"{found.name}, by {kind!r}"


@check
def simulated_devices(f: Facts):
    """Only where they are meant."""
    match = re.search(r"--xla_force_host_platform_device_count=(\d+)", _flags(f))
    asked = match.group(1) if match else f.environment.get("JAX_NUM_CPU_DEVICES", "")
    if not asked or f.crash:
        return None
    if f.backend != "cpu":
        return "warn", f"{asked} CPU devices are simulated, but JAX runs on {f.backend}", "JAX_PLATFORMS=cpu uses them"
    if int(asked) > 4 * max(f.cpus, 1):
        return (
            "warn", f"{asked} devices simulated by {f.cpus} processors: programs that wait for all of them may stall",
            "simulate fewer, and plan larger meshes without devices (sbp-jax plan --cluster)",
        )  # fmt: skip
    return f"{asked} simulated by {f.cpus} processors: good for tests; their speed says nothing"


@check
def processes(f: Facts):
    """Those of a job are joined."""
    counts = {k: f.environment[k] for k in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE") if k in f.environment}
    many = {k: v for k, v in counts.items() if v.isdigit() and int(v) > 1}
    if not many and "JAX_COORDINATOR_ADDRESS" not in f.environment:
        return None
    why = ", ".join(f"{k}={v}" for k, v in many.items()) or "JAX_COORDINATOR_ADDRESS is set"
    if f.environment.get("NCCL_IB_DISABLE", "0") not in ("0", ""):
        return (
            "warn",
            f"NCCL_IB_DISABLE is set in a job of several processes ({why})",
            "unset it where there is InfiniBand",
        )
    return (
        "warn", f"this is one process of several ({why}), and sees its own {len(f.devices)} devices here",
        "call jax.distributed.initialize() first of all in the program; jax.process_count() must then say how many",
    )  # fmt: skip


@check
def numbers(f: Facts):
    """32 bits, if not meant otherwise."""
    if f.crash:
        return None
    if f.x64:
        return (
            "warn", "64-bit numbers are on (JAX_ENABLE_X64): what is not typed takes twice the bytes, and GPUs compute "
            "64 bits slowly", "unset JAX_ENABLE_X64, if it is not needed",
        )  # fmt: skip
    return "64-bit numbers are off"


@check
def debugging(f: Facts):
    """What makes every step slow is off."""
    names = ("JAX_DISABLE_JIT", "JAX_DEBUG_NANS", "JAX_DEBUG_INFS", "JAX_CHECK_TRACER_LEAKS", "NCCL_DEBUG",
             "CUDA_LAUNCH_BLOCKING")  # fmt: skip
    on = [n for n in names if f.environment.get(n, "0").lower() not in ("", "0", "false", "version", "warn")]
    on += [flag for flag in ("--xla_dump_to", "--xla_gpu_deterministic_ops") if flag in _flags(f)]
    if not on:
        return None
    return "warn", f"for debugging, and slow: {', '.join(on)}", "unset for long runs"
