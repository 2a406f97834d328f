"""A process under the launcher: it says that it is alive and why it ends, and hears when it is to end.

The files are those of ``run_dir.py``. Without the launcher all of this does nothing.
"""

import atexit
import faulthandler
import functools
import operator
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from .. import run_dir
from ..errors import ProcessError
from .ranks import current

LIFE_LINE = "SBP_LIFE_LINE"
"""The number of an inherited socket to the launcher: a byte on it, or its end, mean that this process must end."""

_TRACEBACK_LETTERS = 20_000


class _Here:
    """This process, as the launcher knows it."""

    def __init__(self, folder: Path) -> None:
        world = current()
        self.folder, self.rank, self.generation = folder, world.rank, world.generation
        self.first_on_node = world.local_rank == 0
        self.pid = os.getpid()
        try:
            self.file = run_dir.HeartbeatFile(run_dir.heartbeat_path(folder, self.generation, self.rank))
        except ProcessError:  # The run has ended, and its folder is gone: the life line says so as well.
            self.file = None

    def say(self, step: int | None, phase: str) -> None:
        # A fork (a data loader's process) must not speak for us.
        if self.file is None or self.pid != os.getpid():
            return
        if self.file.last.step is None and step is not None and self.first_on_node:
            run_dir.write_modules(self.folder, self.generation, sys.modules)
        self.file.write(step, phase)

    @property
    def step(self) -> int | None:
        return None if self.file is None else self.file.last.step


_here: list[_Here] = []


def _launched() -> _Here | None:
    """What the launcher knows of this process; None where no launcher has started it."""
    if not _here:
        folder = os.environ.get(run_dir.VARIABLE)
        if not folder:
            return None
        _here.append(_Here(Path(folder)))
    return _here[0]


def check_generation() -> None:
    """Raises ``ProcessError`` if this process is of an earlier generation than the one that runs."""
    folder = os.environ.get(run_dir.VARIABLE)
    if not folder:
        return
    mine, runs = current().generation, run_dir.running_generation(Path(folder))
    if runs is not None and runs != mine:
        raise ProcessError(
            f"this process is of generation {mine} of the run, and generation {runs} runs now: it may not join, and "
            "should end"
        )


def install() -> None:
    """After the processes are connected: report errors, end at once when one of them fails."""
    here = _launched()
    if here is None:
        return
    here.say(None, run_dir.JOINED)
    sys.excepthook = functools.partial(_report_and_end, sys.excepthook)
    # Runs before JAX's own, which waits for the other processes: those registered last come first.
    atexit.register(_say_leaving)
    try:
        faulthandler.register(run_dir.STACKS_SIGNAL, all_threads=False)
    except (AttributeError, ValueError, OSError, RuntimeError):  # Not on this system, or stderr is no file.
        pass
    number = os.environ.pop(LIFE_LINE, "")
    line = _socket(int(number)) if number.isdecimal() else None
    if line is not None:
        threading.Thread(target=_listen, args=(line,), name="sbp launcher's life line", daemon=True).start()


def heartbeat(step: int) -> None:
    """Say that this process begins ``step``. Every process calls it in each step, with the same numbers.

    Under the launcher, a process that has called it, and does not again within ``--heartbeat_timeout`` seconds, counts
    as hung: all processes are ended, and start again if restarts are left. Costs some microseconds. Without the
    launcher it does nothing.

    Args:
      step: the number of the step, a whole number that grows.
    """
    step = operator.index(step)
    here = _launched()
    if here is not None:
        here.say(step, run_dir.STEPPING)


def say_stopping(step: int) -> None:
    """No heartbeat will come: the state is saved, which may take long."""
    here = _launched()
    if here is not None:
        here.say(step, run_dir.STOPPING)


def _say_leaving() -> None:
    here = _launched()
    if here is not None and not (here.file is not None and here.file.last.phase == run_dir.STOPPING):
        here.say(here.step, run_dir.LEAVING)


def _socket(number: int) -> socket.socket | None:
    """The inherited socket; None if the number is something else's by now."""
    try:
        return socket.socket(fileno=number)
    except OSError:
        return None


def _listen(line: socket.socket) -> None:
    try:
        said = line.recv(1)
    except OSError:
        return
    # A handler of the program's own gets its SIGTERM and the launcher's patience, unless there is no launcher.
    if not said or signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, on_terminate):
        os._exit(128 + signal.SIGTERM)


_asked: list[object] = []


def on_terminate(number: int, frame: object) -> None:
    """Handler of SIGTERM in a process that asks ``should_stop``: note it, and go on to the end of the step."""
    for tell in _asked:
        tell()  # type: ignore[operator]


def tell_on_terminate(tell: object) -> None:
    """Call ``tell`` when SIGTERM comes. It may take no lock."""
    _asked[:] = [tell]


def _report_and_end(
    before: Callable[..., object], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """As ``sys.excepthook``; then a report for the launcher, and the end without waiting for anybody.

    Python's ordinary end would wait for the other processes in JAX's exit barrier, and they for this one.
    """
    here = _launched()
    before(kind, error, trace)
    if here is None or here.pid != os.getpid():
        return
    lines = "".join(traceback.format_exception(kind, error, trace))
    run_dir.write_report(
        here.folder,
        run_dir.Report(
            here.rank, here.generation, here.step, run_dir.now(), kind.__name__, str(error), lines[-_TRACEBACK_LETTERS:]
        ),
    )
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)
