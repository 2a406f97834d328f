"""Several real processes for a test: started once for a file, many cases run in them, every wait limited.

    @pytest.fixture(scope="module")
    def world():
        with World(processes=4, devices=2) as world:
            yield world

    def case_rank(offset):               # runs in every process of the world
        return sbp.env.get_rank() + offset

    def test_ranks(world):
        assert world.run(case_rank, 10) == [10, 11, 12, 13]
        assert world.run("return sbp.env.get_rank()") == [0, 1, 2, 3]       # the body of a function; its args: ``args``
        first, *others = world.errors("raise ValueError('x')")             # what each process raised: (type, text)

A case is a function at the top of a file, or source text; its arguments go as JSON, its result (numbers, texts, numpy
and JAX arrays, lists and dicts of them) comes back from every process, in rank order. A process that raises, dies or
does not answer within the limit fails the test with everything that all have printed, and where they are; after a
death or a missing answer the world is ended, and the next case starts another. ``alone`` runs a program of its own in
fresh processes, for what ends a process.
"""

import base64
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
_COUNT = "--xla_force_host_platform_device_count"
WORKER = Path(__file__).with_name("worker.py")
START_SECONDS = 180.0
CASE_SECONDS = 120.0


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(devices: int, extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The variables of a process with so many simulated CPU devices; ``extra`` adds to them, or removes with None."""
    keep = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith(("SLURM_", "OMPI_", "SBP_"))
    }
    own = os.environ.get("XLA_FLAGS", "").split()
    paths = [REPOSITORY / "src", REPOSITORY / "tests", REPOSITORY / "examples", Path(__file__).parent]
    keep |= {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "JAX_PLATFORMS": "cpu",
        # The tests' own, for quick compiling, but for how many devices there are.
        "XLA_FLAGS": " ".join([f for f in own if not f.startswith(_COUNT)] + [f"{_COUNT}={devices}"]),
        "PYTHONUNBUFFERED": "1",
    }
    for name, value in (extra or {}).items():
        if value is None:
            keep.pop(name, None)
        else:
            keep[name] = value
    return keep


def launched(rank: int, processes: int, port: int) -> dict[str, str | None]:
    """The variables that a launcher sets for one of the processes of this machine."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(processes),
        "NODE_RANK": "0",
        "NNODES": "1",
        "SBP_GENERATION": "0",
    }


@dataclass(frozen=True)
class Ended:
    """A process that has ended by itself, or was ended at the limit (code None)."""

    code: int | None
    output: str
    seconds: float


def alone(
    source: str,
    processes: int = 2,
    devices: int = 1,
    *,
    extra: Mapping[str, str | None] | Sequence[Mapping[str, str | None]] = (),
    timeout: float = 120.0,
    python: Sequence[str] = (sys.executable,),
) -> list[Ended]:
    """Run a program in fresh processes that have a launcher's variables; how each ended, in rank order.

    ``extra`` are more variables, for all processes or for each. Those that run past ``timeout`` seconds are killed.
    """
    port = free_port()
    each = [extra] * processes if isinstance(extra, Mapping) else list(extra) or [{}] * processes
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(processes):
            variables = environment(devices, launched(rank, processes, port) | dict(each[rank]))
            output = (Path(folder) / f"{rank}").open("w+")
            started.append((subprocess.Popen(
                [*python, "-c", source], env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            ), output))  # fmt: skip
        begin, ends = time.monotonic(), [timeout] * processes
        waiting = set(range(processes))
        while waiting and time.monotonic() - begin < timeout:
            for rank in sorted(waiting):
                if started[rank][0].poll() is not None:
                    ends[rank] = time.monotonic() - begin
                    waiting.discard(rank)
            time.sleep(0.02)
        for rank in waiting:
            _kill(started[rank][0])
        ended = []
        for rank, (process, output) in enumerate(started):
            process.wait()
            output.seek(0)
            ended.append(Ended(None if rank in waiting else process.returncode, output.read(), ends[rank]))
            output.close()
        return ended


