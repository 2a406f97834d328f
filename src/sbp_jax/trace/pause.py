"""Without the garbage collector: a large program is millions of objects that all stay, looked at in vain."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, if it runs (about a fifth of tracing and planning a large model)."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
