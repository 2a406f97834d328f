"""When each value takes memory, whatever its signature: made, first read, last read, by position among the nodes.

XLA materialises few of a program's values. An element-wise op is computed inside the kernels that read it, again in
each of them where it is cheap (``InstructionFusion``): then it takes no memory, and what it reads is held to the
last of those kernels instead. A matrix product's operand is in memory from the first product to the last, and
what it is made of is not held for them (measured on GPT: of queries, keys and values one array each, as they are
projected or as the products want them). On CPUs exponentials, roots and the like with several readers are computed
once and kept. What a matrix product, a collective, a loop or the caller reads is always in memory. A reshape is another
name for its operand's buffer. An element-wise kernel writes over an operand that dies in it. What a loop reads is held
through the loop; a loop's carry is one buffer from its initial value to its final one.

``graph/fusion.py`` asks another question, what moves through memory: what is element-wise is one answer for both. A
value may be read by several kernels of one of its passes, so what is written there need not be what is held here.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...rules import Factors
from ...trace import Barriers, Op, Program, Value, barriers, late_reads
from ..graph.fusion import pointwise
from .boundaries import hold_invariants, join_in_place, spans
from .duplicates import read_once
from .fused import gathers_copied, merge_scatters, name_apart
from .kernels import (
    ALIASES,
    BRANCHES,
    COMPUTES,
    IN_PLACE,
    LONG,
    MOST_COPIES,
    MOVES,
    OF_LIBRARIES,
    REDUCTIONS,
    REPEATED,
    comes_back,
    concatenates_rows,
    in_reductions,
    is_cheap,
    is_gpu,
    is_reshaped,
    reads_more,
)
from .lifetime import Lifetime
from .places import Place, lodge
from .replaced import hold_copies
from .scratch import LAPACK, Around, Form, Scratch, has_batch_dims, reorders, scratch, turns, wanted_form
from .softmax import hold_softmax
from .widening import is_turned_once, widened
from .zeros import Zeros, shared_zeros

# Who asks for the elements of a kernel's own result.
_ITSELF = frozenset((-1,))


@dataclass(slots=True)
class Liveness:
    """By value id; by node, what it takes while it runs. ``zeros``: what two loops start from (``zeros.py``).

    ``updates``: the nodes that only make the replacements of donated arguments. ``places``: the buffers of its results.
    """

    values: dict[int, Lifetime]
    scratch: dict[int, list[Scratch]]
    zeros: list[Zeros]
    updates: frozenset[int]
    places: list[Place]


def lifetimes(program: Program, factors: Sequence[Factors], free: Collection[int], device: str) -> Liveness:
    """When everything takes memory that a step takes. ``free`` values are made by each reader where it needs them."""
    walk = _Walk(program, factors, free, device)
    updates = frozenset(k for k, yes in enumerate(walk.updates) if yes)
    zeros = shared_zeros(program.graph, walk.maker)
    return Liveness(walk.run(), walk.scratch, zeros, updates, walk.places)


class _Walk:
    """One pass over the nodes, last to first: when readers are known, so is what they read."""

    def __init__(self, program: Program, factors: Sequence[Factors], free: Collection[int], device: str) -> None:
        self.program, self.free, self.device = program, free, device
        self.scratch: dict[int, list[Scratch]] = {}
        self.end = len(program.nodes) - 1
        nodes = program.nodes
        self.alias = [op.name in ALIASES for op in nodes]
        self.fusible = [
            op.primitive is not None
            and op.name not in LONG
            and (yes or alias or op.name in MOVES)
            and not (device == "cpu" and concatenates_rows(op))
            for op, yes, alias in zip(nodes, pointwise(program, factors), self.alias, strict=True)
        ]
        self.on_gpu = is_gpu(device)
        self.spans = spans(program.graph)
        once = [fuses and not named for fuses, named in zip(self.fusible, self.alias, strict=True)]
        self.readers, self.duplicates = read_once(program, once, free)
        self.maker = {v.id: op for op in nodes for v in op.outs}
        self.cheap = [
            is_cheap(op, self.maker) or (self.on_gpu and fuses) for op, fuses in zip(nodes, self.fusible, strict=True)
        ]
        name_apart(program, self.fusible, self.alias, self.readers, self.maker, device)
        self.scattered = merge_scatters(program, self.fusible, self.maker) if device == "cpu" else set()
        self.replacing = {program.output_ops[o].index for _, o in program.donated}
        self.homes = {op.index for op in program.output_ops}
        # When the op runs; then its own kernel, or the last kernel that computes it again; and the first.
        self.when = self._schedule()
        self.held = barriers(program, free) if device == "cpu" else Barriers()
        self.wide = widened(program, device, self.when, self.spans, self.readers, self.held.passed)
        self.latest, self.earliest = list(self.when), list(self.when)
        self.repeats = [False] * (self.end + 1)
        self.again = [-1] * (self.end + 1)  # the last kernel that computes it again
        self.claimed: set[int] = set()
        self.absorbed = in_reductions(program, self.readers) if device == "cpu" else [False] * len(nodes)
        # By op and kernel that computes it: the ops that index it there, and how often it is computed for an element.
        self.indexed: list[dict[int, frozenset[int]]] = [{} for _ in nodes]
        self.often: list[dict[int, int]] = [{} for _ in nodes]
        self.forms: dict[int, Counter[Form | None]] = {}  # by value: in which its readers want it
        self.found: dict[int, Lifetime] = {}
        self.places: list[Place] = []

    def _schedule(self) -> list[int]:
        """In program order, but updates in place of donated arguments as soon as they can: they free what they read.

        (XLA's list scheduler takes first what frees most.)
        """
        nodes, n = self.program.nodes, self.end + 1
        self.updates = updates = [False] * n
        for k in range(n - 1, -1, -1):
            if self.fusible[k] and k not in self.spans and nodes[k].outs:
                users = [u.index for v in nodes[k].outs for u, _ in self.readers.get(v.id, ())]
                updates[k] = bool(users) and all([u in self.replacing or updates[u] for u in users])
        self.when = when = list(range(n))
        reads = self.program.reads()
        ready: dict[int, int] = {}
        for k, op in enumerate(nodes):
            if updates[k]:
                when[k] = max([ready.get(i, 0) for i in reads[k]], default=k)
            for result, v in enumerate(op.outs):
                ready[v.id] = max(when[k], self._whole(op, result))
        for op in self.program.input_ops:
            when[op.index] = op.index
        return when

    def run(self) -> dict[int, Lifetime]:
        """Every value's life."""
        program = self.program
        # Bodies come after the ops at their boundary, so only those are read out of order; their times are fixed.
        for op in reversed(program.nodes):
            for k, v in enumerate(op.outs):
                self.found[v.id] = self._life(op, k, v, self.readers.get(v.id, ()))
            if op.name == "sbp.carry" and self.found[op.outs[1].id].home:
                self.found[op.outs[0].id].inside = True  # one buffer from the initial value to the final one
            if op.outs:
                self._when_computed(op)
        donated = {program.input_ops[k].index for k, _ in program.donated}
        for op in program.input_ops:
            life = self.found[op.outs[0].id]
            if not self.readers.get(op.outs[0].id) and op.index not in donated:
                life.kept = life.last = life.made - 1  # ``jax.jit`` hands on no argument that nothing reads
                continue
            life.made, life.whole, life.kept, life.resident = 0, 0, self.end, True
            life.last = max(life.last, life.first)
        if self.device == "cpu":
            copied = late_reads(program, self._is_kept, lambda op: self.repeats[op.index], self.held.together)
            hold_copies(copied, self.found, self.maker, lambda op: op.index in self.homes or self.updates[op.index])
            hold_invariants(program.graph, self.found, self.spans)
        join_in_place(program.graph, self.found, self.spans, self.readers)
        self._take_scratch()
        self.places = lodge(self.program, self.replacing, self.found, self.scratch, self.free)
        return self.found

    def _is_kept(self, op: Op) -> bool:
        """Whether a kernel writes an op's results to memory."""
        return not self.alias[op.index] and any([self.found[v.id].kept >= self.found[v.id].made for v in op.outs])

    def _take_scratch(self) -> None:
        maker = self.maker

        def is_apart(x: Value, user: Op) -> bool:
            op = maker[x.id]
            while has_batch_dims(user) and self.alias[op.index] and op.reads:  # whatever its name
                op = maker[op.reads[0].id]
            alone = len(self.readers.get(x.id, ())) == 1
            made_for_it = self.fusible[op.index] and (alone or self.repeats[op.index])
            is_held = (x.id, user.index) in self.held.aside
            return is_held or (not made_for_it and op.name not in LAPACK)

        def is_computed(x: Value, op: Op, k: int) -> bool:
            return self.repeats[maker[x.id].index] and self._is_made_for(x, op, k)

        around = Around(self.device, is_apart, is_computed, self.readers, lambda v: self.found[v.id].home)
        for op in self.program.nodes:
            work = list(scratch(op, around))
            if op.index in self.wide.products:  # converted in the form that is wanted
                work = [item for item in work if item.side == "out"]
            if work := work + self.wide.scratch.get(op.index, []):
                self.scratch[op.index] = work
        if self.device == "cpu":
            for op, user in gathers_copied(self.program, self.readers, self.absorbed):
                at = self.earliest[user.index]
                copy = Scratch("out", 0, float(op.outs[0].size_bytes), span=(at, at))
                self.scratch.setdefault(op.index, []).append(copy)
            hold_softmax(self.program, self.readers, self.free, self.found, self.scratch)

    def _life(self, op: Op, k: int, v: Value, readers: Sequence[tuple[Op, int]]) -> Lifetime:
        at = op.index
        start = self._made(op, k)
        alone = len(readers) == 1
        found = [self._read(user, position, start, v, alone) for user, position in readers]
        if readers and v.id in self.duplicates:
            reads = {u.index: (t, until) for (t, until, _, _), (u, _) in zip(found, readers, strict=True)}
            first, last = min([t for t, _ in reads.values()]), max([t for _, t in reads.values()])
            return Lifetime(v, start, start, min(first, self.end), last, start - 1, fluid=True, reads=reads)
        named = self.alias[at]
        repeats = (self.fusible[at] and (alone or self.cheap[at])) or op.name in REPEATED
        if repeats and not named and reads_more(op, self.maker):
            at_will = alone or self.on_gpu or not comes_back(op, readers, self.maker, self.fusible)
            repeats = at_will and all([fuses for _, _, fuses, _ in found])
        beyond = -1  # the last kernel that would compute it too often, and reads it instead
        if self.fusible[at] and v.shape and repeats:  # numbers take no room, and every kernel may compute them
            indexed = self._indexed(readers)
            often = {
                u: 1 if by is _ITSELF else sum([self.often[i].get(u, 1) for i in by if i >= 0]) or 1
                for u, by in indexed.items()
            }
            most = 1 if op.name in BRANCHES else MOST_COPIES
            again = [u for u, n in often.items() if n <= most]
            if len(again) < len(often):
                beyond = max([self.when[u] for u, n in often.items() if n > most])
                repeats = bool(again)
            if again:
                self.indexed[at], self.often[at] = {u: indexed[u] for u in again}, {u: often[u] for u in again}
        if beyond >= 0 or not self.indexed[at]:
            self.indexed[at][at], self.often[at][at] = _ITSELF, 1
        first, last, home = self.end + 1, start, False
        wide = bool(readers) and at in self.wide.products  # its conversion is what readers compute again
        apart = repeats or (wide and v.id not in self.held.written and not is_turned_once(v, self.readers))
        kept = start - 1 if readers and apart else start
        reads: dict[int, tuple[int, int]] = {}
        for (t, until, fuses, by_name), (user, _) in zip(found, readers, strict=True):
            reads[user.index] = t, until
            first = t if t < first else first
            last = until if until > last else last
            is_read = by_name is not None and user.name != "sbp.barrier"
            if repeats and (fuses or is_read):
                self.again[at] = max(self.again[at], self.again[user.index] if by_name is not None else until)
            if by_name is not None:
                home = home or by_name.home
                if user.name == "sbp.barrier":
                    kept = max(kept, until)
                elif by_name.kept >= by_name.made:
                    kept = max(kept, by_name.kept)
            if until > kept and not (fuses and apart):
                kept = until
            home = home or user.index in self.homes
        self.repeats[at] |= repeats
        if repeats and beyond >= 0:
            kept = max(kept, beyond)
            self.again[at] = max([self.when[u] for u in self.indexed[at] if u != at])
        if not named and kept == last and kept > start and self._overwritten(v, kept, readers):
            kept = last = kept - 1
        whole = self._whole(op, k)
        if repeats and not named and kept > start:
            # Those that compute it aside, a reduction or a barrier may be the first to want it in memory.
            needed = [(t, u.index) for (t, _, fuses, name), (u, _) in zip(found, readers, strict=True)
                      if not fuses or (name is not None and name.kept >= name.made)]  # fmt: skip
            t, user = min(needed, default=(start, at))
            if t > start and (self.absorbed[user] or self.program.nodes[user].name == "sbp.barrier"):
                start = whole = t
                self.again[at] = max(self.again[at], start)
        if wide:
            until = max([until for _, until, fuses, _ in found if fuses and apart], default=start)
            sizes = [math.prod(x.shape) for x in self.program.nodes[until].reads]
            if until > start and until in self.wide.products and math.prod(v.shape) in sizes:
                until -= 1  # that operand's conversion is written over it
            held = self.wide.scratch.setdefault(at, [])
            held.append(Scratch("out", 0, 2.0 * v.size_bytes, span=(start, start)))
            if until > start:
                held.append(Scratch("out", 0, 2.0 * v.size_bytes, span=(start + 1, until), after=True))
        for user, _ in self.program.consumers().get(v.id, ()):
            if user.index not in reads:  # a duplicate: it is there when the first is
                twin = self.maker[self.duplicates[user.outs[0].id]]
                reads[user.index] = reads.get(twin.index, (start, start))
        return Lifetime(v, start, whole, min(first, self.end), last, kept, named, home=home,
                        fluid=self.fusible[at] and not named, wanted=kept, reads=reads)  # fmt: skip

    def _indexed(self, readers: Sequence[tuple[Op, int]]) -> dict[int, frozenset[int]]:
        """By kernel that would compute an op for its readers: those that ask for elements in an order of their own.

        An element-wise reader asks as it is asked itself.
        """
        found: dict[int, frozenset[int]] = {}
        for user, _ in readers:
            u = user.index
            if not (self.fusible[u] or self.alias[u]):
                continue
            moves = user.name in MOVES
            for kernel, by in self.indexed[u].items():
                mine = frozenset((u,)) if moves else by
                found[kernel] = found[kernel] | mine if kernel in found else mine
        return found

    def _made(self, op: Op, k: int) -> int:
        if op.index not in self.spans:
            return self.when[op.index]
        first, final = self.spans[op.index]
        if op.name == "sbp.carry":
            return final if k == 1 else first
        return final if op.name == "sbp.join" else first if op.name == "sbp.stack" else op.index

    def _whole(self, op: Op, k: int) -> int:
        return self.spans[op.index][1] if op.name == "sbp.stack" else self._made(op, k)

    def _is_made_for(self, v: Value, user: Op, position: int) -> bool:
        """Whether a product or convolution reads a value in a form of its own, which a kernel puts it in, on CPUs.

        What several readers want in one form is made once for all of them. What comes with results that are waited for
        (``trace/order.py``) is in memory as it is.
        """
        if self.device != "cpu" or not self.fusible[self.maker[v.id].index] or (v.id, user.index) in self.held.aside:
            return False
        readers = self.readers.get(v.id, ())
        if len(readers) == 1:
            return False
        if v.id not in self.forms:
            self.forms[v.id] = Counter([wanted_form(u, k) for u, k in readers])
        form = wanted_form(user, position)
        return form is not None and self.forms[v.id][form] == 1

    def _read(self, user: Op, k: int, start: int, v: Value, alone: bool) -> tuple[int, int, bool, Lifetime | None]:
        """First and last time that ``user`` reads a value; whether it can compute it itself; the name it gives it."""
        at = user.index
        if at in self.spans and user.name != "sbp.barrier":
            begin, final = self.spans[at]
            if user.name == "sbp.carry":
                return (begin - 1, begin - 1, False, None) if k == 0 else (final, final - 1, False, None)
            if user.name == "sbp.join":
                return final, final - 1, False, None
            then = start if user.name == "sbp.stack" else self.wide.before.get((v.id, at))
            if then is not None:
                return then, then, True, None
            return begin, final, False, None
        if self.alias[at] and user.outs and k == 0:  # Nothing is fused across a barrier.
            return self.earliest[at], self.latest[at], user.name != "sbp.barrier", self.found[user.outs[0].id]
        inside = self.absorbed[self.maker[v.id].index]
        if self.fusible[at]:
            return self.earliest[at], self.latest[at], inside or not self.absorbed[at], None
        when = self.when[at]
        if (made := self.wide.converted_at(v, user, k)) is not None:
            return made, made, v.id not in self.held.written, None  # what is in memory for one is for all
        if self.device == "cpu" and user.name in REDUCTIONS:
            return when, when, inside, None
        if self._is_made_for(v, user, k):  # and what that is made of is gone when the others are put in form
            before = max(start, when - 1)
            return before, before, True, None
        computes = user.name in COMPUTES and (alone or (self.on_gpu and user.name in REDUCTIONS))
        return when, when, computes or (k == 1 and has_batch_dims(user)), None

    def _when_computed(self, op: Op) -> None:
        """The kernels in which an op runs: its own where a result is kept, those of its readers else."""
        if not self.repeats[op.index] or (op.index in self.spans and op.name != "sbp.barrier"):
            return
        lives = [self.found[v.id] for v in op.outs]  # a split has several results
        when, is_kept = self.when[op.index], any([life.kept >= life.made for life in lives])
        if self.alias[op.index]:
            self.latest[op.index] = max(lives[0].last, when)
        else:
            self.latest[op.index] = max(self.again[op.index], when if is_kept else -1)
            if self.latest[op.index] < 0:
                self.latest[op.index] = when
        self.earliest[op.index] = when if is_kept else max(when, min([life.first for life in lives]))

    def _overwritten(self, v: Value, at: int, readers: Sequence[tuple[Op, int]]) -> bool:
        """Whether the kernel in which a value dies writes its result over it, element by element."""
        op, maker = self.program.nodes[at], self.maker[v.id]
        if is_reshaped(maker) or (self.on_gpu and (maker.name in OF_LIBRARIES or maker.name in IN_PLACE)):
            return False
        if at in self.claimed or not op.outs or op.index in self.spans:
            return False
        result = op.outs[0]
        if (
            result.shape != v.shape
            or result.itemsize != v.itemsize
            or not (self.fusible[at] or op.name in IN_PLACE or at in self.scattered)
        ):
            return False
        if self.fusible[at] and self._indexed(readers).get(at) != _ITSELF:
            return False
        users = self.readers.get(result.id, ())
        if any([reorders(*u) or (self.device == "cpu" and len(users) == 1 and turns(*u)) for u in users]):
            return False
        self.claimed.add(at)
        return True
