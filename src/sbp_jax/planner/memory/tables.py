"""Bytes that a program holds, as tables by one choice or two, each with where in the step it counts.

What ``footprint.py`` says of copies and results, for one value after the other: when it is held, of what size.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...rules.widen import B, Code
from ...trace import Value
from ..costs.assemble import Decisions
from ..graph.clusters import OpCluster
from .kernels import OF_LIBRARIES
from .lifetime import Lifetime
from .liveness import Liveness
from .parts import Parts, is_cut_alike
from .places import largest_free, smallest_free


@dataclass(slots=True)
class Table:
    """Bytes by the choice at ``a`` (and at ``b``, where that is not -1), from ``start`` to ``end`` of each instance.

    The bytes are ``factor`` times a matrix that many tables share.
    """

    words: str
    a: int
    b: int
    parts: np.ndarray
    factor: float
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)


# What hands values to a loop, as a whole or a slice in each of its steps.
_OF_LOOPS = frozenset(("sbp.enter", "sbp.unstack"))
_COPIES = frozenset(("slice", "smaller", "larger", "more", "moved", "more moved", "gathered", "laid out", "padding"))
# What is boxed from what a hub has.
_OF_HUBS = frozenset(("more", "more moved"))
# What hangs on the signature in which a value is made and the one in which it is read (``parts.py``).
_OF_TWO = _COPIES | {"same", "source of slice", "source of smaller", "source of larger"}
# What of a value, its class, which of the values there, and the other end: its class or hub, which operand.
_Key = tuple[Any, ...]


class Tables:
    """Builds the tables; equal ones, of values that share their decisions, are one.

    With ``choice`` those of one choice: every node has only the one that is chosen, number 0.
    """

    def __init__(self, decisions: Decisions, found: Liveness, choice: Sequence[int] | None = None) -> None:
        self.lifetimes, self.scratch, self.zeros, self.updates = found.values, found.scratch, found.zeros, found.updates
        self.representative, self.hubs = decisions.representative, decisions.hubs
        self.ways = [c.strategies for c in self.representative]
        if choice is not None:
            chosen = list(choice)
            self.ways = [(ways[n],) for ways, n in zip(self.ways, chosen, strict=False)]  # hubs come after
            self.hubs = {n: hub.only(chosen[n]) for n, hub in self.hubs.items()}
        self.clustering, self.groups, self.model = decisions.clustering, decisions.class_of, decisions.model
        self.hub_of = {(hub.source, hub.result): n for n, hub in decisions.hubs.items()}
        self.tables: dict[_Key, Table | None] = {}
        self.of_two: dict[_Key, dict[str, np.ndarray]] = {}
        self.parts = Parts(self.model)
        program = decisions.program
        self.program_end = len(program.nodes)
        replacing = {o for _, o in program.donated}
        self.results = {op.index for k, op in enumerate(program.output_ops) if k not in replacing}
        self.smallest = self._smallest_results()
        self.places = sorted(found.places, key=lambda place: self.smallest[place.result.id])
        self.place_bytes = [self.smallest[place.result.id] for place in self.places]
        # Of what is larger no piece fits into any of them.
        self.most_placed = math.prod(self.model.axis_sizes) * max(self.place_bytes, default=0.0)
        self.made_at = {v.id: (self.groups[c.index], k) for c in self.clustering.clusters for k, v in enumerate(c.outs)}
        self.readers: dict[int, list[tuple[int, int, int]]] = {}
        for cluster in self.clustering.clusters:
            for position, v in enumerate(cluster.ins):
                self.readers.setdefault(v.id, []).append((self.groups[cluster.index], position, cluster.index))

    def run(self) -> Iterator[Table]:
        """Every table that is not zero everywhere."""
        for cluster in self.clustering.clusters:
            group = self.groups[cluster.index]
            leaving = set()
            for k, v in enumerate(cluster.outs):
                leaving.add(v.id)
                if v.shape:
                    self._result(cluster, group, k, v)
            if cluster.root is None:
                self._scratch(cluster, group)
            if cluster.ops[0].index in self.results:
                v = cluster.ops[0].ins[0]
                if isinstance(v, Value) and v.shape:
                    self._add(("result", group, 0), group, -1, 0, self.program_end - 1, v)
            if cluster.root is not None:
                inner = [v for op in cluster.ops for v in op.outs]
                for k, v in enumerate(inner):
                    life = self.lifetimes[v.id]
                    if v.id not in leaving and v.shape and not life.named and life.kept >= life.made:
                        self._add(("inside", group, k), group, -1, life.made, life.kept, v, self._room(life))
        self._shared_zeros()
        yield from (t for t in self.tables.values() if t is not None)

    def _shared_zeros(self) -> None:
        """What two loops start from, where both have it in the same signature; or where that is not counted yet."""
        for zeros in self.zeros:
            one, other = zeros.one, zeros.beside or zeros.other
            if one.id in self.made_at and other.id in self.made_at:
                (a, k), (b, position) = self.made_at[one.id], self.made_at[other.id]
                start, end = self.lifetimes[one.id].made, self.lifetimes[zeros.other.id].made - 1
                if a != b:
                    what = "zeros" if zeros.beside is None else "zeros beside"
                    self._add((what, a, k, b, position), a, b, start, end, one)
                elif zeros.beside is None:
                    self._add(("own", a, k), a, -1, start, end, one)

    def _smallest_results(self) -> dict[int, float]:
        """By id of a value that is a result: the bytes of its buffer, cut as much as where it is made."""
        clusters = self.clustering.clusters
        made = {v.id: [s.outs[k] for s in c.strategies] for c in clusters for k, v in enumerate(c.outs)}
        found: dict[int, float] = {}
        for cluster in clusters:
            op = cluster.ops[0]
            if op.index in self.results and isinstance(v := op.ins[0], Value):
                shares = [self.model.share(v.shape, s.ins[0]) if s.ins else s.share for s in cluster.strategies]
                least = min([self.model.share(v.shape, c) for c in made.get(v.id, ())], default=0.0)
                found[v.id] = min(max(shares), max(min(shares), least)) * v.size_bytes
        return found

    def _scratch(self, cluster: OpCluster, group: int) -> None:
        op = cluster.ops[0]
        for k, item in enumerate(self.scratch.get(op.index, ())):
            at = self.lifetimes[op.outs[0].id].made
            room = 0.0 if item.place is None else self.smallest[item.place.id]
            key = ("scratch", group, k, room)
            if key not in self.tables:
                v = (op.ins if item.side == "in" else op.outs)[item.position]
                codes = [cluster.codes(s, op)[item.side == "out"][item.position] for s in self.ways[group]]
                parts = np.array([1.0 if c is None else self.model.share(v.shape, c) for c in codes])
                if item.after:
                    parts *= [c is None or min(c, default=B) >= B for c in codes]
                held = item.size_bytes * parts ** (2 if item.pairs else 1)
                self.tables[key] = Table("scratch of ", group, -1, np.where(held > room, held, 0.0), 1.0)
            self._add(key, group, -1, *(item.span or (at, at)), op.outs[0])

    def _add(self, key: _Key, a: int, b: int, start: int, end: int, v: Value, room: float = 0.0) -> None:
        """One more instance of a table, which is computed the first time. What fits into ``room``
        bytes is held elsewhere."""
        if end >= start and (key[0] not in _OF_TWO or key[0] in self._of_two(key[1:], v)):
            self._put(key, a, b, start, end, v, room)

    def _put(self, key: _Key, a: int, b: int, start: int, end: int, v: Value, room: float) -> None:
        if room:
            key = *key, room
        if key not in self.tables:
            table = self._make(key, v, a, b)
            if table is not None and room:
                held = table.parts * table.factor
                beyond = np.where(held > room, held, 0.0)
                table = replace(table, parts=beyond, factor=1.0) if beyond.any() else None
            self.tables[key] = table
        table = self.tables[key]
        if table is not None:
            table.start.append(start)
            table.end.append(end)
            table.values.append(v)

    def _result(self, cluster: OpCluster, group: int, k: int, v: Value) -> None:
        life = self.lifetimes[v.id]
        made, whole, first, last, kept = life.made, life.whole, max(life.first, life.whole), life.last, life.kept
        room = self._room(life)
        readers = self.readers.get(v.id, ())
        hub = self.hub_of.get((group, k))
        if not readers or (hub is None and group == readers[0][0]):
            if life.resident or not (life.named or life.home):
                self._add(("own", group, k), group, -1, made, kept, v, room)
            if life.copied >= first:
                self._copied(group, k, v, life)
            return
        other, position = (hub, -1) if hub is not None else readers[0][:2]
        where = (group, k, other, position)
        apart = [r for r in readers if self._is_apart(life, r[2])]
        if hub is not None and 0 < len(apart) < len(readers):
            readers = [r for r in readers if r not in apart]
            last = max(self._times(life, index)[1] for _, _, index in readers)
            kept = self._apart(cluster, k, v, hub, apart, [self._times(life, index) for _, _, index in readers])
        into_loop = any([self.clustering.clusters[r[2]].ops[0].name in _OF_LOOPS for r in readers])
        sliced = first if into_loop else whole
        possible = self._of_two(where, v)
        aside = 0.0 if life.home or _COPIES.isdisjoint(possible) else self._aside(v, min(first, whole), last)

        def add(what: str, start: int, end: int, room: float = 0.0) -> None:
            if end >= start and what in possible:
                self._put((what, *where), group, other, start, end, v, room)

        if life.resident:
            self._add(("own", group, k), group, -1, made, kept, v)
            if life.copied >= first:
                self._copied(group, k, v, life)
            # What is not wanted in memory the readers' kernels take.
            add("slice", first, life.wanted, aside)
            add("smaller", first, last, aside)
            add("larger", first, last, aside)
        else:
            if not (life.named or life.home):
                add("same", made, kept, room)
            if not life.named:
                if not life.fluid:
                    add("source of slice", made, sliced, room)
                add("source of smaller", made, whole, room)
                add("source of larger", made, first, room)
            if life.fluid:
                add("slice", made, kept, room)
            elif not life.home:
                add("slice", sliced, last, aside)
            if not life.home:
                add("smaller", whole, last, aside)
                add("larger", first, last, aside)
            if whole == made:  # a loop's stack is written in the order that is wanted
                add("moved", whole, whole)
        if into_loop and not life.named:
            add("gathered", first, first)
        if self.model.uneven:  # gathered with its padding, and then without
            add("padding", first, first)
        if hub is not None:
            self._more(group, k, hub, v, life, readers)
            if not (into_loop or life.named or self.model.hardware.device.name != "cpu"):
                self._laid_out(group, k, v, life, readers)

    def _laid_out(self, group: int, k: int, v: Value, life: Lifetime, readers: Sequence[tuple[int, int, int]]) -> None:
        """What is gathered for a product lies in the order of its dims, and for others as the collective leaves it.

        An argument is gathered, too, where others read pieces of that.
        """
        products, others = [], []
        for reader, at, index in readers:
            first, until = self._times(life, index)
            is_product = self.clustering.clusters[index].ops[0].name in OF_LIBRARIES
            (products if is_product else others).append((until, first, reader, at))
        if products:
            start, last = min(first for _, first, _, _ in products), max(products)[0]
            for until, _, reader, at in sorted(others):
                end = min(until, last)
                self._add(
                    ("laid out" if life.resident else "gathered", group, k, reader, at), group, reader, start, end, v
                )
                start = max(start, end + 1)

    def _copied(self, group: int, k: int, v: Value, life: Lifetime) -> None:
        """The copy of a donated argument, where the node that it is made for reads the argument as it is.

        One that goes into the buffer of another argument's takes memory where its piece is larger than that one's.
        """
        if (host := life.copied_in) is not None:
            a, n = self.made_at[host.id]
            if a != group:
                self._add(("beyond", group, k, a, n), group, a, life.first, life.copied, v)
            return
        for reader, at, index in self.readers.get(v.id, ()):
            if any([op.index == life.copied_for for op in self.clustering.clusters[index].ops]):
                what = ("own", group, k) if reader == group else ("same", group, k, reader, at)
                self._add(what, group, -1 if reader == group else reader, life.first, life.copied, v)
                return

    def _is_apart(self, life: Lifetime, reader: int) -> bool:
        """Whether a cluster shares no copy of a value with other readers.

        What reads it by another name boxes that. An argument's replacement has its signature, and is made of it as it
        is: the optimizer does not read what was gathered for the layers.
        """
        ops = self.clustering.clusters[reader].ops
        if ops[0].name == "sbp.barrier":
            return True
        return life.resident and all([op.index in self.updates for op in ops if op.index in life.reads])

    def _apart(
        self, cluster: OpCluster, k: int, v: Value, hub: int, apart: Sequence[tuple[int, int, int]],
        others: Sequence[tuple[int, int]],
    ) -> int:  # fmt: skip
        """What is held for readers that share no copy with the others, who read it at these times.

        The value stays for them, whatever the hub has of it. A copy that they want is there from the last reader before
        them, who is taken to want it, too. The last time that it is held for the others.
        """
        life, group = self.lifetimes[v.id], self.groups[cluster.index]
        held = last = max(until for _, until in others)
        for reader, at, index in sorted(apart, key=lambda r: (self._times(life, r[2])[1], r)):
            first, until = self._times(life, index)
            before = [end for _, end in others if until > last or end < first]
            start = max(before) + 1 if before else first
            aside = self._aside(v, start, until)
            for what in ("slice", "smaller", "larger"):
                self._add((what, group, k, reader, at), group, reader, start, until, v, aside)
            if not (life.resident or life.named or life.home):
                self._add(("more", group, k, reader, at, hub), hub, reader, max(life.first, life.whole) + 1, last, v)
                since = max(held + 1, life.made)  # kernels that make it again for the others may come before
                self._add(("same", group, k, reader, at), group, reader, since, min(until, life.kept), v)
                held = max(held, until)
        return life.kept if life.resident else min(life.kept, last)

    def _aside(self, v: Value, start: int, end: int) -> float:
        """The bytes of a result's buffer that copies of a value may have; 0 where there is none.

        Whether they are there is up to the plan: the buffer is taken all the same.
        """
        if start > end or v.size_bytes > self.most_placed:
            return 0.0
        moments = 2 * start + 1, 2 * end + 1
        k = smallest_free(self.places, self.place_bytes, v.size_bytes, *moments)
        if k is None:  # a piece of it may fit
            k = largest_free(self.places, *moments)
        return 0.0 if k is None else self.place_bytes[k]

    def _room(self, life: Lifetime) -> float:
        """The bytes of a result's buffer that a value may have."""
        return math.inf if life.inside else 0.0 if life.place is None else self.smallest[life.place.id]

    def _times(self, life: Lifetime, cluster: int) -> tuple[int, int]:
        """The first and last time that a cluster reads a value."""
        times = [life.reads[op.index] for op in self.clustering.clusters[cluster].ops if op.index in life.reads]
        return min(a for a, _ in times), max(b for _, b in times)

    def _more(
        self, group: int, k: int, hub: int, v: Value, life: Lifetime, readers: Sequence[tuple[int, int, int]]
    ) -> None:
        """Copies beyond the hub's. Readers that want the same one share it, so each adds the time after the last."""
        found = []
        for reader, at, index in readers:
            start, until = self._times(life, index)
            found.append((until, start, reader, at))
        before = self.program_end
        for until, t, reader, at in sorted(found):
            start = max(min(t, before + 1), life.whole)
            self._add(("more", group, k, reader, at, hub), hub, reader, start, until, v, self._aside(v, start, until))
            if start == max(t, life.whole):  # made for it, while what it is made from is there
                self._add(("more moved", group, k, reader, at, hub), hub, reader, start, start, v)
            before = until if before == self.program_end else max(before, until)

    def _make(self, key: _Key, v: Value, a: int, b: int) -> Table | None:
        """The table that a key stands for; None where it is zero everywhere."""
        what, k = key[0], key[2]
        cluster, ways = self.representative[key[1]], self.ways[key[1]]
        factor = float(v.size_bytes)
        if what == "inside":
            inner = [x for op in cluster.ops for x in op.outs][k]
            of = np.array([self.model.share(v.shape, cluster.follow(s.ins[0])(inner) or ()) for s in ways])
            return Table("", a, b, of, factor)
        if what == "result":  # one that needs no decision is made as it leaves
            parts = [self.model.share(v.shape, s.ins[0]) if s.ins else s.share for s in ways]
            return Table("result ", a, b, np.array(parts), factor)
        made = self._codes(key[1], "out", k)
        if what == "own":
            return Table("", a, b, self.parts.shares(v.shape, made), factor)
        other, position = key[3], key[4]
        if what in ("zeros", "zeros beside", "beyond"):
            codes = self._codes(other, "out", position)
            own = self.parts.shares(v.shape, made)[:, None]
            if what == "beyond":
                host = self.representative[other].outs[position]
                held = own * (own * factor > self.parts.shares(host.shape, codes)[None, :] * host.size_bytes)
            else:
                held = own * (is_cut_alike(made, codes) == (what == "zeros"))
            return Table("" if what == "beyond" else "zeros of ", a, b, held, factor) if held.any() else None
        from_hub = what in _OF_HUBS
        of = self._of_two(key[1:6] if from_hub else key[1:5], v)[what]
        hub = self.hubs.get(key[5] if from_hub else other)
        if hub is not None and hub.sets:  # a choice of the hub's is several signatures held at once
            of = np.stack([of[list(x)].min(axis=0) for x in hub.sets]) if from_hub else hub.by_choice(of)
        words = "boxed copies of " if what in _COPIES else ""
        return Table(words, a, b, of, factor)

    def _of_two(self, key: _Key, v: Value) -> dict[str, np.ndarray]:
        """The parts of a value by the signatures in which it is made, or held at a hub, and read."""
        found = self.of_two.get(key)
        if found is None:
            (group, k, other, position), hub = key[:4], key[4:]
            made = self.hubs[hub[0]].codes if hub else self._codes(group, "out", k)
            codes = self.hubs[other].codes if position < 0 else self._codes(other, "in", position)
            found = self.of_two[key] = self.parts.pairs(v.shape, made, codes)
        return found

    def _codes(self, group: int, side: str, k: int) -> tuple[Code, ...]:
        ways = self.ways[group]
        return self.parts.codes((id(ways), side, k), lambda: [(s.outs if side == "out" else s.ins)[k] for s in ways])
