"""The start of JAX's devices in a run of several processes: it waits for all of them, here with a limit."""

import threading
import time

import jax

from .._compat import backends_are_started, coordination_client
from ..errors import ProcessError
from .store import store

_LOOK_SECONDS = 0.5


def start_devices(timeout_seconds: float) -> None:
    """Start JAX's devices, which begin together in all processes. Does nothing where they have started.

    JAX itself waits for minutes for a process that has ended before it used JAX, and then ends this one.

    Raises ``ProcessError`` naming processes that have ended; or without names, if some process has not used JAX within
    the limit.
    """
    if backends_are_started() or coordination_client() is None:
        return
    failed: list[BaseException] = []

    def start() -> None:
        try:
            jax.devices()
        except BaseException as error:  # Raised where it was asked for, below.
            failed.append(error)

    thread = threading.Thread(target=start, name="sbp devices", daemon=True)
    thread.start()
    end = time.monotonic() + timeout_seconds
    while True:
        thread.join(min(_LOOK_SECONDS, max(0.0, end - time.monotonic())))
        if not thread.is_alive():
            break
        here = store()
        ended = {rank: how for rank, how in here.ended().items() if rank != here.rank}
        if ended:
            told = ", ".join(f"rank {rank} {how}" for rank, how in sorted(ended.items()))
            raise ProcessError(
                f"rank {here.rank} cannot start its devices, which begin together in all processes: {told}"
            )
        if time.monotonic() >= end:
            raise ProcessError(
                f"rank {here.rank} could not start its devices within {timeout_seconds:g} s: they begin together in "
                f"all {here.size} processes, and some process has not used JAX yet"
            )
    if failed:
        raise failed[0]
