"""The private folder of a launched run (SBP_RUN_DIR): heartbeats and error reports, and how both sides read them.

The launcher makes the folder and reads it; the processes that it starts write into it. Neither side needs JAX for that.

    generation            the number of the generation that runs now
    generation-G/
        modules           which modules the workers have imported, for those that wait
        heartbeat-K       what process K does: one record of fixed size, written in place
        rank-K.json       why process K ended, where it raised an exception

Folders are 0700, files 0600. Files are opened without following links.
"""

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ProcessError

VARIABLE = "SBP_RUN_DIR"
RECORD_BYTES = 64
MAX_REPORT_BYTES = 1 << 16

EXIT_STOPPED = 75
"""Exit code of a process that has left by agreement with the others; EX_TEMPFAIL in sysexits.h: try again later."""

STACKS_SIGNAL = signal.SIGRTMIN + 5 if sys.platform.startswith("linux") else signal.SIGUSR2
"""A process that has connected prints its main thread's stack when this comes, even while it waits inside XLA."""

KNOWN_MODULES = (
    "numpy", "scipy", "ml_dtypes", "jax", "flax", "optax", "orbax.checkpoint", "grain", "sbp_jax", "sbp_jax.flax",
    "sbp_jax.distributed", "sbp_jax.checkpoint", "sbp_jax.data", "sbp_jax.env",
)  # fmt: skip
"""What spares import if the workers have: modules whose import depends on no rank and starts no backend."""

JOINED = "joined"
"""It has connected to the others, and has not begun a step."""
STEPPING = "step"
STOPPING = "stopping"
"""It saves its state, because all are to stop: no step will begin."""
LEAVING = "leaving"
"""Its program has ended without an error; it may be waiting for the others."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a process last said of itself."""

    count: int = 0
    """How many records it has written; 0 means that it has not said anything."""
    step: int | None = None
    phase: str = ""

    def record(self) -> bytes:
        """The heartbeat as a record of ``RECORD_BYTES``."""
        step = "-" if self.step is None else str(self.step)
        return f"{self.count} {step} {self.phase}\n".encode().ljust(RECORD_BYTES)[:RECORD_BYTES]


def parse_heartbeat(record: bytes) -> Heartbeat:
    """The heartbeat in a record; an empty one where nothing, or something else, has been written."""
    words = record.decode("ascii", "replace").split()
    if len(words) != 3 or not words[0].isdecimal() or not (words[1] == "-" or words[1].lstrip("-").isdecimal()):
        return Heartbeat()
    return Heartbeat(int(words[0]), None if words[1] == "-" else int(words[1]), words[2])


@dataclass(frozen=True, slots=True)
class Report:
    """Why a process ended."""

    rank: int
    generation: int
    step: int | None
    unix_seconds: float
    type: str
    message: str
    traceback: str

    def text(self) -> str:
        """JSON of at most ``MAX_REPORT_BYTES``: of long texts the end is kept."""
        half = MAX_REPORT_BYTES // 8  # A character may need 6 bytes in JSON.
        short = {"message": self.message[:half], "traceback": self.traceback[-half:]}
        return json.dumps({name: getattr(self, name) for name in self.__slots__} | short)


