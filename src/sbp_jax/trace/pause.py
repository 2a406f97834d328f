"""Without the garbage collector: a large program is millions of objects that all stay, looked at in vain."""

import contextlib
import gc
import threading
from collections.abc import Iterator

# The collector is the process's. It stays paused until the last block of any thread ends.
_lock = threading.Lock()
_open_blocks = 0
_was_running = False
# So many new objects are old at once: young, each collection would look at all of them (gpt3: 0.7 of 9 s).
_MANY = 500_000


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
                if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
                    gc.freeze()
                    gc.unfreeze()  # they come back as the oldest generation
                gc.enable()
