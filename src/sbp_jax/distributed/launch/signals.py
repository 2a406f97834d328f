"""Signals to the launcher, as events of its loop."""

import os
import signal
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Passed on, and no restart follows."""
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Collects signals; ``reading`` becomes readable when there is one, or a child has changed."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self._writing, False)
        self._came: list[int] = []
        self._before = {number: signal.signal(number, self._note) for number in (*STOPPING, *PASSED_ON, signal.SIGCHLD)}
        self._before_fd = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._came.append(number)

    def take(self) -> list[int]:
        """What has come since the last time."""
        try:
            while os.read(self.reading, 4096):
                pass
        except BlockingIOError:
            pass
        came, self._came = self._came, []
        return came

    def close(self) -> None:
        """As it was before."""
        signal.set_wakeup_fd(self._before_fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.reading)
        os.close(self._writing)
