"""Which of the processes that run do not get on: hung, stopped, or left alone by one that ended too early."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...run_dir import EXIT_STOPPED, LEAVING, STEPPING
from .worker import Worker

EXIT_HUNG = 124
"""The launcher's exit code when the first failure is a process that hangs; `timeout` uses the same."""


class WakingClock:
    """Seconds during which this process ran: a job that its scheduler suspends for an hour has not hung."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._seconds = 0.0

    def __call__(self) -> float:
        """The waking seconds so far. To be asked several times a second."""
        now = time.monotonic()
        self._seconds += min(now - self._last, 2.0)
        self._last = now
        return self._seconds


@dataclass(frozen=True, slots=True)
class Failure:
    """The first process that failed, and what to say of it."""

    worker: Worker
    code: int
    reason: str


def hung(workers: Sequence[Worker], now: float, limit_seconds: float) -> Failure | None:
    """A process that is stopped, or makes no steps, for longer than the limit.

    When one hangs, the others wait for it and are silent as well: the one at the lowest step is named.
    """
    silent = [
        worker
        for worker in workers
        if worker.runs and now - worker.changed_at > limit_seconds and (worker.stopped or worker.beat.phase == STEPPING)
    ]
    if not silent:
        return None
    first = min(silent, key=lambda w: (not w.stopped, -1 if w.beat.step is None else w.beat.step, w.changed_at, w.rank))
    if first.stopped:
        return Failure(
            first, EXIT_HUNG, f"has been stopped (SIGSTOP) for {now - first.changed_at:.1f} s{first.where()}"
        )
    others = [w for w in silent if w is not first]
    waiting = f"; silent as well: {', '.join(f'rank {w.rank}{w.where()}' for w in others)}" if others else ""
    return Failure(
        first, EXIT_HUNG, f"has sent no heartbeat for {now - first.changed_at:.1f} s{first.where()}{waiting}"
    )


def left_too_early(workers: Sequence[Worker], now: float, limit_seconds: float) -> Failure | None:
    """A process that ended without an error while others, connected to it, cannot go on without it."""
    left = [w for w in workers if w.beat.phase == LEAVING or (w.code in (0, EXIT_STOPPED) and w.beat.phase)]
    # One that never sends heartbeats may do something of its own at the end, for as long as it likes.
    going = [w for w in workers if w.runs and w.beat.phase == STEPPING]
    if not left or not going:
        return None
    for worker in left:
        beyond = [
            w
            for w in going
            if w.beat.step is not None and worker.beat.step is not None and w.beat.step > worker.beat.step
        ]
        if beyond:
            return Failure(
                worker, 1, f"ended{worker.where()}, and rank {beyond[0].rank} is{beyond[0].where()}: too early"
            )
    since = max(w.changed_at for w in (*left, *going))
    if now - since <= limit_seconds:
        return None
    names = ", ".join(f"rank {w.rank}{w.where()}" for w in going)
    return Failure(
        left[0], 1, f"ended{left[0].where()}, and others have made no step since, for {now - since:.1f} s: {names}"
    )
