"""How far hosts may run ahead of devices: on simulated ones not at all."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import jax

# Half of the programs that a device takes: others, of plain JAX, may be under way too.
_AT_ONCE = threading.Semaphore(16)
_TURN_SECONDS = 5.0
_own = threading.local()


def cannot_run_ahead(devices: Iterable[Any]) -> bool:
    """Whether a program of these devices must end before the host starts the next.

    So on several devices of a CPU (JAX 0.10 to 0.12). A device takes 32 programs at a time, and what would start one
    more waits for its turn in a thread of the pool that the programs need. Once hosts are so far ahead no thread may be
    left for the programs that they wait for, and all wait for ever: where several threads start programs, and before
    JAX 0.12 where one starts some with collectives (8 devices in one process, or 2 in each of 4, on 2 cores).
    """
    first, *others = devices
    return bool(others) and first.platform == "cpu"


def to_its_end(program: Callable[..., Any], *arguments: Any) -> Any:
    """The results of a program on devices that hosts cannot run ahead of, when they are there.

    16 threads at a time: each has one program under way. Who has waited 5 s goes on, for a program may be waiting for
    it: a host callback that runs another one.
    """
    if getattr(_own, "has_turn", False):  # Traced by a program that is under way.
        return jax.block_until_ready(program(*arguments))
    _own.has_turn = _AT_ONCE.acquire(timeout=_TURN_SECONDS)
    try:
        return jax.block_until_ready(program(*arguments))
    finally:
        if _own.has_turn:
            _own.has_turn = False
            _AT_ONCE.release()
