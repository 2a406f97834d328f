"""``sbp-jax doctor`` on broken environments: each check on the facts that it is for, and the whole on this machine."""

import dataclasses
import json
import subprocess
from types import SimpleNamespace

import pytest

from sbp_jax.cli import checks, facts, main
from sbp_jax.cli.checks import CHECKS, Finding, examine, link_kinds
from sbp_jax.cli.facts import Facts, Gpu

H100 = "NVIDIA H100 80GB HBM3"
TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\t0-31
GPU1\tNV18\t X \tSYS\t0-31
NIC0\tPIX\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""

LAPTOP = Facts(
    python="3.11.7", system="Linux x86_64", cpus=8, backend="cpu",
    versions={"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8"}, required={"jax": "0.10", "flax": "0.12"},
    environment={}, devices=({"kind": "cpu", "platform": "cpu", "process": 0, "bytes": None},),
)  # fmt: skip
SERVER = dataclasses.replace(
    LAPTOP,
    versions=dict(LAPTOP.versions) | {"jax-cuda13-plugin": "0.10.2", "jax-cuda13-pjrt": "0.10.2"},
    environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}, backend="gpu", cuda="13.0", topology=TOPOLOGY,
    gpus=(Gpu(H100, "580.65.06", 80 * 2**30, 0.0),) * 2, shared_memory_bytes=64 * 2**30,
    devices=({"kind": H100, "platform": "gpu", "process": 0, "bytes": 72 * 2**30},) * 2,
)  # fmt: skip


