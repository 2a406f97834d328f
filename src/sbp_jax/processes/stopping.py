"""Stopping together: after SIGTERM to any process, all stop before the same step.

A process that has begun step 12 cannot stop before step 11. So all of them say which step they have begun last, and
stop before the one after the latest. They say so from threads, while ``should_stop`` waits: a process inside a step
may need the others in order to get to its end.
"""

import atexit
import operator
import queue
import signal
import threading
from typing import NoReturn

from ..errors import ProcessError
from ..run_dir import EXIT_STOPPED
from . import launched
from .start import shutdown
from .store import Store, store

_FOLDER = "stopping/asked by"
_LISTEN_SECONDS = 0.5
AGREE_SECONDS = 60.0
"""How long the processes may take to say where they are."""


class _Stopping:
    """Whether, and before which step, this run is to stop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = threading.Lock()
        self.begun: int | None = None
        self.stop_at: float | None = None
        self.error: ProcessError | None = None
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()  # Its put() may be called in a signal's handler.
        self._closed = threading.Event()
        threading.Thread(target=self._announce, name="sbp stopping: ask", daemon=True).start()
        self._listener = threading.Thread(target=self._listen, name="sbp stopping: listen", daemon=True)
        self._listener.start()
        atexit.register(self.close)

    def ask(self) -> None:
        """Ask all processes to stop."""
        self._asked.put(None)

    def close(self) -> None:
        """End the listening. A thread inside a call of the store when Python ends would abort the process."""
        self._closed.set()
        self._listener.join(5.0)

    def reached(self, step: int) -> bool:
        with self.lock:  # Held while the processes agree.
            if self.error is not None:
                raise self.error
            if self.stop_at is None:
                self.begun = step
                return False
            return step >= self.stop_at

    def _announce(self) -> None:
        self._asked.get()
        try:
            self.store.set(f"{_FOLDER}/{self.store.rank}", str(self.store.rank))
        except ProcessError as error:
            self.error = error

    def _listen(self) -> None:
        try:
            while not self.store.entries(_FOLDER):
                if self._closed.wait(_LISTEN_SECONDS):
                    return
        except ProcessError:  # The run ends otherwise.
            return
        with self.lock:
            try:
                begun = self.store.gather("to stop before a common step", str(self.begun), AGREE_SECONDS)
            except ProcessError as error:
                self.error = error
                return
            self.stop_at = max((int(text) + 1 for text in begun if text != "None"), default=float("-inf"))


_stopping: list[_Stopping] = []


def should_stop(step: int) -> bool:
    """Whether all processes are to save their state now, before ``step``, and leave. To be asked before each step.

    SIGTERM to one process is enough: from the launcher, or from a scheduler that ends the job (pre-emption). Then this
    gives True in every process before the same step, at the earliest the one after the latest that any has begun.
    A process that asks this is no longer ended by SIGTERM itself. It is a heartbeat, too (see ``heartbeat``).

    Args:
      step: the step about to begin. All processes ask with the same numbers, in the same order.

    Raises:
      ProcessError: the processes did not agree within a minute; says which did not answer.
    """
    step = operator.index(step)
    if not _stopping:
        _stopping.append(_Stopping(store()))
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGTERM)
            # A handler of the program's own stays: it may call `ask_to_stop`.
            if before in (signal.SIG_DFL, None, launched.on_terminate):
                launched.tell_on_terminate(_stopping[0].ask)
                signal.signal(signal.SIGTERM, launched.on_terminate)
    stops = _stopping[0].reached(step)
    if stops:
        launched.say_stopping(step)
    else:
        launched.heartbeat(step)
    return stops


def ask_to_stop() -> None:
    """Ask all processes to stop before a common step, as SIGTERM does: ``should_stop`` will say so to each of them."""
    if not _stopping:
        _stopping.append(_Stopping(store()))
    _stopping[0].ask()


def leave(timeout_seconds: float = 60.0) -> NoReturn:
    """End this process after ``should_stop``, when its state is saved: waits for the others, then exits with code 75.

    The launcher, SLURM (``RequeueExit=75``) or Kubernetes (a failure policy on the code) can tell from it that the job
    is to be started again, and has not failed.

    Raises:
      ProcessError: another process did not come within ``timeout_seconds``; says which.
      SystemExit: with code ``EXIT_STOPPED``, to end the process.
    """
    store().barrier("to leave together", timeout_seconds)
    for stopping in _stopping:
        stopping.close()
    shutdown()
    raise SystemExit(EXIT_STOPPED)
