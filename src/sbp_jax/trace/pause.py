"""Without the garbage collector: a large program is millions of objects that all stay, looked at in vain."""

import contextlib
import gc
import threading
from collections.abc import Iterator

# The collector is the process's. It stays paused until the last block of any thread ends.
_lock = threading.Lock()
_open_blocks = 0
_was_running = False


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, if it runs (about a fifth of tracing and planning a large model)."""
    global _open_blocks, _was_running
    with _lock:
        if not _open_blocks:
            _was_running = gc.isenabled()
            gc.disable()
        _open_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if not _open_blocks and _was_running:
                gc.enable()
