"""The table of a pipeline in one program: by time slot and rank the job, its micro-batch, and the registers of what it
reads and makes; what ranks then give each other."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from ...errors import InternalError
from ...pieces import stored_shape
from ...schedules import Kind, Schedule, Task
from ...signature import Signature
from ..programs.slots import Slot, StagePart, StageParts
from ..run.actors_of import Instance
from .layout import Layout, Type, align
from .registers import Lifetime, Registers, allocate
from .timetable import time_slots

Key = tuple[Any, ...]
"""What a value is: its kind, its stage, and which one it is there; in memory the number of the micro-batch, too."""


@dataclass(frozen=True, slots=True)
class Job:
    """A part of a stage that runs for every micro-batch."""

    instance: Instance
    kind: Kind


@dataclass(frozen=True, slots=True)
class Reader:
    """A stage's argument that another stage's value goes to, and how it is to lie there."""

    instance: Instance
    port: int
    signature: Signature


def part_of(parts: StageParts, kind: Kind) -> StagePart:
    """The part that a task runs."""
    return parts.forward if kind is Kind.FORWARD else parts.backward[1 if kind is Kind.WEIGHT else 0]


def result_types(part: StagePart, parts: StageParts) -> list[Type]:
    """What a device holds of each result of a part."""
    found = []
    for slot, spec, x in zip(part.gives, part.specs, jax.eval_shape(part.function, *part.shapes), strict=True):
        shape = NamedSharding(parts.own.mesh, spec).shard_shape(x.shape)
        found.append(Type(shape if slot.kind == "port" else shape[1:], x.dtype))
    return found


def readers(all_parts: Mapping[Instance, StageParts], instance: Instance, o: int) -> list[Reader]:
    """Who takes what leaves a stage with every micro-batch, or after them all."""
    given = all_parts[instance].source.gives[o]
    return [
        Reader(other, port, p.arrives(port))
        for other, p in all_parts.items()
        if other[0] == instance[0]
        for port, wanted in enumerate(p.source.takes)
        if wanted.kind == given.kind and wanted.key == given.key and wanted.stage == instance[1]
    ]


@dataclass(slots=True)
class Table:
    """What happens in every time slot.

    By slot and rank: ``job`` the number in ``jobs``, from 1, 0 to wait; ``number`` that of the micro-batch; ``reads``
    the register of each thing that the job reads of memory, ``writes`` that of what it makes at each position,
    ``arrives`` that of what comes by each of ``routes`` (distance, position). The last register of a type takes what is
    not kept.
    """

    jobs: list[Job]
    job: np.ndarray
    number: np.ndarray
    reads: np.ndarray
    writes: np.ndarray
    arrives: np.ndarray
    routes: dict[tuple[int, int], list[tuple[int, int]]]
    outs: Layout
    registers: Registers
    read_keys: dict[Job, list[Key]] = field(default_factory=dict)
    types: dict[Key, Type] = field(default_factory=dict)
    """Of what is in memory, with the number of the micro-batch and without."""


def wired(schedule: Schedule, parts: Mapping[Instance, StageParts]) -> Table:
    """The table of a schedule."""
    return _Wiring(schedule, parts).table()


class _Wiring:
    def __init__(self, schedule: Schedule, parts: Mapping[Instance, StageParts]) -> None:
        self.schedule, self.parts = schedule, parts
        self.slots = time_slots(schedule)
        found = {_job(task): None for row in self.slots for task in row if task is not None}
        self.jobs = sorted(found, key=lambda j: (self.rank(j.instance), j.instance, list(Kind).index(j.kind)))
        self.types = {j: result_types(self.part(j), self.parts[j.instance]) for j in self.jobs}
        self.read_keys = {j: [k for s in self.part(j).takes if (k := self.read(j, s))] for j in self.jobs}
        self.outs = align({j: list(self.made(j)) for j in self.jobs})

    def rank(self, instance: Instance) -> int:
        return self.schedule.rank_of(instance[1], instance[0])

    def part(self, job: Job) -> StagePart:
        return part_of(self.parts[job.instance], job.kind)

    def read(self, job: Job, slot: Slot) -> Key | None:
        return read_key(self.parts, job.instance, slot)

    @functools.cache  # noqa: B019
    def readers(self, instance: Instance, o: int) -> list[Reader]:
        return readers(self.parts, instance, o)

    def made(self, job: Job) -> list[tuple[Key, Type]]:
        """What a job makes: first what it gives to stages, which then has the same positions in all jobs."""
        sent, kept = [], []
        p = self.parts[job.instance]
        for slot, kind in zip(self.part(job).gives, self.types[job], strict=True):
            if slot.kind != "port":
                kept.append(((slot.kind, job.instance, slot.key), kind))
                continue
            shape = p.plan.outputs[slot.key].shape[1:]
            for signature in dict.fromkeys(r.signature for r in self.readers(job.instance, slot.key)):
                there = Type(stored_shape(shape, signature, p.plan.placement.shape), kind.dtype)
                sent.append((("send", job.instance, slot.key, signature), there))
        return [*sent, *kept]

    def lives(self) -> dict[int, dict[Key, Lifetime]]:
        """By rank what is in memory when."""
        end = len(self.slots)
        last: dict[tuple[int, Key], int] = {}
        for t, row in enumerate(self.slots):
            for rank, task in enumerate(row):
                for key in self.read_keys[_job(task)] if task else ():
                    last[rank, _of(key, task)] = t
        found: dict[int, dict[Key, Lifetime]] = {r: {} for r in range(self.schedule.ranks)}
        for t, row in enumerate(self.slots):
            for rank, task in enumerate(row):
                if task is None:
                    continue
                job = _job(task)
                for key, p in self.outs.at[job].items():
                    kind = self.outs.types[p]
                    for there, name in self.goes(rank, key, task):
                        if name[0] == "sum":
                            found[there].setdefault(name, Lifetime(kind, -1, end))
                        elif name[0] == "stack":
                            found[there][name] = Lifetime(kind, t, end)
                        elif (there, name) in last:
                            if last[there, name] <= t:
                                raise InternalError(f"{name} is read before it is made")
                            found[there][name] = Lifetime(kind, t, last[there, name])
        missing = [name for rank, name in last if name not in found[rank] and name[0] != "sum"]
        if missing:
            raise InternalError(f"{missing[0]} is read and not made")
        return found

    def goes(self, rank: int, key: Any, task: Task | None) -> list[tuple[int, Key]]:
        """The ranks that something a task made goes to, and what it is there."""
        if key[0] != "send":
            return [(rank, _of(key, task))]
        _, instance, o, signature = key
        return [
            (there, _of(("arrived", instance, o, signature), task))
            for there in dict.fromkeys(
                self.rank(r.instance) for r in self.readers(instance, o) if r.signature == signature
            )
        ]

    def table(self) -> Table:
        lives = self.lives()
        for i, p in self.parts.items():  # of a stage without backward part too
            for slot, kind in zip(p.before.gives, result_types(p.before, p), strict=True):
                if slot.kind == "sum":
                    lives[self.rank(i)].setdefault(("sum", i, slot.key), Lifetime(kind, -1, len(self.slots)))
        registers = allocate(lives)
        ranks, times = self.schedule.ranks, len(self.slots)
        routes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row in self.slots:
            for rank, task in enumerate(row):
                for key, p in self.outs.at[_job(task)].items() if task else ():
                    for there, _ in self.goes(rank, key, task):
                        if there != rank and (rank, there) not in routes.setdefault(((there - rank) % ranks, p), []):
                            routes[(there - rank) % ranks, p].append((rank, there))
        numbers = {route: k for k, route in enumerate(routes)}
        most = max((len(keys) for keys in self.read_keys.values()), default=0)
        trash = [registers.count.get(t, 0) for t in self.outs.types]
        job, number = np.zeros((times, ranks), np.int32), np.zeros((times, ranks), np.int32)
        reads = np.zeros((times, ranks, most), np.int32)
        writes = np.tile(np.array(trash, np.int32), (times, ranks, 1))
        arrives = np.tile(np.array([trash[p] for _, p in routes], np.int32), (times, ranks, 1))
        for t, row in enumerate(self.slots):
            for rank, task in enumerate(row):
                if task is None:
                    continue
                job[t, rank], number[t, rank] = 1 + self.jobs.index(_job(task)), task.microbatch
                for k, key in enumerate(self.read_keys[_job(task)]):
                    reads[t, rank, k] = registers.at[rank, _of(key, task)]
                for key, p in self.outs.at[_job(task)].items():
                    for there, name in self.goes(rank, key, task):
                        register = registers.at.get((there, name))
                        if register is not None and there == rank:
                            writes[t, rank, p] = register
                        elif register is not None:
                            arrives[t, there, numbers[(there - rank) % ranks, p]] = register
        types = {name: life.type for values in lives.values() for name, life in values.items()}
        types |= {name[:-1]: t for name, t in types.items() if name[0] != "sum"}
        return Table(
            self.jobs, job, number, reads, writes, arrives, routes, self.outs, registers, self.read_keys, types
        )  # fmt: skip


def _job(task: Task | None) -> Job:
    assert task is not None
    return Job((task.direction, task.stage), task.kind)


def _of(key: Key, task: Task | None) -> Key:
    """What a value of a micro-batch is in memory; sums are of all of them."""
    return key if key[0] == "sum" or task is None else (*key, task.microbatch)


def read_key(all_parts: Mapping[Instance, StageParts], instance: Instance, slot: Slot) -> Key | None:
    """What an operand of a part is in memory, None for what is not there."""
    if slot.kind in ("residual", "sum"):
        return slot.kind, instance, slot.key
    if slot.kind == "port":
        port = all_parts[instance].source.takes[slot.key]
        if port.kind == "part" and port.stage >= 0:
            giver = instance[0], port.stage
            gives = all_parts[giver].source.gives
            o = next(o for o, given in enumerate(gives) if given.kind == "part" and given.key == port.key)
            return "arrived", giver, o, all_parts[instance].arrives(slot.key)
    return None


def registers_of(table: Table, rank: int, key: Key, numbers: Sequence[int]) -> list[int | None]:
    """The registers that hold what every micro-batch has of something after the loop."""
    return [table.registers.at.get((rank, (*key, k))) for k in numbers]
