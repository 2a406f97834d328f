"""A pipeline's parts as a graph of actors, whose lanes follow the schedule.

A rank (a group of devices) is a lane, and runs its tasks in the order of the schedule. Between stages an actor
receives: it moves what leaves one stage to the devices of the other. What comes of the batch is loaded by an actor.
What a forward part makes stays in its register until its backward part has run: so the registers of forward parts are
the activations that a schedule promises to hold, and no more. Where weights are updated between micro-batches, ``U1``
is the update of stage 1, in its lane.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from ...actors import Actor, ActorGraph
from ...schedules import Kind, Schedule, Task
from ..programs.slots import StagePart, StageParts
from .stage_run import Made, StageRun, moved, part_of
from .stage_versions import VersionedRun, stage_runs

Instance = tuple[int, int]
"""A stage of a direction: (direction, stage)."""


def actor_name(task: Task) -> str:
    """``F2`` for the forward part of stage 2, ``F2'`` in the second direction."""
    return f"{task.kind}{task.stage}" + "'" * task.direction


def splits_backward(schedule: Schedule) -> bool:
    """Whether any backward pass is two tasks."""
    return any(t.kind is Kind.WEIGHT for tasks in schedule.tasks for t in tasks)


def tasks_run(schedule: Schedule) -> list[list[Task]]:
    """By rank the tasks as they are run: where some backward passes are two tasks (DualPipe-V), all are."""
    if not splits_backward(schedule):
        return [list(tasks) for tasks in schedule.tasks]
    halves = (Kind.INPUT, Kind.WEIGHT)
    return [
        [half for t in tasks for half in ([replace(t, kind=k) for k in halves] if t.kind is Kind.BACKWARD else [t])]
        for tasks in schedule.tasks
    ]


@dataclass(slots=True)
class _Edge:
    """What one part of a stage gives to another stage: (result there, argument here)."""

    source: tuple[Instance, Kind]
    ports: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class StepActors:
    """The graph of one schedule, with the stages that its actors run. ``batch`` is filled before each run."""

    graph: ActorGraph
    stages: dict[Instance, StageRun]
    batch: dict[int, Any]


