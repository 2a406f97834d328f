"""Before a collective between processes: all of them say what they are about to call, and stop if they differ.

Without this a process whose partners call something else, or nothing, waits in the device's collective for ever.
"""

import threading
import time

from ..errors import ProcessError, SbpError
from ..processes import store

_lock = threading.RLock()
_calls: dict[tuple[int, ...], int] = {}

# How long a process waits for the same call of the others, before it asks what they call.
_QUICKLY_SECONDS = 1.0
# A text that begins so is the error of a process that cannot take part.
_ERROR = "!"


def lock() -> threading.RLock:
    """Held over a collective's check and its start, so that two threads' calls do not mix."""
    return _lock  # type: ignore[return-value]


def agree(call: str, processes: tuple[int, ...], timeout_seconds: float, error: SbpError | None = None) -> None:
    """All ``processes`` (this one among them) are about to make this call; ``error``: this one cannot.

    Raises ``ProcessError`` on all that came: naming those that do not come within the limit, the first difference, or
    the error of another process. ``error`` itself is raised where it happened.
    """
    number = _calls[processes] = _calls.get(processes, 0) + 1
    who, here, began = f"the collectives of processes {', '.join(map(str, processes))}", store(), time.monotonic()
    if error is not None:
        here.differs(who)
    elif here.is_same(who, call, min(_QUICKLY_SECONDS, timeout_seconds), processes):
        return
    try:
        # All come to this at once: what is left of the limit is enough for that.
        waited = min(time.monotonic() - began, 0.5 * timeout_seconds)
        texts = here.gather(who, _ERROR + str(error) if error else call, timeout_seconds, processes, waited)
    except ProcessError as missing:
        raise ProcessError(f"{call} (collective number {number} of this process): {missing}") from None
    if error is not None:
        raise error
    for process, text in zip(processes, texts, strict=True):
        if text.startswith(_ERROR):
            raise ProcessError(f"{call}: process {process} cannot take part: {text[1:]}")
    first = texts[0]
    for process, text in zip(processes, texts, strict=True):
        if text != first:
            raise ProcessError(
                f"the processes differ in what they call (their collective number {number}): process {processes[0]} "
                f"calls {first}, process {process} calls {text}. All must make the same calls in the same order, with "
                "the same shapes, dtypes and options"
            )
