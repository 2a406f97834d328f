"""What a step does when: what each node of a plan runs, its loops, the bytes held. Enough to simulate a step from.

Positions are indices of the program's nodes in the order they run. What a loop's boundary reads is needed before the
loop's first node, what it hands out is made at its last.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of a node on one device: what it is called, seconds, floating-point operations.

    Ops decided together are one ``Cost``, at the first of them.
    """

    label: str
    seconds: float
    flops: float


@dataclass(frozen=True, slots=True)
class Loop:
    """Nodes ``first`` to ``last`` run ``trips`` times for each run of what is around them.

    ``parent`` is the index of the loop it is in, -1 for none; it comes before its children.
    """

    first: int
    last: int
    trips: float
    label: str
    parent: int = -1


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step: ``runs`` are (node, index into ``costs``), in order; ``memory`` is (node, bytes a device holds from
    there on)."""

    costs: tuple[Cost, ...] = ()
    runs: tuple[tuple[int, int], ...] = ()
    loops: tuple[Loop, ...] = ()
    memory: tuple[tuple[int, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; strings once each, runs as columns."""
        labels: dict[str, int] = {}

        def number(label: str) -> int:
            return labels.setdefault(label, len(labels))

        return {
            "costs": [[number(c.label), c.seconds, c.flops] for c in self.costs],
            "loops": [[loop.first, loop.last, loop.trips, number(loop.label), loop.parent] for loop in self.loops],
            "run_nodes": [node for node, _ in self.runs],
            "run_costs": [cost for _, cost in self.runs],
            "memory_nodes": [node for node, _ in self.memory],
            "memory_bytes": [held for _, held in self.memory],
            "labels": list(labels),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Timeline":
        """What ``to_json`` wrote. Missing or misshapen parts raise ``KeyError``, ``TypeError`` or ``ValueError``."""
        labels = data["labels"]
        return cls(
            tuple(Cost(labels[label], seconds, flops) for label, seconds, flops in data["costs"]),
            tuple(zip(data["run_nodes"], data["run_costs"], strict=True)),
            tuple(Loop(first, last, trips, labels[x], parent) for first, last, trips, x, parent in data["loops"]),
            tuple(zip(data["memory_nodes"], data["memory_bytes"], strict=True)),
        )
