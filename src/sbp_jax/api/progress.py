"""Shows on a terminal what takes long; says nothing anywhere else."""

import threading
from types import TracebackType

from rich.console import Console

_PATIENCE_SECONDS = 1.0


class Progress:
    """Call it with what is being done; after a second a spinner appears, if there is a terminal to see it."""

    def __init__(self, what: str, is_shown: bool = True) -> None:
        self.what, self._is_shown = what, is_shown
        self._console = Console(stderr=True)
        self._status = self._console.status(f"planning {what}")
        self._timer = threading.Timer(_PATIENCE_SECONDS, self._status.start)
        self._timer.daemon = True

    def __enter__(self) -> "Progress":
        if self._is_shown and self._console.is_terminal:
            self._timer.start()
        return self

    def __call__(self, doing: str) -> None:
        self._status.update(f"planning {self.what}: {doing}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._status.stop()
