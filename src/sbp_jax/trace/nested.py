"""Planned functions in planned functions: the outer one is planned whole, with the inner ones' code in it."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_planned = ContextVar("planned", default=False)


@contextlib.contextmanager
def planned_here() -> Iterator[None]:
    """A block in which a function is traced to be planned."""
    token = _planned.set(True)
    try:
        yield
    finally:
        _planned.reset(token)


def is_planned_here() -> bool:
    """Whether what is traced here is going to be planned."""
    return _planned.get()
