"""Runs of the launcher, for tests: as a process of its own, with a limit, its output kept."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCH = [sys.executable, "-m", "sbp_jax.distributed.launch"]

# The start of a worker without JAX: who it is, and heartbeats as the library writes them.
PLAIN = """
import json, os, signal, sys, time
rank, generation = int(os.environ["RANK"]), int(os.environ["SBP_GENERATION"])
size, slot = int(os.environ["WORLD_SIZE"]), int(os.environ.get("SBP_LOCAL_SLOT", "0"))
count = 0
def beat(step, phase="step"):
    global count
    count += 1
    path = f"{os.environ['SBP_RUN_DIR']}/generation-{generation}/heartbeat-{rank}"
    with open(path, "r+") as file:
        file.write(f"{count} {'-' if step is None else step} {phase}\\n".ljust(64))
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
"""


@dataclass(frozen=True)
class Ran:
    """How the launcher ended."""

    code: int
    out: str
    err: str
    seconds: float


def environment(**more: str) -> dict[str, str]:
    """This process's variables without those that other tests or a scheduler have set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SBP_", "SLURM_", "OMPI_", "XLA_", "JAX_"))}
    return kept | {"PYTHONPATH": str(REPOSITORY / "src")} | more


class Running:
    """A launcher that runs, with its output in files."""

    def __init__(self, folder: Path, *options: str, variables: dict[str, str] | None = None, cwd: Path | None = None):
        self._files = [folder / f"launcher-{os.urandom(4).hex()}.{kind}" for kind in ("out", "err")]
        self._begin = time.monotonic()
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self.process = subprocess.Popen(
                [*LAUNCH, *options], stdout=out, stderr=err, env=environment(**(variables or {})), cwd=cwd or folder
            )

    def out(self) -> str:
        """What the workers have printed so far."""
        return self._files[0].read_text(errors="replace")

    def err(self) -> str:
        """What the launcher has said so far."""
        return self._files[1].read_text(errors="replace")

    def until(self, found: str | Callable[["Running"], bool], seconds: float = 60) -> None:
        """Wait until the output has a text (a pattern), or something is so."""
        end = time.monotonic() + seconds
        while not (found(self) if callable(found) else re.search(found, self.out())):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"not seen: {found}\n{self.out()}\n{self.err()}")
            time.sleep(0.01)

    def __del__(self) -> None:
        if self.process.poll() is None:  # The test has failed.
            self.process.kill()
            self.process.wait()

    def signal(self, number: int) -> None:
        """A signal to the launcher."""
        self.process.send_signal(number)

    def end(self, seconds: float = 60) -> Ran:
        """Wait for its end."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"it did not end in {seconds} s\n{self.out()}\n{self.err()}") from None
        return Ran(code, self.out(), self.err(), time.monotonic() - self._begin)


def launch(folder: Path, source: str, *options: str, arguments: tuple[str, ...] = (), **more) -> Ran:
    """Run a program under the launcher to its end."""
    return start(folder, source, *options, arguments=arguments, **more).end()


def start(folder: Path, source: str, *options: str, arguments: tuple[str, ...] = (), **more) -> Running:
    """Start a program under the launcher."""
    script = folder / "program.py"
    script.write_text(PLAIN + source)
    return Running(folder, *options, str(script), *arguments, **more)


def is_there(pid: int) -> bool:
    """Whether a process runs (one that has ended and waits to be noticed does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10) -> bool:
    """Whether processes end within a limit."""
    end = time.monotonic() + seconds
    while any(is_there(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
