"""A stage while a step runs: what it holds, and how one of its parts takes that and leaves its results.

What a micro-batch's part makes for another (``Made``) travels as a message; what the stage keeps over the step (its
arguments, what was made before the loop, its sums) lies here, and belongs to the thread that runs the stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ..programs.slots import Slot, StagePart, StageParts


@dataclass(slots=True)
class Made:
    """What a part made of one micro-batch: by port what leaves the stage, by variable what its later parts need.

    ``is_own``: made by the stage itself, so that its ports are results, not arguments. ``pending`` is all that must be
    there before it counts as made.
    """

    leaves: dict[int, Any] = field(default_factory=dict)
    residuals: dict[Any, Any] = field(default_factory=dict)
    is_own: bool = False
    pending: list[Any] | None = None


def wait(made: Made) -> None:
    """Until it is made."""
    jax.block_until_ready(made.pending)
    made.pending = None


@dataclass(slots=True)
class StageRun:
    """One stage in one step. ``ports`` are its arguments by port, ``results`` what it gave by port."""

    parts: StageParts
    count: int
    ports: dict[int, Any] = field(default_factory=dict)
    held: dict[Any, Any] = field(default_factory=dict)
    sums: dict[int, Any] = field(default_factory=dict)
    stacks: dict[int, list[Any]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)

    def begin(self) -> None:
        """What is made before the micro-batches, of the arguments."""
        self.once(self.parts.before)

    def finish(self) -> None:
        """What is to be done when all micro-batches have run."""

    def once(self, part: StagePart) -> None:
        """Run a part that is before or after the loop."""
        self.keep(part, part.function(*(self.find(slot, {}, {}, 0) for slot in part.takes)), 0, None)

    def micro_batch(
        self, part: StagePart, number: int, arrived: Mapping[int, Any], residuals: Mapping[Any, Any]
    ) -> Made:
        """Run a part of the loop for micro-batch ``number``; ``arrived`` by port."""
        made = Made(is_own=True)
        found = part.function(*(self.find(slot, arrived, residuals, number) for slot in part.takes))
        self.keep(part, found, number, made)
        made.pending = list(found)
        return made

    def constant(self, port: int) -> Any:
        """An array written in the program, on the stage's devices; moved there once."""
        if port not in self.constants:
            x = self.parts.source.program.constants[self.parts.source.takes[port].key]
            self.constants[port] = moved(x, self.parts.shardings[port])
        return self.constants[port]

    def add(self, other: "StageRun") -> None:
        """The sums, and the collected parts, of the same stage on other devices."""
        for j, x in other.sums.items():
            self.sums[j] = self.parts.join(j, self.sums[j], moved(x, self.sums[j].sharding))
        for j, theirs in other.stacks.items():
            mine = self.stacks.setdefault(j, [None] * self.count)
            for k, x in enumerate(theirs):
                if x is not None:
                    mine[k] = moved(x, self.parts.own)

    def clear(self) -> None:
        """Let go of a step's arrays."""
        for kept in (self.ports, self.held, self.sums, self.stacks, self.results):
            kept.clear()

    def find(self, slot: Slot, arrived: Mapping[int, Any], residuals: Mapping[Any, Any], number: int) -> Any:
        """An operand."""
        if slot.kind == "port":
            if slot.key in arrived:
                return arrived[slot.key]
            kind = self.parts.source.takes[slot.key].kind
            return np.int32(number) if kind == "number" else self.ports[slot.key]
        if slot.kind == "residual":
            return residuals[slot.key]
        return {"held": self.held, "sum": self.sums, "stack": self.stacks}[slot.kind][slot.key]

    def keep(self, part: StagePart, found: Sequence[Any], number: int, made: Made | None) -> None:
        """Put results where later parts find them."""
        for slot, x in zip(part.gives, found, strict=True):
            if slot.kind == "held":
                self.held[slot.key] = x
            elif slot.kind == "sum":
                self.sums[slot.key] = x
            elif slot.kind == "stack":
                self.stacks.setdefault(slot.key, [None] * self.count)[number] = x
            elif slot.kind == "residual" and made is not None:
                made.residuals[slot.key] = x
            elif made is not None:
                made.leaves[slot.key] = x
            else:
                self.results[slot.key] = x


def moved(x: Any, to: Any) -> jax.Array:
    """An array on other devices, or in another sharding."""
    return x if getattr(x, "sharding", None) == to else jax.device_put(x, to)


def part_of(x: Any, dim: int, count: int, number: int) -> Any:
    """One micro-batch's part of a batch that is on the host or on devices; all of it where no ``dim`` (-1) is cut."""
    if dim < 0:
        return x
    length = x.shape[dim] // count
    where = (slice(None),) * dim + (slice(number * length, (number + 1) * length),)
    return x[where]
