"""Processes that wait with JAX imported, so that a restart need not wait for imports."""

from collections.abc import Iterable, Mapping

from .worker import Child


class Spares:
    """A supply of started, untold processes. Each costs the memory of its imports and, once imported, no time."""

    def __init__(self, wanted: int, environment: Mapping[str, str]) -> None:
        self._wanted = wanted
        self._environment = environment
        self._waiting: list[Child] = []

    @property
    def missing(self) -> int:
        """How many more are wanted."""
        return self._wanted - len(self._waiting)

    def prepare(self, preload: Iterable[str]) -> None:
        """Start those that are missing."""
        while self.missing > 0:
            self._waiting.append(Child(self._environment, tuple(preload)))

    def take(self) -> Child:
        """One that waits, or a new one."""
        while self._waiting:
            child = self._waiting.pop(0)
            if child.is_there():
                return child
            child.line.close()  # It has ended by itself.
        return Child(self._environment)

    def dismiss(self) -> None:
        """End all of them."""
        while self._waiting:
            self._waiting.pop().dismiss()
