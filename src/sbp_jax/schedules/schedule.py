"""A pipeline schedule as data: which rank runs which task, in which order.

A model is cut into virtual stages, counted over the whole model from its input. A rank (a group of devices) runs one or
more of them. Each micro-batch goes through all stages forward, then backward.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What a task computes. The backward pass is either one task, or cut into two (arXiv 2401.10241, section 2)."""

    FORWARD = "F"
    # The whole backward pass.
    BACKWARD = "B"
    # Its two parts: the gradient of the stage's input, and that of its weights.
    INPUT = "I"
    WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class Task:
    """One micro-batch in one virtual stage; ``str()`` is as in ``F3@1``: forward, micro-batch 3, stage 1.

    Attributes:
        kind: forward, whole backward, or one of the backward pass's two parts.
        microbatch: which micro-batch, from 0.
        stage: which virtual stage, from 0 at the model's input.
        direction: which placement of the stages, for schedules that have two (Chimera); written as ``F3@1'``.
    """

    kind: Kind
    microbatch: int
    stage: int
    direction: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}@{self.stage}" + "'" * self.direction


@dataclass(frozen=True, slots=True)
class Value:
    """What one task gives to another: a stage's output, or the gradient of its input."""

    is_gradient: bool
    microbatch: int
    stage: int
    direction: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which rank runs which tasks in which order.

    Attributes:
        name: the schedule's name, as in ``by_name``.
        stages: how many virtual stages the model has.
        microbatches: how many micro-batches one step has.
        tasks: for each rank, its tasks in the order in which it runs them.
        placement: for each direction, the rank of each stage.
        routes: for each micro-batch, the direction that it takes.
        weight_versions: for each rank, how many versions of its weights it keeps.
        is_synchronous: whether a step computes what one device would: all micro-batches with the same weights, which
            are updated after all of them.
        update_every: how many micro-batches an update is made of; None: all of them, as in every synchronous schedule.
        update_delay: how many updates a micro-batch's weights are older than those that its own update changes, at
            every stage; None: it takes the newest that its stage has (see ``versions_used``).
    """

    name: str
    stages: int
    microbatches: int
    tasks: tuple[tuple[Task, ...], ...]
    placement: tuple[tuple[int, ...], ...]
    routes: tuple[int, ...]
    weight_versions: tuple[int, ...]
    is_synchronous: bool = True
    update_every: int | None = None
    update_delay: int | None = None

    @property
    def updates(self) -> int:
        """How often the weights are updated."""
        return self.microbatches // (self.update_every or self.microbatches)

    @property
    def ranks(self) -> int:
        """How many groups of devices there are."""
        return len(self.tasks)

    def rank_of(self, stage: int, direction: int = 0) -> int:
        """The rank that runs a stage of a direction."""
        return self.placement[direction][stage]

    def stages_of(self, rank: int) -> tuple[tuple[int, int], ...]:
        """The (direction, stage) pairs that a rank runs, whose weights it holds."""
        return tuple((d, s) for d, ranks in enumerate(self.placement) for s, r in enumerate(ranks) if r == rank)


def result(task: Task) -> Value | None:
    """What other tasks may wait for: the output of F, the input gradient of B and I; nothing waits for W."""
    if task.kind is Kind.WEIGHT:
        return None
    return Value(task.kind is not Kind.FORWARD, task.microbatch, task.stage, task.direction)


def needs(task: Task, stages: int) -> Iterator[Value]:
    """What must be there before ``task`` runs, in a model of so many stages.

    F needs the output of the stage before it; B and I the output of their own stage (with what was saved on the way)
    and the gradient from the stage after it; W the gradients that I of its own stage has passed through.
    """
    k, s, d = task.microbatch, task.stage, task.direction
    if task.kind is Kind.FORWARD:
        if s > 0:
            yield Value(False, k, s - 1, d)
    elif task.kind is Kind.WEIGHT:
        yield Value(True, k, s, d)
    else:
        yield Value(False, k, s, d)
        if s < stages - 1:
            yield Value(True, k, s + 1, d)


def held_in_order(tasks: tuple[Task, ...]) -> list[int]:
    """How many activations a rank holds while each of its tasks runs, one for each micro-batch in each stage.

    An activation is held from the start of its F to the end of its B, or of its W where the backward pass is split:
    W still needs the stage's saved inputs, and the gradients that I passes through. Papers count what is left between
    I and W as M_W, an activation as M_B >= M_W (arXiv 2401.10241, section 2); here both count as one.
    """
    held, found = 0, []
    for task in tasks:
        held += task.kind is Kind.FORWARD
        found.append(held)
        held -= task.kind in (Kind.BACKWARD, Kind.WEIGHT)
    return found


def peak_held(schedule: Schedule) -> tuple[int, ...]:
    """The most activations that each rank holds at once (see ``held_in_order``); it does not depend on times."""
    return tuple(max(held_in_order(tasks), default=0) for tasks in schedule.tasks)
