"""The jitted parts of a stage as data: what each takes and gives, by slot."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from ...plan import PlanData
from ...signature import Signature, Split
from .stage_program import StageProgram

WITH_EVERY_PART = {"part", "number"}
"""The kinds of arguments that come with every micro-batch."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a part's operand comes from, or its result goes.

    ``kind``: "port" (an argument or result of the stage, by number), "held" (made by the part before the loop),
    "sum" (a number of what the loop carries), "residual" (of this micro-batch), "stack" (all micro-batches' parts, by
    the number of what the loop collects). ``key`` is the number, or the variable.
    """

    kind: str
    key: Any


@dataclass(frozen=True, slots=True)
class Result:
    """Something that a part gives: which variable, and ``of`` it the array with ``spec``."""

    slot: Slot
    value: Any
    spec: PartitionSpec
    of: Callable[[Any], Any]


@dataclass(slots=True)
class StagePart:
    """One jitted part: its operands and results by slot, in order. ``shapes`` are those of its operands.

    ``local`` is the same on one device's pieces, inside a ``shard_map``; ``specs`` say how its results lie.
    """

    name: str
    takes: list[Slot]
    gives: list[Slot]
    function: Any
    shapes: list[Any] = field(default_factory=list)
    local: Callable[..., list[Any]] = lambda: []
    specs: list[PartitionSpec] = field(default_factory=list)
    effects: frozenset[Any] = frozenset()

    def lowered(self) -> Any:
        """As ``jax.jit(...).lower``, under the settings of the caller's thread."""
        return self.function.lower(*self.shapes)


@dataclass(slots=True)
class StageParts:
    """All parts of a stage. ``backward`` is one part, or two: activations' gradients, weights' gradients.

    ``after`` is by level. ``shardings`` say how each of the stage's
    arguments arrives (of a part of every micro-batch: that of one part), ``own`` how what devices keep for themselves
    lies. ``join`` adds two of the loop's sums, given its number. ``leaves`` are the signatures of what leaves with
    every micro-batch, by result.
    """

    source: StageProgram
    plan: PlanData
    before: StagePart
    forward: StagePart
    backward: list[StagePart]
    after: list[StagePart]
    shardings: dict[int, NamedSharding]
    own: NamedSharding
    join: Callable[[int, Any, Any], Any]
    leaves: dict[int, Signature] = field(default_factory=dict)
    updates: "UpdateParts | None" = None

    @property
    def all(self) -> list[StagePart]:
        """Its parts, in the order that they run in."""
        updates = [] if self.updates is None else self.updates.all
        return [self.before, self.forward, *self.backward, *updates, *self.after]

    def arrives(self, port: int) -> Signature:
        """How an argument lies on the stage's devices; of a part of every micro-batch, one part."""
        whole = self.plan.inputs[port].signature
        return part_of(whole) if self.source.takes[port].kind in WITH_EVERY_PART else whole


@dataclass(slots=True)
class UpdateParts:
    """What a stage has besides where it updates its weights between micro-batches.

    ``update`` gives the new state, ``start`` what sums begin with (None for a stage without a loop). ``replaced`` is by
    number of an argument the number of the result that replaces it; ``count`` how often it does so in a step.
    """

    update: StagePart
    start: StagePart | None
    replaced: dict[int, int]
    count: int

    @property
    def all(self) -> list[StagePart]:
        """Its parts."""
        return [self.update] if self.start is None else [self.start, self.update]


def part_of(stack: Signature) -> Signature:
    """The signature of one slice of a stack."""
    return Signature(tuple(Split(c.dim - 1) if isinstance(c, Split) else c for c in stack))