class World:
    """Processes that wait for cases. Started by the first case, ended by ``close`` or the end of ``with``."""

    def __init__(
        self,
        processes: int = 4,
        devices: int = 2,
        *,
        extra: Mapping[str, str | None] | None = None,
        initialize: Mapping[str, Any] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.processes, self.devices = processes, devices
        self.extra, self.initialize = dict(extra or {}), dict(initialize or {})
        self.start_seconds = start_seconds
        self._started: list[_Process] = []
        self._folder: tempfile.TemporaryDirectory | None = None

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The process ids, in rank order."""
        self.start()
        return [process.popen.pid for process in self._started]

    def start(self) -> None:
        """Start the processes if they do not run, and wait until all are connected."""
        if self._started:
            return
        self._folder = tempfile.TemporaryDirectory()
        port = free_port()
        for rank in range(self.processes):
            variables = environment(self.devices, launched(rank, self.processes, port) | self.extra)
            variables["WORLD_INITIALIZE"] = json.dumps({"timeout_seconds": self.start_seconds, **self.initialize})
            self._started.append(_Process(rank, variables, Path(self._folder.name) / f"rank-{rank}.txt"))
        self._answers("initialize()", self.start_seconds + 20)

    def run(self, case: Callable[..., Any] | str, *args: Any, timeout: float = CASE_SECONDS) -> list[Any]:
        """A case in every process: the results in rank order. Fails, with what was printed, where one raises."""
        found = self.outcomes(case, *args, timeout=timeout)
        raised = [(rank, answer) for rank, answer in enumerate(found) if "error" in answer]
        if raised:
            texts = "\n".join(f"--- rank {rank} raised:\n{answer['traceback']}" for rank, answer in raised)
            raise AssertionError(f"{_name(case)} raised in {len(raised)} of {self.processes} processes\n{texts}")
        return [_unpacked(answer["value"]) for answer in found]

    def errors(
        self, case: Callable[..., Any] | str, *args: Any, timeout: float = CASE_SECONDS
    ) -> list[tuple[str, str] | None]:
        """What a case raised in every process, as (type, text); None where it raised nothing."""
        found = self.outcomes(case, *args, timeout=timeout)
        return [(answer["type"], answer["error"]) if "error" in answer else None for answer in found]

    def outcomes(self, case: Callable[..., Any] | str, *args: Any, timeout: float = CASE_SECONDS) -> list[dict]:
        """What every process answered, as it came: ``value``, or ``error``, ``type`` and ``traceback``."""
        self.start()
        if isinstance(case, str):
            message: dict[str, Any] = {"source": case}
        else:
            message = {"file": inspect.getsourcefile(case), "function": case.__qualname__}
        line = json.dumps({**message, "args": args})
        for process in self._started:
            process.send(line)
        return self._answers(_name(case), timeout)

    def close(self) -> None:
        """End the processes: they leave together, and are killed if that takes too long."""
        for process in self._started:
            process.leave()
        end = time.monotonic() + 20
        for process in self._started:
            process.end(max(0.0, end - time.monotonic()))
        self._started = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _answers(self, what: str, timeout: float) -> list[dict]:
        end, starting = time.monotonic() + timeout, what == "initialize()"
        waiting = {process.results.fileno(): process for process in self._started}
        found: dict[int, dict] = {}
        while waiting and time.monotonic() < end:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))
            for number in ready:
                process = waiting.pop(number)
                line = process.results.readline()
                if not line:
                    process.popen.wait(10)
                    self._fail(f"{what}: rank {process.rank} ended with exit code {process.popen.returncode}")
                found[process.rank] = json.loads(line)
                if starting and "error" in found[process.rank]:
                    end = min(end, time.monotonic() + 15)
        if waiting:
            ranks = sorted(process.rank for process in waiting.values())
            errors = [answer["error"] for answer in found.values() if starting and "error" in answer]
            self._fail(f"{what}: no answer of ranks {ranks} within {timeout:g} s {errors or ''}")
        if starting and any("error" in answer for answer in found.values()):
            self._fail(f"initialize() raised: {[found[rank].get('error') for rank in sorted(found)]}")
        return [found[rank] for rank in sorted(found)]

    def _fail(self, what: str) -> None:
        """End the world and fail, with everything that its processes have printed."""
        for process in self._started:
            process.popen.send_signal(signal.SIGUSR1)  # It prints where its threads are.
        time.sleep(1)
        for process in self._started:
            _kill(process.popen)
            process.end(5)
        texts = [f"--- rank {process.rank} printed:\n{process.printed()}" for process in self._started]
        self._started = []
        self.close()
        raise AssertionError("\n".join([what, *texts]))


class _Process:
    def __init__(self, rank: int, variables: dict[str, str], output: Path) -> None:
        self.rank, self.output = rank, output
        read, write = os.pipe()
        with output.open("w") as printed:
            self.popen = subprocess.Popen(
                [sys.executable, str(WORKER)],
                env=variables | {"WORLD_RESULTS": str(write)},
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                start_new_session=True,
                text=True,
            )
        os.close(write)
        self.results = os.fdopen(read)

    def send(self, line: str) -> None:
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(line + "\n")
            self.popen.stdin.flush()
        except BrokenPipeError:  # It has ended: seen when its answer is read.
            pass

    def leave(self) -> None:
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.close()
        except BrokenPipeError:
            pass

    def end(self, seconds: float) -> None:
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            _kill(self.popen)
            self.popen.wait()
        self.leave()
        self.results.close()

    def printed(self) -> str:
        return self.output.read_text(errors="replace")[-8000:]


def _kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # A session of its own: what it started ends with it.
    except ProcessLookupError:
        pass


def _name(case: Callable[..., Any] | str) -> str:
    return f"the case {case.strip().splitlines()[0]!r}" if isinstance(case, str) else case.__name__


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and "bytes" in value:
        dtype = np.dtype(getattr(ml_dtypes, value["dtype"], value["dtype"]))
        return np.frombuffer(base64.b64decode(value["bytes"]), dtype).reshape(value["shape"])
    if isinstance(value, dict):
        return {key: _unpacked(one) for key, one in value["items"]}
    if isinstance(value, list):
        return [_unpacked(one) for one in value]
    return value
