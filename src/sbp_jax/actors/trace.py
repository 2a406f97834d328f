"""A run in the Trace Event Format, which Perfetto and Chrome open.

The format: "Trace Event Format" (Google, 2016): complete events (``ph`` X) with ``ts`` and ``dur`` in microseconds,
counters (C), names of processes and threads as metadata (M).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .span import FINISHED, Slice

_PID = 1
_MICROSECONDS = 1e6


def to_json(
    pieces: Mapping[str, Sequence[Slice]],
    lanes: Mapping[str, Sequence[str]],
    in_use: Mapping[str, Sequence[tuple[float, int]]],
) -> dict[str, Any]:
    """The trace as plain data: by lane its pieces of time as a track; by actor its registers in use as a counter."""
    events: list[dict[str, Any]] = [_metadata("process_name", 0, name="actors")]
    for tid, lane in enumerate(lanes):
        events += [_metadata("thread_name", tid, name=lane), _metadata("thread_sort_index", tid, sort_index=tid)]
    for tid, lane in enumerate(lanes):
        events += (_event(tid, piece) for piece in pieces[lane])
        for actor in lanes[lane]:
            events += (
                {"name": f"registers of {actor}", "ph": "C", "pid": _PID, "tid": tid, "ts": at * _MICROSECONDS,
                 "args": {"in use": n}}
                for at, n in in_use[actor]
            )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(tid: int, piece: Slice) -> dict[str, Any]:
    return {
        "name": f"{piece.actor}[{piece.index}]" if piece.is_busy else piece.category, "cat": piece.category, "ph": "X",
        "pid": _PID, "tid": tid, "ts": piece.start_seconds * _MICROSECONDS,
        "dur": (piece.end_seconds - piece.start_seconds) * _MICROSECONDS,
        "args": {} if piece.category == FINISHED else {"actor": piece.actor, "index": piece.index},
    }  # fmt: skip


def _metadata(what: str, tid: int, **arguments: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PID, "tid": tid, "ts": 0, "args": arguments}
