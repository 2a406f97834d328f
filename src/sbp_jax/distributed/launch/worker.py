"""One process: started in a session of its own, told who it is, watched without being reaped, ended with its group."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...run_dir import RECORD_BYTES as _RECORD_BYTES
from ...run_dir import Heartbeat, parse_heartbeat

_CHILD = str(Path(__file__).with_name("child.py"))
END = b"E"
"""On the life line: the world has failed, leave now."""


class Child:
    """A started process that has not been told who it is."""

    def __init__(self, environment: Mapping[str, str], preload: Sequence[str] = ()) -> None:
        self.line, theirs = socket.socketpair()
        with theirs:
            # An inherited descriptor has the same number there as here.
            self.life_line = str(theirs.fileno())
            arguments = [self.life_line, str(os.getpid())]
            if preload:
                arguments.append(",".join(preload))
            quiet = subprocess.DEVNULL if preload else None
            self.process = subprocess.Popen(
                [sys.executable, "-u", _CHILD, *arguments],
                stdin=subprocess.DEVNULL, stdout=quiet, stderr=quiet,
                env=dict(environment), pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip

    def tell(self, kind: str, command: Sequence[str], environment: Mapping[str, str], outputs: Sequence[int]) -> None:
        """Make it a worker: its program, its variables, its standard output and standard error."""
        told = {
            "kind": kind,
            "command": list(command),
            "environment": {**environment, "SBP_LIFE_LINE": self.life_line},
            "directory": os.getcwd(),
        }
        socket.send_fds(self.line, [json.dumps(told).encode() + b"\n"], list(outputs))

    def is_there(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def dismiss(self) -> None:
        """End a process that is not needed."""
        self.line.close()
        end_group(self.process.pid, signal.SIGKILL)
        self.process.wait()


def end_group(pid: int, number: int) -> None:
    """A signal to a process and all of its group."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS says the second of a group of zombies.
        pass


@dataclass(slots=True)
class Worker:
    """A process of a generation. Its exit is looked at and left: its number and its group stay ours until ``reap``."""

    rank: int
    local_rank: int
    slot: int
    child: Child
    heartbeat_fd: int
    code: int | None = None
    """Its exit code, negative for a signal; None while it runs."""
    stopped: bool = False
    """SIGSTOP, or a debugger."""
    beat: Heartbeat = field(default_factory=Heartbeat)
    changed_at: float = 0.0
    """When its heartbeat changed, or it was stopped, in the launcher's waking seconds."""

    @property
    def pid(self) -> int:
        """The process's number."""
        return self.child.process.pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.code is None

    def look(self, at: float) -> None:
        """See whether it has ended or stopped, and its heartbeat."""
        if self.code is not None:
            return
        self._read_heartbeat(at)
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        was_stopped, self.stopped = (
            self.stopped,
            found is not None and found.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED),
        )
        if self.stopped and not was_stopped:
            self.changed_at = at
        if found is not None and not self.stopped:
            self.code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            self._read_heartbeat(at)

    def _read_heartbeat(self, at: float) -> None:
        beat = parse_heartbeat(os.pread(self.heartbeat_fd, _RECORD_BYTES, 0))
        if beat.count != self.beat.count:
            self.beat, self.changed_at = beat, at

    def signal(self, number: int, group: bool = False) -> None:
        """Pass on a signal to the process, or to its whole group."""
        if group:
            end_group(self.pid, number)
        elif self.code is None:
            os.kill(self.pid, number)

    def say_end(self) -> None:
        """Over the life line: leave now. It arrives although the process waits for others inside XLA."""
        try:
            self.child.line.send(END, socket.MSG_DONTWAIT)
        except OSError:
            pass

    def reap(self) -> None:
        """Give up the process's number, when nothing of its group is left to be ended."""
        self.child.line.close()
        if self.code is not None:
            self.child.process.wait()
        os.close(self.heartbeat_fd)

    def ending(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return "runs"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        return f"was killed by {signal_name(-self.code)}"

    def where(self) -> str:
        """At which step it was, if it has said so."""
        return "" if self.beat.step is None else f" at step {self.beat.step}"


def signal_name(number: int) -> str:
    """SIGTERM for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_code(code: int) -> int:
    """As a shell has it: 128 + the signal."""
    return 128 - code if code < 0 else code