def parse_report(text: str) -> Report | None:
    """The report in a JSON text; None where it is none (a full disk leaves an empty file)."""
    try:
        read: Any = json.loads(text)
        return Report(
            int(read["rank"]), int(read["generation"]), None if read["step"] is None else int(read["step"]),
            float(read["unix_seconds"]), str(read["type"]), str(read["message"]), str(read["traceback"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None


def make_folder(path: Path, others_mode: bool = False) -> Path:
    """A new or existing folder that is ours and is no link, with mode 0700. The folder above it must exist.

    ``others_mode``: a folder that exists keeps its mode, if nobody else may write there.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise ProcessError(f"cannot make the folder {str(path)!r}: {error.strerror}") from error
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise ProcessError(f"{str(path)!r} is {kind}: give a folder, or a name that is not taken")
    if found.st_uid != os.geteuid():
        raise ProcessError(f"the folder {str(path)!r} belongs to another user: give one of your own")
    mode = stat.S_IMODE(found.st_mode)
    if others_mode and mode & 0o022:
        raise ProcessError(f"others may write into the folder {str(path)!r} (mode {mode:o}): give a folder inside it")
    if not others_mode and mode != 0o700:
        os.chmod(path, 0o700)
    return path


def open_file(path: Path, flags: int) -> int:
    """Open a regular file with mode 0600, following no link as its last part; gives the descriptor.

    Raises ``ProcessError`` if the name is a link, a pipe, a device or a folder, or belongs to another user.
    """
    # O_NONBLOCK: a pipe that somebody has put there must not make us wait; it means nothing for a file.
    # It is emptied only once it is known to be ours.
    empties, flags = flags & os.O_TRUNC, flags & ~os.O_TRUNC
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise ProcessError(f"cannot open {str(path)!r} ({error.strerror}): it must be a file, and no link") from error
    found = os.fstat(fd)
    # A second name for a file (a hard link) would let us write into somebody's file elsewhere.
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
        os.close(fd)
        raise ProcessError(f"{str(path)!r} is not a file of ours alone: remove it, or give another folder")
    os.fchmod(fd, 0o600)
    if empties:
        os.ftruncate(fd, 0)
    os.set_blocking(fd, True)
    return fd


def generation_folder(run_dir: Path, generation: int) -> Path:
    """Where the files of a generation are."""
    return run_dir / f"generation-{generation}"


def heartbeat_path(run_dir: Path, generation: int, rank: int) -> Path:
    """The file of a process's heartbeats."""
    return generation_folder(run_dir, generation) / f"heartbeat-{rank}"


def report_path(run_dir: Path, generation: int, rank: int) -> Path:
    """The file of a process's error report."""
    return generation_folder(run_dir, generation) / f"rank-{rank}.json"


def begin_generation(run_dir: Path, generation: int) -> None:
    """Make a generation's folder, and make it the one that runs now."""
    make_folder(generation_folder(run_dir, generation))
    beside = run_dir / "generation.new"
    fd = open_file(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(fd, str(generation).encode())
    finally:
        os.close(fd)
    os.replace(beside, run_dir / "generation")


def running_generation(run_dir: Path) -> int | None:
    """The generation that runs now; None where the folder is gone, because the run has ended."""
    try:
        text = (run_dir / "generation").read_text()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def write_modules(run_dir: Path, generation: int, loaded: Container[str]) -> None:
    """Say which of ``KNOWN_MODULES`` a worker has imported."""
    names = ",".join(name for name in KNOWN_MODULES if name in loaded)
    try:
        fd = open_file(generation_folder(run_dir, generation) / "modules", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except (ProcessError, OSError):
        return
    try:
        os.write(fd, names.encode())
    except OSError:
        pass
    finally:
        os.close(fd)


def read_modules(run_dir: Path, generation: int) -> tuple[str, ...]:
    """The modules that a worker has said it imported; other names than ``KNOWN_MODULES`` are ignored."""
    try:
        fd = open_file(generation_folder(run_dir, generation) / "modules", os.O_RDONLY)
    except (ProcessError, OSError):
        return ()
    try:
        names = os.read(fd, 4096).decode("ascii", "replace").split(",")
    finally:
        os.close(fd)
    return tuple(name for name in KNOWN_MODULES if name in names)


def write_report(run_dir: Path, report: Report) -> bool:
    """Write an error report; False where that is not possible (the disk is full, the run has ended)."""
    try:
        fd = open_file(
            report_path(run_dir, report.generation, report.rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        )  # fmt: skip
    except (ProcessError, OSError):
        return False
    try:
        os.write(fd, report.text().encode())
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def read_report(run_dir: Path, generation: int, rank: int) -> Report | None:
    """The error report of a process, if it has written one."""
    try:
        fd = open_file(report_path(run_dir, generation, rank), os.O_RDONLY)
    except (ProcessError, OSError):
        return None
    try:
        return parse_report(os.read(fd, MAX_REPORT_BYTES).decode("utf-8", "replace"))
    finally:
        os.close(fd)


class HeartbeatFile:
    """One process's heartbeats, written in place: a full disk does not stop them once the file is there."""

    def __init__(self, path: Path) -> None:
        self._fd = open_file(path, os.O_WRONLY)
        self._last = Heartbeat()

    def write(self, step: int | None, phase: str) -> None:
        """Say that this process is alive, at ``step``."""
        self._last = Heartbeat(self._last.count + 1, step, phase)
        os.pwrite(self._fd, self._last.record(), 0)

    @property
    def last(self) -> Heartbeat:
        """What was written last."""
        return self._last


def now() -> float:
    """Seconds since 1970, to tell which of two processes failed first."""
    return time.time()
