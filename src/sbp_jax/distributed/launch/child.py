"""What the launcher starts: waits to be told who it is, then becomes that worker.

Run as a file, with the standard library alone, so that a worker is there in some 30 ms. A spare imports modules while
it waits. What it is told comes over a Unix socket that it has inherited: a line of JSON, and the descriptors of its
output. The socket stays open as the life line (``processes/launched.py``).
"""

import sys

# The folder of this file must not be where the worker's imports are looked for.
if not sys.flags.safe_path:
    sys.path.pop(0)

import json
import os
import signal
import socket
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Die with the launcher; wait to be told; become the worker."""
    line = socket.socket(fileno=int(sys.argv[1]))
    _die_with(int(sys.argv[2]))
    if len(sys.argv) > 3:
        _preload(sys.argv[3].split(","))
    told, descriptors = _receive(line)
    for target, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(told["environment"])
    if told["directory"] != os.getcwd():
        os.chdir(told["directory"])
    # A worker's own children must not hold it open. A program of its own keeps it: it may run Python later.
    life_line = line.detach()
    os.set_inheritable(life_line, told["kind"] == "program")
    _become(told["kind"], told["command"])


def _die_with(launcher: int) -> None:
    """Ask the kernel to kill this process when the launcher ends, however it ends."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # It ended before we asked.
        os._exit(1)


def _preload(modules: list[str]) -> None:
    """Import what the worker will need. What cannot be imported now fails in the worker, where it can be seen."""
    import importlib

    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            continue


def _receive(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Who we are. A launcher that goes away, or has no use for us, closes the socket."""
    data, descriptors = b"", []
    while not data.endswith(b"\n"):
        part, came, _, _ = socket.recv_fds(line, 1 << 16, 2)
        if not part:
            os._exit(0)
        data += part
        descriptors += came
    return json.loads(data), descriptors


def _become(kind: str, command: list[str]) -> None:
    if kind == "program":
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"cannot run {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    import runpy

    sys.argv[:] = command
    try:
        if kind == "module":
            if not sys.flags.safe_path:
                sys.path.insert(0, os.getcwd())
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        else:
            if not sys.flags.safe_path:
                sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as stop:
        _leave(stop)
    except BaseException as error:
        error = error.with_traceback(_own_frames(error))
        sys.excepthook(type(error), error, error.__traceback__)
        # Python's own code for an interrupt, and for everything else.
        _leave(SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1))


def _leave(stop: SystemExit) -> None:
    """End as Python does, but with an error at once: the others must not wait for us in JAX's exit barrier."""
    code = stop.code
    if code is None or code == 0:
        raise stop
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    if "jax" not in sys.modules:
        raise SystemExit(code)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(code & 0xFF)


def _own_frames(error: BaseException) -> Any:
    """The traceback from the script on: our frames and runpy's say nothing."""
    frame = error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if name != __file__ and "runpy" not in name:
            return frame
        frame = frame.tb_next
    return error.__traceback__


main()