class _Wiring:
    def __init__(
        self, schedule: Schedule, parts: Mapping[Instance, StageParts], stages: Mapping[Instance, StageRun],
        batch: Mapping[int, Any], batch_dims: Mapping[int, tuple[int, int]],
    ) -> None:  # fmt: skip
        self.schedule, self.parts, self.stages = schedule, parts, stages
        self.batch, self.batch_dims, self.count = batch, batch_dims, schedule.microbatches
        # A setting of the thread that calls the step, which the threads of the lanes do not have by themselves.
        self.is_wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
        self.tasks = tasks_run(schedule)
        self.kinds = sorted({t.kind for tasks in self.tasks for t in tasks}, key=list(Kind).index)
        self.indices = {
            d: tuple(k for k, route in enumerate(schedule.routes) if route == d) for d in range(len(schedule.placement))
        }

    def part(self, instance: Instance, kind: Kind) -> StagePart:
        p = self.parts[instance]
        return p.forward if kind is Kind.FORWARD else p.backward[1 if kind is Kind.WEIGHT else 0]

    def giver(self, instance: Instance, port: int) -> tuple[tuple[Instance, Kind], int]:
        """The part that makes what comes with every micro-batch, and its result's number."""
        wanted = self.parts[instance].source.takes[port]
        other = (instance[0], wanted.stage)
        for o, given in enumerate(self.parts[other].source.gives):
            if given.kind == "part" and given.key == wanted.key:
                for kind in self.kinds:
                    if any(s.kind == "port" and s.key == o for s in self.part(other, kind).gives):
                        return (other, kind), o
        raise KeyError(wanted)

    def arriving(self, instance: Instance, kind: Kind) -> tuple[list[int], list[_Edge]]:
        """What a part needs with every micro-batch: ports that are loaded, and what other stages give."""
        source = self.parts[instance].source
        loaded: list[int] = []
        edges: dict[tuple[Instance, Kind], _Edge] = {}
        for slot in self.part(instance, kind).takes:
            if slot.kind == "port" and source.takes[slot.key].kind == "part":
                if source.takes[slot.key].stage < 0:
                    loaded.append(slot.key)
                else:
                    giver, o = self.giver(instance, slot.key)
                    edges.setdefault(giver, _Edge(giver)).ports.append((o, slot.key))
        return loaded, list(edges.values())

    def build(self) -> ActorGraph:
        actors: list[Actor] = []
        receiving: dict[tuple[Instance, Kind, Instance], list[tuple[int, int]]] = {}
        needs = {(i, kind): self.arriving(i, kind) for i in self.stages for kind in self.kinds}
        held = self.held()
        for i in self.stages:
            loads = sorted({p for kind in self.kinds for p in needs[i, kind][0]})
            if loads:
                act, ahead = functools.partial(self.load, i, loads), min(self.count, held[i] + 1)
                actors.append(Actor(f"load {_name(i)}", act, (), ahead, None, "load", indices=self.indices[i[0]]))
            for kind in self.kinds:
                for edge in needs[i, kind][1]:
                    receiving.setdefault((*edge.source, i), []).extend(edge.ports)
        for (source, kind, i), ports in receiving.items():
            actors.append(Actor(
                f"{kind}{_name(source)} to {_name(i)}", functools.partial(self.receive, i, tuple(dict.fromkeys(ports))),
                (f"{kind}{_name(source)}",), min(self.count, held[i] + 1), None, "receive",
            ))  # fmt: skip
        for i in self.stages:
            lane = f"rank {self.schedule.rank_of(i[1], i[0])}"
            for kind in self.kinds:
                loaded, edges = needs[i, kind]
                inputs = [f"load {_name(i)}"] if loaded else []
                inputs += [f"{e.source[1]}{_name(e.source[0])} to {_name(i)}" for e in edges]
                inputs += [f"{k}{_name(i)}" for k in self.kinds[: self.kinds.index(kind)]]
                act = functools.partial(self.compute, i, self.part(i, kind))
                registers = held[i] if kind is Kind.FORWARD else self.count
                actors.append(Actor(f"{kind}{_name(i)}", act, tuple(inputs), max(1, registers), lane, "compute",
                                    indices=self.indices[i[0]]))  # fmt: skip
            if self.parts[i].updates is not None:
                actors.append(Actor(f"U{_name(i)}", functools.partial(self.update, i), (f"B{_name(i)}",), 1, lane,
                                    "compute", indices=tuple(filter(self.ends_group, range(self.count)))))  # fmt: skip
        orders = {f"rank {r}": tuple(firing for t in tasks for firing in self.firings(t))
                  for r, tasks in enumerate(self.tasks)}  # fmt: skip
        return ActorGraph(tuple(actors), orders)

    def ends_group(self, number: int) -> bool:
        """Whether a micro-batch is the last one of an update."""
        return (number + 1) % (self.schedule.update_every or self.count) == 0

    def firings(self, task: Task) -> list[tuple[str, int]]:
        """A task, and the update that follows it."""
        i, found = (task.direction, task.stage), [(actor_name(task), task.microbatch)]
        if self.parts[i].updates is not None and task.kind is Kind.BACKWARD and self.ends_group(task.microbatch):
            found.append((f"U{_name(i)}", task.microbatch))
        return found

    def update(self, i: Instance, number: int, _: Made) -> Made:
        """A stage's update after a group of micro-batches."""
        stage = self.stages[i]
        assert isinstance(stage, VersionedRun)
        with jax.enable_x64(self.is_wide):
            return stage.update(number // stage.every)

    def held(self) -> dict[Instance, int]:
        """By stage how many activations its schedule holds at once."""
        most = dict.fromkeys(self.stages, 0)
        for tasks in self.tasks:
            now = dict.fromkeys(self.stages, 0)
            for t in tasks:
                i = (t.direction, t.stage)
                now[i] += t.kind is Kind.FORWARD
                most[i] = max(most[i], now[i])
                now[i] -= t.kind in (Kind.BACKWARD, Kind.WEIGHT)
        return most

    def load(self, i: Instance, ports: Sequence[int], number: int) -> Made:
        """One micro-batch's part of the batch, on a stage's devices."""
        p, found = self.parts[i], {}
        for port in ports:
            argument, dim = self.batch_dims[p.source.takes[port].key]
            with jax.enable_x64(self.is_wide):
                x = part_of(self.batch[argument], dim, self.count, number)
                found[port] = moved(x, p.shardings[port])
        return Made(found, pending=list(found.values()))

    def receive(self, i: Instance, ports: Sequence[tuple[int, int]], number: int, made: Made) -> Made:
        """What another stage made, on this one's devices."""
        with jax.enable_x64(self.is_wide):
            found = {port: moved(made.leaves[o], self.parts[i].shardings[port]) for o, port in ports}
        return Made(found, pending=list(found.values()))

    def compute(self, i: Instance, part: StagePart, number: int, *given: Made) -> Made:
        """One part of a stage."""
        arrived: dict[int, Any] = {}
        residuals: dict[Any, Any] = {}
        for made in given:
            residuals.update(made.residuals)
            if not made.is_own:
                arrived.update(made.leaves)
        with jax.enable_x64(self.is_wide):
            return self.stages[i].micro_batch(part, number, arrived, residuals)


def _name(i: Instance) -> str:
    return f"{i[1]}" + "'" * i[0]


def step_actors(
    schedule: Schedule, parts: Mapping[Instance, StageParts], batch_dims: Mapping[int, tuple[int, int]]
) -> StepActors:
    """The actors of a pipeline.

    ``parts`` by (direction, stage); ``batch_dims`` by value the argument that it is and the dim that is cut.
    """
    batch: dict[int, Any] = {}
    stages = stage_runs(parts, schedule)
    return StepActors(_Wiring(schedule, parts, stages, batch, batch_dims).build(), stages, batch)
