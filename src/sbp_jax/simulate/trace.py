"""A simulated step in the Trace Event Format, which Perfetto and Chrome open.

The format: "Trace Event Format" (Google, 2016): complete events (``ph`` X) with ``ts`` and ``dur`` in microseconds,
counters (C), names of processes and threads as metadata (M).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PlanError

_PID = 1
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Event:
    """Something that runs on a track ("compute", or a level of links) from ``start_seconds`` for ``seconds``.

    ``count`` > 1: iterations of a loop drawn as one; the track need not be busy all the while. ``node``: the program's
    node that is computed, -1 for what is none.
    """

    name: str
    track: str
    start_seconds: float
    seconds: float
    detail: str = ""
    bytes: float = 0.0
    flops: float = 0.0
    count: float = 1.0
    node: int = -1


def to_json(
    title: str, levels: Sequence[str], simulated: Sequence[Event], memory: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """The trace as plain data: a track for compute, one for each level of links, held bytes as a counter."""
    tracks = ["compute", *levels]
    events: list[dict[str, Any]] = [
        _name("process_name", 0, title),
        *(_name("thread_name", tid, track) for tid, track in enumerate(tracks)),
        *(
            {"name": "thread_sort_index", "ph": "M", "pid": _PID, "tid": tid, "ts": 0, "args": {"sort_index": tid}}
            for tid in range(len(tracks))
        ),
    ]
    for e in sorted(simulated, key=lambda e: (e.track, e.start_seconds)):
        amounts = {"bytes": e.bytes, "flops": e.flops, "iterations": e.count if e.count > 1 else 0}
        arguments = {key: x for key, x in amounts.items() if x} | ({"detail": e.detail} if e.detail else {})
        events.append({
            "name": e.name, "cat": "compute" if e.track == "compute" else "communication", "ph": "X", "pid": _PID,
            "tid": tracks.index(e.track), "ts": e.start_seconds * _MICROSECONDS, "dur": e.seconds * _MICROSECONDS,
            "args": arguments,
        })  # fmt: skip
    events += (
        {"name": "memory held", "ph": "C", "pid": _PID, "tid": 0, "ts": at * _MICROSECONDS, "args": {"bytes": held}}
        for at, held in memory
    )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save(path: str | Path, data: dict[str, Any]) -> None:
    """Write a trace."""
    try:
        Path(path).write_text(json.dumps(data, separators=(",", ":")))
    except OSError as error:
        raise PlanError(f"cannot write the trace to {str(path)!r}: {error.strerror}") from error


def _name(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PID, "tid": tid, "ts": 0, "args": {"name": name}}