def broken(base: Facts, **changes: object) -> Facts:
    environment = changes.pop("environment", None)
    if isinstance(environment, dict):
        changes["environment"] = dict(base.environment) | environment
    versions = changes.pop("versions", None)
    if isinstance(versions, dict):
        changes["versions"] = {k: v for k, v in (dict(base.versions) | versions).items() if v}
    return dataclasses.replace(base, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("good", [LAPTOP, SERVER], ids=["laptop", "server"])
def test_nothing_is_wrong_where_nothing_is(good: Facts) -> None:
    found = examine(good)
    assert found and [f for f in found if f.status != "ok"] == []


CASES = [
    ("packages", LAPTOP, {"versions": {"flax": "0.11.2"}}, "fail", "flax 0.11.2 is too old", "'flax>=0.12'"),
    ("packages", LAPTOP, {"versions": {"flax": ""}}, "fail", "flax is missing", "pip install -U 'flax>=0.12'"),
    ("jax and jaxlib", LAPTOP, {"versions": {"jaxlib": "0.9.2"}}, "fail", "jaxlib 0.9.2", "'jaxlib==0.10.2'"),
    ("jax and jaxlib", LAPTOP, {"versions": {"jaxlib": "0.10.3"}}, "fail", "jaxlib 0.10.3", "'jaxlib==0.10.2'"),
    ("jax starts", LAPTOP, {"crash": "RuntimeError: no devices"}, "fail", "does not start: RuntimeError", "import jax"),
    ("jax starts", LAPTOP, {"crash": "F0 parse: Unknown flag in XLA_FLAGS: --xla_nonsense Perhaps"}, "fail",
     "does not know --xla_nonsense", "out of XLA_FLAGS"),
    ("accelerator", SERVER, {"backend": "cpu", "versions": {"jax-cuda13-plugin": ""}}, "fail", "for CPUs only",
     "jax[cuda13]"),
    ("accelerator", SERVER, {"backend": "cpu", "versions": {"jax-cuda13-plugin": ""},
                             "gpus": (Gpu(H100, "550.1", 0, 0),)}, "fail", "for CPUs only", "jax[cuda12]"),
    ("accelerator", LAPTOP, {"gpu_files": True}, "fail", "for CPUs only", "jax[cuda13]"),
    ("accelerator", SERVER, {"backend": "cpu"}, "fail", "JAX for CUDA 13, but JAX runs on cpu", "JAX_PLATFORMS=cuda"),
    ("accelerator", SERVER, {"backend": "cpu", "environment": {"JAX_PLATFORMS": "cpu"}}, "warn", "JAX_PLATFORMS=cpu",
     "unset"),
    ("accelerator", SERVER, {"backend": "cpu", "environment": {"CUDA_VISIBLE_DEVICES": ""}}, "warn", "hides all",
     "unset CUDA_VISIBLE_DEVICES"),
    ("accelerator", SERVER, {"devices": SERVER.devices[:1], "environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "warn",
     "sees 1 of 2 GPUs", "CUDA_VISIBLE_DEVICES hides"),
    ("cuda plugin", SERVER, {"versions": {"jax-cuda13-plugin": "0.9.0"}}, "fail", "jax-cuda13-plugin 0.9.0",
     "'jax[cuda13]==0.10.2'"),
    ("cuda plugin", SERVER, {"versions": {"jax-cuda12-plugin": "0.10.2"}}, "fail", "both installed", "pip uninstall"),
    ("driver", SERVER, {"gpus": (Gpu(H100, "550.54.15", 0, 0),)}, "fail", "550.54.15; CUDA 13 needs 580",
     "jax[cuda12]"),
    ("cuda libraries", SERVER, {"environment": {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}}, "warn", "may hide",
     "unset"),
    ("gpu memory", SERVER, {"gpus": (Gpu(H100, "580.1", 80 * 2**30, 40 * 2**30),)}, "warn",
     "40.0 GiB of a GPU are in use", "PREALLOCATE=false"),
    ("gpu memory", SERVER, {"environment": {"XLA_PYTHON_CLIENT_MEM_FRACTION": ""}}, "warn", "three quarters", "0.92"),
    ("gpu memory", SERVER, {"environment": {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}}, "warn", "50%", "memory_limit="),
    ("gpu memory", SERVER, {"environment": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "92"}}, "fail", "no fraction", "0.92"),
    ("gpu memory", SERVER, {"environment": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}}, "warn", "pieces", "unset"),
    ("gpu memory", SERVER, {"environment": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}}, "warn", "slow", "unset"),
    ("links", SERVER, {"environment": {"NCCL_P2P_DISABLE": "1"}}, "warn", "NCCL_P2P_DISABLE", "unset"),
    ("links", SERVER, {"topology": TOPOLOGY.replace("NV18", "PHB")}, "warn", "over PCIe (PHB)", "sbp-jax calibrate"),
    ("links", SERVER, {"topology": TOPOLOGY.replace("NV18", "SYS", 1)}, "warn", "some GPUs only, others by SYS",
     "calibrate"),
    ("shared memory", SERVER, {"shared_memory_bytes": 64 * 2**20}, "warn", "/dev/shm has 64 MiB", "--shm-size"),
    ("cluster preset", SERVER, {"devices": ({"kind": "RTX 4090", "bytes": None},)}, "warn", "'RTX 4090'", "calibrate"),
    ("cluster preset", SERVER, {"devices": (SERVER.devices[0], {"kind": "NVIDIA A100", "bytes": None})}, "warn",
     "devices differ", "one kind"),
    ("simulated devices", SERVER, {"environment": {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}}, "warn",
     "8 CPU devices are simulated, but JAX runs on gpu", "JAX_PLATFORMS=cpu"),
    ("simulated devices", LAPTOP, {"environment": {"JAX_NUM_CPU_DEVICES": "64"}}, "warn", "64 devices simulated by 8",
     "fewer"),
    ("simulated devices", LAPTOP, {"environment": {"JAX_NUM_CPU_DEVICES": "4"}}, "ok", "4 simulated by 8", ""),
    ("processes", SERVER, {"environment": {"SLURM_NTASKS": "16"}}, "warn", "(SLURM_NTASKS=16)", "initialize()"),
    ("processes", SERVER, {"environment": {"OMPI_COMM_WORLD_SIZE": "2", "NCCL_IB_DISABLE": "1"}}, "warn",
     "NCCL_IB_DISABLE is set", "InfiniBand"),
    ("numbers", LAPTOP, {"x64": True}, "warn", "JAX_ENABLE_X64", "unset"),
    ("debugging", LAPTOP, {"environment": {"JAX_DEBUG_NANS": "1", "XLA_FLAGS": "--xla_dump_to=/x"}}, "warn",
     "JAX_DEBUG_NANS, --xla_dump_to", "unset"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "base", "changes", "status", "says", "do"), CASES)
