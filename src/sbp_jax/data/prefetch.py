"""A generator run ahead of its consumer, in a thread of its own."""

import threading
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

# How long `stop` waits for an example that is being loaded. The thread ends after it in any case.
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


_END = object()


class Prefetcher:
    """Up to ``depth`` items of ``items``, made before they are asked for. 0: each is made when it is asked for.

    The thread keeps nothing alive but the generator, so whoever owns a prefetcher may be collected and stop it.
    """

    def __init__(self, items: Generator[Any, None, None], depth: int) -> None:
        self._items, self._depth = items, depth
        self._ready: deque[Any] = deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        if depth:
            # JAX's settings of a block (`with jax.enable_x64(True)`) are those of the thread that stands in it.
            wide = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
            self._thread = threading.Thread(target=self._run, args=(wide,), name="sbp.data", daemon=True)
            self._thread.start()

    def get(self) -> Any:
        """The next item. Raises ``StopIteration`` after the last one, and whatever making it raised."""
        if self._thread is None:
            return self._made()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_stopped)
            if not self._ready:
                raise StopIteration
            item = self._ready[0]
            if item is _END:
                raise StopIteration
            if isinstance(item, _Raised):
                raise item.error
            self._ready.popleft()
            self._changed.notify_all()
        return item

    def _made(self) -> Any:
        # A generator that has raised is at its end: what it raised must not look like the end of the data.
        if self._failure is not None:
            raise self._failure
        try:
            return next(self._items)
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = error
            raise

    def stop(self) -> None:
        """End the thread, and close the generator."""
        if self._thread is None:
            self._items.close()
            return
        with self._changed:
            self._is_stopped = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _run(self, wide: bool) -> None:
        try:
            with jax.enable_x64(wide):
                for item in self._items:
                    if not self._put(item):
                        break
                else:
                    self._put(_END)
        except BaseException as error:
            self._put(_Raised(error))
        finally:
            self._items.close()

    def _put(self, item: Any) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or len(self._ready) < self._depth)
            if self._is_stopped:
                return False
            self._ready.append(item)
            self._changed.notify_all()
        return True
