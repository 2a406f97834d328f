"""How a process leaves a run: announced, with a limit on waiting for the others, and at once if it failed.

JAX alone makes every process that ends, by an exception too, wait for all others in an exit barrier of 300 s, and ends
all of them if it runs out.
"""

import atexit
import os
import sys
import time
from types import TracebackType
from typing import Any

from .._compat import abandon_coordination, coordination_client
from ..errors import ProcessError
from .store import Store, store

_PATIENCE_SECONDS = 5.0  # before a wait at the end is told of

_GRACE_SECONDS = 3.0
_LAST_SECONDS = 1.0  # for those that have said that they end, and are about to

_failed: list[bool] = []
_installed: list[float] = []


def watch(limit_seconds: float) -> None:
    """From now on this process leaves the run in order. Once, after it has been connected."""
    if not _installed:
        previous = sys.excepthook
        sys.excepthook = lambda *error: _fail(previous, *error)
        atexit.register(_leave)  # Later than JAX's, so it runs before: JAX's own barrier then waits for nobody.
    _installed[:] = [limit_seconds]


def forget() -> None:
    """The process was disconnected: there is nothing left to leave."""
    _failed.clear()


def _fail(previous: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """``sys.excepthook``: the others are told what ended this process."""
    previous(kind, error, trace)
    if coordination_client() is None or issubclass(kind, KeyboardInterrupt):
        return
    _failed.append(True)
    text = f"{kind.__name__}: {error}".replace("\n", " ")
    try:
        store().end(f"failed with {text[:500]}")
    except ProcessError:  # The coordinator is gone as well.
        pass


def _leave() -> None:
    """At exit: wait for the others within the limit, then let JAX disconnect; without waiting if this one failed."""
    if coordination_client() is None:
        return
    try:
        if _failed or not _all_leave(store(), _installed[0]):
            _let_others_speak(store())
            abandon_coordination()
    except ProcessError:
        abandon_coordination()
    if _failed:
        _end_at_once()


def _end_at_once() -> None:
    """As Python ends, without waiting for threads that are inside JAX: they may wait for the other processes."""
    atexit.unregister(_leave)
    rest = getattr(atexit, "_run_exitfuncs", None)
    if rest is not None:
        rest()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(1)


def _let_others_speak(here: Store) -> None:
    """Rank 0 takes the coordinator with it, and JAX then ends the others at once: time for their own errors first."""
    end = time.monotonic() + _GRACE_SECONDS
    while here.rank == 0 and len(here.ended()) < here.size and time.monotonic() < end:
        time.sleep(0.05)
    if here.rank == 0:
        time.sleep(_LAST_SECONDS)


def _all_leave(here: Store, limit_seconds: float) -> bool:
    """Whether all processes have ended within the limit."""
    here.end("has ended")
    begin, told = time.monotonic(), False
    while True:
        ended = here.ended()
        running = [rank for rank in range(here.size) if rank not in ended]
        if not running:
            return True
        passed = time.monotonic() - begin
        who = f"rank {running[0]}" if len(running) == 1 else f"ranks {', '.join(map(str, running))}"
        if passed > limit_seconds or any("failed" in text for text in ended.values()):
            print(f"sbp_jax: rank {here.rank} has ended, and {who} had not {passed:.0f} s later", file=sys.stderr)
            return False
        if passed > _PATIENCE_SECONDS and not told:
            told = True
            print(
                f"sbp_jax: rank {here.rank} has ended, and waits up to {limit_seconds:g} s for {who} "
                "(initialize(shutdown_timeout_seconds=))",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(0.01 if passed < 1 else 0.1)