def test_what_is_broken_is_found(name: str, base: Facts, changes: dict, status: str, says: str, do: str) -> None:
    found = CHECKS[name](broken(base, **changes))
    assert found is not None and (found.check, found.status) == (name, status)
    assert says in found.says and do in found.do


def test_every_check_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(CHECKS)


def test_links_are_read_from_the_topology() -> None:
    assert link_kinds(TOPOLOGY) == {"NV18"}
    assert link_kinds(TOPOLOGY.replace("GPU1\tNV18", "GPU1\tPIX")) == {"NV18", "PIX"}
    assert link_kinds("") == set()


def pretend(answers: dict[str, SimpleNamespace | Exception]):
    """What ``subprocess.run`` would have given, by a word of the command."""

    def run(command: list[str], **_: object) -> SimpleNamespace:
        text = " ".join(command)
        for word, answer in answers.items():
            if word in text:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        raise FileNotFoundError(command[0])

    return run


def done(out: str = "", err: str = "", code: int = 0) -> SimpleNamespace:
    return SimpleNamespace(stdout=out, stderr=err, returncode=code)


def test_facts_of_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"backend": "gpu", "platform_version": "cuda", "processes": 1, "x64": False,
            "devices": [{"kind": H100, "platform": "gpu", "process": 0, "bytes": 7e10}] * 2}  # fmt: skip
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_SECRET", "x")
    found = facts.gather(
        pretend({
            "--query-gpu": done(f"{H100}, 580.65.06, 81559, 12\n" * 2),
            "topo -m": done(TOPOLOGY),
            "nvidia-smi": done("| NVIDIA-SMI 580.65.06   CUDA Version: 13.0 |"),
            "FOUND": done(f"noise\nFOUND{json.dumps(told)}\n", "a warning"),
        })
    )  # fmt: skip
    assert found.gpus == (Gpu(H100, "580.65.06", 81559 * 2**20, 12 * 2**20),) * 2
    assert (found.cuda, found.topology, found.backend, len(found.devices)) == ("13.0", TOPOLOGY, "gpu", 2)
    assert found.environment["NCCL_DEBUG"] == "INFO" and "MY_SECRET" not in found.environment
    assert found.required["jax"] and found.versions["jax"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (done(err="x\nUnknown flag in XLA_FLAGS: --xla_foo\nmore", code=-6), "Unknown flag in XLA_FLAGS: --xla_foo"),
        (done(err="Traceback\n  File\nRuntimeError: no plugin\n", code=1), "RuntimeError: no plugin"),
        (done(code=3), "it ended with exit code 3"),
        (subprocess.TimeoutExpired("python", 1), "it did not answer in 120 s"),
    ],
)
def test_jax_that_does_not_start(answer, says: str) -> None:
    assert facts.gather(pretend({"FOUND": answer})).crash == says


def test_exit_codes_and_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(facts, "gather", lambda: SERVER)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "2 x NVIDIA H100 80GB HBM3, 72.0 GiB for JAX" in out and "GPU1" in out and out.endswith("all is well\n")
    monkeypatch.setattr(facts, "gather", lambda: broken(SERVER, x64=True))
    assert main(["doctor"]) == 0
    assert "warn  numbers: 64-bit numbers are on" in capsys.readouterr().out
    monkeypatch.setattr(facts, "gather", lambda: broken(SERVER, crash="RuntimeError: no"))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  jax starts: JAX does not start: RuntimeError: no\n      -> python -c" in out
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["facts"]["crash"] and {"check", "status", "says", "do"} == set(told["findings"][0])


def test_a_check_registers_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKS", {})

    @checks.check
    def some_thing(f: Facts):
        return "warn", f.python, "look"

    assert examine(LAPTOP) == [Finding("some thing", "warn", "3.11.7", "look")]


def test_this_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag_as_this=1")
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (found,) = (f for f in told["findings"] if f["check"] == "jax starts")
    assert found["status"] == "fail" and "does not know --xla_no_such_flag_as_this=1" in found["says"]
