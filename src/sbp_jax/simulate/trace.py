"""A simulated step in the Trace Event Format, which Perfetto and Chrome open.

The format: "Trace Event Format" (Google, 2016): complete events (``ph`` X) with ``ts`` and ``dur`` in microseconds,
counters (C), names of processes and threads as metadata (M).
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PlanError

if TYPE_CHECKING:
    from .result import Simulation

_PID = 1
_MICROSECONDS = 1e6


def to_json(simulation: "Simulation") -> dict[str, Any]:
    """The trace as plain data: a track for compute, one for each level of links, held bytes as a counter."""
    tracks = ["compute", *sorted(simulation.communication_seconds)]
    events: list[dict[str, Any]] = [
        _name(
            "process_name", 0, f"{simulation.function}: one of {simulation.devices} {simulation.cluster.name} devices"
        ),
        *(_name("thread_name", tid, track) for tid, track in enumerate(tracks)),
        *(
            {"name": "thread_sort_index", "ph": "M", "pid": _PID, "tid": tid, "ts": 0, "args": {"sort_index": tid}}
            for tid in range(len(tracks))
        ),
    ]
    for e in sorted(simulation.events, key=lambda e: (e.track, e.start_seconds)):
        amounts = {"bytes": e.bytes, "flops": e.flops, "iterations": e.count if e.count > 1 else 0}
        arguments = {key: x for key, x in amounts.items() if x} | ({"detail": e.detail} if e.detail else {})
        events.append({
            "name": e.name, "cat": "compute" if e.track == "compute" else "communication", "ph": "X", "pid": _PID,
            "tid": tracks.index(e.track), "ts": e.start_seconds * _MICROSECONDS, "dur": e.seconds * _MICROSECONDS,
            "args": arguments,
        })  # fmt: skip
    events += (
        {"name": "memory held", "ph": "C", "pid": _PID, "tid": 0, "ts": at * _MICROSECONDS, "args": {"bytes": held}}
        for at, held in simulation.memory
    )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save(simulation: "Simulation", path: str | Path) -> None:
    """Write the trace."""
    try:
        Path(path).write_text(json.dumps(to_json(simulation), separators=(",", ":")))
    except OSError as error:
        raise PlanError(f"cannot write the trace to {str(path)!r}: {error.strerror}") from error


def _name(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PID, "tid": tid, "ts": 0, "args": {"name": name}}
