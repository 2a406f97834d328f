"""The one program: what runs once before, a loop over time slots, what runs once after, on every device.

A rank's tasks are branches of a switch over the job of the time slot. All devices of a rank take the same branch, so
the collectives of a stage's plan run inside it. What goes to other ranks is sent at the end of a time slot, by all at
once.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ... import boxing
from ...boxing import without_permutes
from ...pieces import stored_shape
from ...schedules import Schedule
from ...signature import Signature
from ..programs.slots import Slot, StagePart, StageParts
from ..run.actors_of import Instance
from .arguments import Arguments
from .layout import Exchange, Layout, Transfer, Type, align, permuted
from .wiring import Job, Key, Table, part_of, read_key, readers, result_types

Find = Callable[[Slot], Any]


class SpmdProgram:
    """The program of a pipeline, to be traced in a ``shard_map`` over all devices.

    ``arguments`` and ``results`` are the layouts of what it takes and gives, by rank. ``gathers``: pieces that only
    change places within a rank are gathered instead. ``spread`` are results of the step that all ranks are given; these
    come after the others.
    """

    def __init__(
        self, schedule: Schedule, parts: Mapping[Instance, StageParts], arguments: Arguments, table: Table, axis: str,
        gathers: bool, spread: Set[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.schedule, self.parts, self.source, self.table, self.axis = schedule, parts, arguments, table, axis
        self.gathers, self.type_of, self.spread = gathers, table.types, sorted(spread)
        self.ranks = range(schedule.ranks)
        self.arguments = align({r: [(h, p.type) for h, p in arguments.placed[r].items()] for r in self.ranks})
        self.own = {r: [i for i in parts if arguments.rank(i) == r] for r in self.ranks}
        self.before = align({r: [x for i in self.own[r] for x in self.made_before(i)] for r in self.ranks})
        self.after_types = {
            (s, level): result_types(part, p) for (d, s), p in parts.items() if d == 0
            for level, part in enumerate(p.after)
        }  # fmt: skip
        self.levels = 1 + max(level for _, level in self.after_types)
        self.results = align({r: [x for i in self.own[r] for x in self.step_results(i)] for r in self.ranks})
        self.kept = [align({r: self.kept_after(r, level) for r in self.ranks}) for level in range(self.levels)]
        self.late = [Exchange(self.late_transfers(level), schedule.ranks) for level in range(self.levels)]
        self.directions = Exchange(self.other_direction(), schedule.ranks)
        self.owner = {o: r for r in self.ranks for o in self.results.at[r]}
        types = {o: self.results.types[self.results.at[self.owner[o]][o]] for o in self.spread}
        self.everywhere = align({r: list(types.items()) for r in self.ranks})
        self.spreading = Exchange(
            [Transfer(self.owner[o], o, r, o, t) for o, t in types.items() for r in self.ranks if r != self.owner[o]],
            schedule.ranks,
        )

    # What there is

    def made_before(self, i: Instance) -> list[tuple[Key, Type]]:
        """What a stage makes before the loop."""
        part = self.parts[i].before
        return [((s.kind, i, s.key), t) for s, t in zip(part.gives, result_types(part, self.parts[i]), strict=True)]

    def after(self, i: Instance) -> list[tuple[int, StagePart, list[Type]]]:
        """A stage's parts after the loop by level, with the types of their results."""
        if i[0]:
            return []
        return [(n, part, self.after_types[i[1], n]) for n, part in enumerate(self.parts[i].after)]

    def step_results(self, i: Instance) -> list[tuple[int, Type]]:
        """The results of the step that a stage gives, by number."""
        gives = self.parts[i].source.gives
        return [
            (o, replace(t, is_spent=o in self.spread))
            for _, part, types in self.after(i)
            for s, t in zip(part.gives, types, strict=True)
            if s.kind == "port" and gives[s.key].kind == "result"
            for o in (gives[s.key].key,)
        ]

    def kept_after(self, rank: int, level: int) -> list[tuple[Key, Type]]:
        """What a rank's stages make at a level and need later, or give others."""
        return [
            ((s.kind, i, s.key), t)
            for i in self.own[rank]
            for n, part, types in self.after(i)
            if n == level
            for s, t in zip(part.gives, types, strict=True)
            if s.kind == "held" or self.parts[i].source.gives[s.key].kind == "late"
        ]

    def late_transfers(self, level: int) -> list[Transfer]:
        """What stages give each other of a level."""
        found = []
        for i, p in self.parts.items():
            for o, given in enumerate(p.source.gives):
                if i[0] == 0 and given.kind == "late" and given.level == level:
                    x = p.plan.outputs[o]
                    for r in readers(self.parts, i, o):
                        kind = Type(stored_shape(x.shape, r.signature, p.plan.placement.shape), self.dtype(i, o))
                        given, taken = ("port", i, o, r.signature), ("port", r.instance, r.port)
                        there = self.source.rank(r.instance)
                        found.append(Transfer(self.source.rank(i), given, there, taken, kind))
        return found

    def dtype(self, i: Instance, o: int) -> Any:
        """The dtype of a result of a stage."""
        return self.parts[i].source.program.output_ops[o].ins[0].dtype

    def other_direction(self) -> list[Transfer]:
        """The sums, and the collected parts, that stages of a second direction give to the first."""
        found = []
        for d, s in self.parts:
            if d:
                here, there = self.source.rank((d, s)), self.source.rank((0, s))
                for (rank, key), _ in self.table.registers.at.items():
                    if rank == here and key[0] in ("sum", "stack") and key[1] == (d, s):
                        found.append(Transfer(here, key, there, (key[0], (0, s), *key[2:]), self.type_of[key]))
        return found

    # The program

    def run(self, *given: Any) -> list[Any]:
        """All of it, on a device's pieces: what it has at every position of ``arguments`` to that of ``results``."""
        with without_permutes(self.gathers):
            rank = lax.axis_index(self.axis)
            sent = self.by_rank(rank, lambda r: self.shared(r, given), self.source.exchange.sends)
            shared = self.source.exchange.run(sent, self.axis)
            before = self.by_rank(rank, lambda r: self.run_before(r, given, shared), self.before)
            memory = self.loop(rank, given, shared, before)
            crossed = self.cross(rank, memory)
            results = self.run_after(rank, given, shared, before, memory, crossed)
            own = [x for x, t in zip(results, self.results.types, strict=True) if not t.is_spent]
            return [*own, *self.run_spread(rank, results)]

    def by_rank(self, rank: Any, branch: Callable[[int], Mapping[Any, Any]], layout: Layout) -> list[Any]:
        """What each rank makes, at the positions of a layout."""
        if not layout.types:
            return []
        return lax.switch(rank, [lambda r=r: layout.fill(r, branch(r)) for r in self.ranks])

    def argument(self, i: Instance, port: int, given: Sequence[Any], shared: Mapping[Any, Any]) -> Any:
        """A stage's argument: put there, or given by the stage that keeps it."""
        rank = self.source.rank(i)
        if self.source.exchange.takes(rank, (i, port)):
            return self.source.exchange.find(shared, rank, (i, port))
        return given[self.arguments.at[rank][self.source.held[i, port]]]

    def shared(self, rank: int, given: Sequence[Any]) -> dict[Any, Any]:
        """The arguments that a rank gives others, as they are to lie there."""
        found = {}
        for home, port, signature in self.source.exchange.sends.at[rank]:
            x = self.argument(home, port, given, {})
            p = self.parts[home]
            shape = p.plan.inputs[port].shape
            found[home, port, signature] = self.boxed(p, x, p.arrives(port), signature, shape)
        return found

    def boxed(self, p: StageParts, x: Any, src: Signature, dst: Signature, shape: Sequence[int]) -> Any:
        """A value in another signature, on the same devices."""
        where = p.plan.placement
        route = boxing.route(src, dst, where, tuple(shape), x.dtype)
        return boxing.apply(route, x, where.axis_names)

    def call(self, part: StagePart, find: Find) -> list[tuple[Slot, Any]]:
        """Run a part: what it takes for its own is an array with a dim for the devices."""

        def operand(slot: Slot) -> Any:
            x = find(slot)
            if slot.kind == "stack":
                return [y[None] for y in x]
            return x if slot.kind == "port" else x[None]

        found = part.local(*map(operand, part.takes))
        return [(s, x if s.kind == "port" else x[0]) for s, x in zip(part.gives, found, strict=True)]

    def run_before(self, rank: int, given: Sequence[Any], shared: Mapping[Any, Any]) -> dict[Any, Any]:
        """What a rank's stages make before the loop."""
        found = {}
        for i in self.own[rank]:
            made = self.call(self.parts[i].before, lambda slot, i=i: self.argument(i, slot.key, given, shared))
            found.update(((s.kind, i, s.key), x) for s, x in made)
        return found

    def loop(
        self, rank: Any, given: Sequence[Any], shared: Mapping[Any, Any], before: Sequence[Any]
    ) -> dict[Type, Any]:
        """The time slots; what is in memory after them."""
        table, registers = self.table, self.table.registers
        memory = {t: t.zeros(n + 1) for t, n in registers.count.items()}
        memory = self.start(rank, memory, before)
        kept = [(p, t) for p, t in enumerate(table.outs.types) if t in memory]

        def slot(held: list[Any], row: Sequence[Any]) -> tuple[list[Any], None]:
            memory = dict(zip(registers.count, held, strict=True))
            job, number, reads, writes, arrives = row
            branches = [lambda: [t.zeros() for t in table.outs.types]]
            for j in table.jobs:
                branches.append(lambda j=j: self.job(j, number, reads, memory, given, shared, before))
            made = lax.switch(job, branches)
            arrived = [permuted(made[p], self.axis, pairs) for (_, p), pairs in table.routes.items()]
            for p, t in kept:
                memory[t] = lax.dynamic_update_index_in_dim(memory[t], made[p], writes[p], 0)
            for k, ((_, p), x) in enumerate(zip(table.routes, arrived, strict=True)):
                t = table.outs.types[p]
                if t in memory:
                    memory[t] = lax.dynamic_update_index_in_dim(memory[t], x, arrives[k], 0)
            return list(memory.values()), None

        rows = [jnp.asarray(x)[:, rank] for x in (table.job, table.number, table.reads, table.writes, table.arrives)]
        if not table.jobs:
            return memory
        with jax.named_scope("sbp_time_slots"):
            return dict(zip(registers.count, lax.scan(slot, list(memory.values()), rows)[0], strict=True))

    def start(self, rank: Any, memory: dict[Type, Any], before: Sequence[Any]) -> dict[Type, Any]:
        """The sums as they begin, in their registers."""
        rows: dict[int, list[int]] = {}
        for r in self.ranks:
            for key, p in self.before.at[r].items():
                there = self.table.registers.at.get((r, key))
                t = self.before.types[p]
                if there is not None:
                    rows.setdefault(p, [self.table.registers.count[t]] * len(self.ranks))[r] = there
        for p, of in rows.items():
            t = self.before.types[p]
            memory[t] = lax.dynamic_update_index_in_dim(memory[t], before[p], jnp.asarray(of, jnp.int32)[rank], 0)
        return memory

    def job(
        self, job: Job, number: Any, reads: Any, memory: Mapping[Type, Any], given: Sequence[Any],
        shared: Mapping[Any, Any], before: Sequence[Any],
    ) -> list[Any]:  # fmt: skip
        """One task."""
        i, p = job.instance, self.parts[job.instance]
        rank = self.source.rank(i)
        places = {key: k for k, key in enumerate(self.table.read_keys[job])}

        def find(slot: Slot) -> Any:
            key = read_key(self.parts, i, slot)
            if key is not None:
                return lax.dynamic_index_in_dim(memory[self.type_of[key]], reads[places[key]], 0, keepdims=False)
            if slot.kind == "held":
                return before[self.before.at[rank][slot.kind, i, slot.key]]
            wanted = p.source.takes[slot.key]
            if wanted.kind == "number":
                return number
            x = self.argument(i, slot.key, given, shared)
            if wanted.kind == "part" and self.source.held[i, slot.key].dim >= 0:
                return lax.dynamic_index_in_dim(x, number, 0, keepdims=False)
            return x

        made = {}
        at = self.table.outs.at[job]
        sends: dict[int, list[Any]] = {}
        for key in at:
            if key[0] == "send":
                sends.setdefault(key[2], []).append(key)
        for slot, x in self.call(part_of(p, job.kind), find):
            if slot.kind != "port":
                made[slot.kind, i, slot.key] = x
            else:
                shape = p.plan.outputs[slot.key].shape[1:]
                for key in sends.get(slot.key, ()):
                    made[key] = self.boxed(p, x, p.leaves[slot.key], key[3], shape)
        return self.table.outs.fill(job, made)

    def cross(self, rank: Any, memory: Mapping[Type, Any]) -> dict[tuple[int, int], Any]:
        """What the second direction's stages have, with the first's."""

        def own(r: int) -> dict[Any, Any]:
            return {key: memory[self.type_of[key]][self.table.registers.at[r, key]]
                    for key in self.directions.sends.at[r]}  # fmt: skip

        return self.directions.run(self.by_rank(rank, own, self.directions.sends), self.axis)

    def run_after(
        self, rank: Any, given: Sequence[Any], shared: Mapping[Any, Any], before: Sequence[Any],
        memory: Mapping[Type, Any], crossed: Mapping[Any, Any],
    ) -> list[Any]:  # fmt: skip
        """Level by level what follows the micro-batches, and what stages give each other of it; the results."""
        results: dict[int, Any] = {}
        earlier: list[list[Any]] = []
        arrived: list[dict[tuple[int, int], Any]] = []

        def find(i: Instance, slot: Slot) -> Any:
            r, p = self.source.rank(i), self.parts[i]
            if slot.kind == "sum":
                key = "sum", i, slot.key
                x = memory[self.type_of[key]][self.table.registers.at[r, key]]
                return (
                    p.join(slot.key, x, self.directions.find(crossed, r, key)) if self.directions.takes(r, key) else x
                )
            if slot.kind == "stack":
                return [self.collected(r, (slot.kind, i, slot.key, k), memory, crossed)
                        for k in range(self.schedule.microbatches)]  # fmt: skip
            if slot.kind == "held":
                key = slot.kind, i, slot.key
                if key in self.before.at[r]:
                    return before[self.before.at[r][key]]
                return next(
                    made[self.kept[n].at[r][key]] for n, made in enumerate(earlier) if key in self.kept[n].at[r]
                )
            if p.source.takes[slot.key].kind == "late":
                level = p.source.takes[slot.key].level
                return self.late[level].find(arrived[level], r, ("port", i, slot.key))
            return self.argument(i, slot.key, given, shared)

        def run_level(level: int, r: int) -> tuple[list[Any], list[Any], list[Any]]:
            kept: dict[Any, Any] = {}
            own: dict[int, Any] = {}
            for i in self.own[r]:
                for n, part, _ in self.after(i):
                    if n == level:
                        for s, x in self.call(part, lambda slot, i=i: find(i, slot)):
                            port = self.parts[i].source.gives[s.key] if s.kind == "port" else None
                            if port is not None and port.kind == "result":
                                own[self.results.at[r][port.key]] = x
                            else:
                                kept[s.kind, i, s.key] = x
            sends = {key: self.late_value(key, level, r, kept, earlier) for key in self.late[level].sends.at[r]}
            made = [own[q] if q in own else results[q] if q in results else self.results.types[q].zeros()
                    for q in given_at[level]]  # fmt: skip
            return made, self.kept[level].fill(r, kept), self.late[level].sends.fill(r, sends)

        given_at: list[list[int]] = [self.given_at(level) for level in range(self.levels)]
        for level in range(self.levels):
            made, kept, sends = lax.switch(rank, [lambda r=r, n=level: run_level(n, r) for r in self.ranks])
            results.update(zip(given_at[level], made, strict=True))
            earlier.append(kept)
            arrived.append(self.late[level].run(sends, self.axis))
        return [results[p] for p in range(len(self.results.types))]

    def run_spread(self, rank: Any, results: Sequence[Any]) -> list[Any]:
        """The results that all ranks are given."""

        def own(r: int) -> dict[Any, Any]:
            return {o: results[self.results.at[r][o]] for o in self.spread if self.owner[o] == r}

        arrived = self.spreading.run(self.by_rank(rank, own, self.spreading.sends), self.axis)

        def known(r: int) -> dict[Any, Any]:
            theirs = [o for o in self.spread if self.owner[o] != r]
            return {**own(r), **{o: self.spreading.find(arrived, r, o) for o in theirs}}

        found = self.by_rank(rank, known, self.everywhere)
        return [found[self.everywhere.at[0][o]] for o in self.spread]

    def collected(self, rank: int, key: Key, memory: Mapping[Type, Any], crossed: Mapping[Any, Any]) -> Any:
        """What was collected of one micro-batch, in either direction."""
        if self.directions.takes(rank, key):
            return self.directions.find(crossed, rank, key)
        return memory[self.type_of[key]][self.table.registers.at[rank, key]]

    def late_value(self, key: Any, level: int, rank: int, kept: Mapping[Any, Any], earlier: Sequence[Any]) -> Any:
        """What a stage gives others after a level, as it is to lie there."""
        _, i, o, signature = key
        name = "port", i, o
        x = kept[name] if name in kept else next(
            made[self.kept[n].at[rank][name]] for n, made in enumerate(earlier) if name in self.kept[n].at[rank]
        )  # fmt: skip
        leaf = self.parts[i].plan.outputs[o]
        return self.boxed(self.parts[i], x, leaf.signature, signature, leaf.shape)

    def given_at(self, level: int) -> list[int]:
        """The positions of results that some rank gives at a level."""
        found = set()
        for r in self.ranks:
            for i in self.own[r]:
                gives = self.parts[i].source.gives
                found |= {self.results.at[r][gives[s.key].key] for n, part, _ in self.after(i) if n == level
                          for s in part.gives if s.kind == "port" and gives[s.key].kind == "result"}  # fmt: skip
        return sorted(found)
