"""A step cut into micro-batches: what of it runs for each of them, what once before, and what once after.

A micro-batch is a device in time. Cut along the batch, a step is split over "time" as a mesh axis splits it over
devices, and the same rule table says what that makes of every value: the batch and the activations are ``S``, weights
``B``, gradients and losses ``P``, sums over the micro-batches that are still to be made. So an op belongs

* *once*, before the micro-batches, where it reads nothing of them: weights cast to another type, a schedule of rates;
* in the *loop* over them, where it reads a part of the batch and its rule lets it run on parts;
* *after* them, where it reads what is complete only then: the optimizer's update, a norm of all gradients.

Nothing in the loop may need the whole batch: a batch norm's statistics are sums that every example waits for. Where
such a sum is quick to make of the batch alone (how many tokens count), it is made once, of the whole batch. Other
statistics can be those of each micro-batch, where the user says so: another function, the one that GPipe trains
(arXiv 1811.06965, section 3); sums in the loop are then taken times the number of micro-batches. What the layers and
their backward pass make of such statistics is made in the loop as well: a product of two is not that of their means.
The update reads the means.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax.numpy as jnp

from ...errors import PlanError
from ...rules import Factors
from ...rules.widen import PARTIAL, B, Strategy, strategies
from ...trace import Atom, Lit, Op, Program, Value, user_line
from .bodies import BODIES, whole
from .units import Unit, is_transposed, made_by, nodes_of

# Ops that cost this part of the step or less may run once for the whole batch before the micro-batches; without any
# product of matrices among them, so much.
_QUICK, _QUICK_WITHOUT_PRODUCTS = 1e-3, 0.1
_PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"}
# So much of the step may run after the micro-batches on the whole batch: metrics, not layers.
_MOST_AFTER = 1e-2

Codes = tuple[tuple[int, ...], tuple[int, ...]]


class Region(enum.Enum):
    """When an op runs: once before the micro-batches, for each of them, or once after them."""

    ONCE = "once"
    LOOP = "loop"
    AFTER = "after"


@dataclass(slots=True)
class Microbatches:
    """A program cut into ``count`` micro-batches.

    ``regions`` has one for each op of the program's graph, ``code`` the signature in time of every value (a dim that
    is cut, whole, or partial; see ``rules.widen``), ``ways`` by node of the loop those of its operands and results.
    ``batch`` says which dim of which argument is cut, by number of the argument; ``free`` are values that cost nothing
    to make of scalars, wherever they are needed.
    """

    program: Program
    count: int
    regions: list[Region]
    code: dict[int, int]
    ways: dict[int, Codes]
    batch: dict[int, int]
    free: set[int]
    home: dict[int, Region] = field(default_factory=dict)
    """By value id: the region of what makes it."""
    estimated: set[int] = field(default_factory=set)
    """Values of the loop that are taken for what the whole batch has: statistics of a micro-batch."""

    @property
    def units(self) -> Sequence[Unit]:
        """The ops of the graph, control flow as one."""
        return self.program.graph.ops

    def piece_shape(self, value: Value) -> tuple[int, ...]:
        """The shape of one micro-batch's part of a value."""
        d = self.code.get(value.id, B)
        return tuple(n // self.count if k == d else n for k, n in enumerate(value.shape))


def cut(
    program: Program, factors: Sequence[Factors], count: int, batch: Mapping[int, int], dims: Mapping[int, int],
    free: set[int], estimates: bool = False,
) -> Microbatches:  # fmt: skip
    """Cut a step into ``count`` micro-batches.

    ``batch``: by number of an argument the dim that counts examples; ``dims``: the same by value id, for values that
    are made of no argument (random masks). ``estimates``: statistics over examples that layers need are those of a
    micro-batch (of the whole batch, where that is the only one).

    Raises ``PlanError`` for a batch that does not divide, and for a step that needs the whole batch at once.
    """
    for k, d in batch.items():
        op = program.input_ops[k]
        size = op.outs[0].shape[d]
        if size % count:
            possible = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
            raise PlanError(
                f"a batch of {size} (dim {d} of {op.label or 'the argument'}) cannot be cut into microbatches={count} "
                f"equal parts; possible: {possible}"
            )
    once: set[int] = set()
    # One micro-batch is the whole batch; what each op does with the batch is seen when it is cut in two, or three.
    common = math.gcd(*(program.input_ops[k].outs[0].shape[d] for k, d in batch.items())) if batch else 1
    parts = count if count > 1 else next((n for n in range(2, common + 1) if common % n == 0), 1)
    if parts == 1:
        return _uncut(program, free)
    while True:
        cutter = _Cutter(program, factors, parts, batch, dims, free, once, estimates, count == 1)
        found = replace(cutter.run(), count=count)
        more = cutter.quick_causes() if cutter.is_spoilt else set()
        if not cutter.is_spoilt:
            return found
        if not more - once:
            raise PlanError(cutter.complaint())
        once |= more


def _uncut(program: Program, free: set[int]) -> Microbatches:
    """A program without a batch, or with one of a single example: one micro-batch that runs all that reads data."""
    kept = {i for i, _ in program.donated}
    home = {op.outs[0].id: Region.ONCE if i in kept else Region.LOOP for i, op in enumerate(program.input_ops)}
    regions: list[Region] = []
    for unit in program.graph.ops:
        loop = any(home[x.id] is Region.LOOP for x in unit.reads)
        regions.append(Region.LOOP if loop else Region.ONCE)
        home.update((v.id, regions[-1]) for v in made_by(unit))
    return Microbatches(program, 1, regions, dict.fromkeys(home, B), {}, {}, free, home)


class _Cutter:
    def __init__(
        self, program: Program, factors: Sequence[Factors], count: int, batch: Mapping[int, int],
        dims: Mapping[int, int], free: set[int], once: set[int], estimates: bool,
        is_single: bool,
    ) -> None:  # fmt: skip
        self.estimates, self.is_single, self.estimated = estimates or is_single, is_single, set[int]()
        self.program, self.factors, self.count, self.dims, self.free = program, factors, count, dims, free
        self.batch, self.once = dict(batch), once
        self.pulled: set[int] = set()
        self.depth = 0
        self.code: dict[int, int] = {}
        self.home: dict[int, Region] = {}
        self.ways: dict[int, Codes] = {}
        self.regions: list[Region] = []
        self.units: list[Unit] = program.graph.ops
        self.maker: dict[int, int] = {v.id: k for k, u in enumerate(self.units) for v in made_by(u)}
        self.work = [
            sum(factors[n.index].flops * (n.outs[0].times if n.outs else 1.0) for n in nodes_of(u)) for u in self.units
        ]

    def run(self) -> Microbatches:
        for k, op in enumerate(self.program.input_ops):
            (v,) = op.outs
            self.code[v.id] = self.batch.get(k, B)
            self.home[v.id] = Region.LOOP if k in self.batch else Region.ONCE
        for k, unit in enumerate(self.units):
            self.regions.append(Region.AFTER)
            self.place(k, unit)
        while any([self.joins_terms(k, unit) for k, unit in enumerate(self.units)]):
            pass
        return Microbatches(
            self.program, self.count, self.regions, self.code, self.ways, self.batch, self.free, self.home,
            self.estimated,
        )  # fmt: skip

    def place(self, k: int, unit: Unit) -> None:
        """Put an op where it belongs; what is made of statistics of a micro-batch is one."""
        region = self.region(k, unit)
        self.regions[k] = region
        is_estimated = region is Region.LOOP and any(x.id in self.estimated for x in unit.reads)
        for v in made_by(unit):
            self.home[v.id] = region
            if region is not Region.LOOP:
                self.code[v.id] = B
            elif is_estimated and self.code[v.id] == B:
                self.estimated.add(v.id)

    def region(self, k: int, unit: Unit) -> Region:
        homes = {self.home[x.id] for x in unit.reads}
        if k in self.once:
            return Region.ONCE
        if self.estimates and self.is_of_a_layer(unit):
            self.estimate(unit, set())
            homes = {self.home[x.id] for x in unit.reads}
        if Region.AFTER in homes:
            return Region.AFTER
        if Region.LOOP not in homes:
            made = isinstance(unit, Op) and self.makes_part(unit)
            return Region.LOOP if made else Region.ONCE
        if all(self.home[x.id] is Region.ONCE or self.code[x.id] < B for x in unit.reads):
            return Region.AFTER  # nothing but sums: they are complete then
        if k not in self.pulled and self.is_of_means(unit):
            return Region.AFTER
        if self.decide(unit):
            return Region.LOOP
        if not self.is_single or not any(v.id in self.dims for v in made_by(unit)):
            return Region.AFTER
        whole(self, unit)  # the one micro-batch has all examples
        self.estimated.update(v.id for v in made_by(unit))
        return Region.LOOP

    def is_of_a_layer(self, unit: Unit) -> bool:
        """Whether an op needs parts of activations together with sums over all examples."""
        parts = [x for x in unit.reads if self.home[x.id] is Region.LOOP and self.code[x.id] >= 0]
        large = any(len(v.shape) > 1 and v.id in self.dims for v in made_by(unit))
        return large and bool(parts) and any(self.is_late(x) for x in unit.reads)

    def is_late(self, x: Value) -> bool:
        return self.home[x.id] is Region.AFTER or (self.home[x.id] is Region.LOOP and self.code[x.id] < B)

    def estimate(self, unit: Unit, late: set[int]) -> None:
        """Take the sums that an op waits for from its micro-batch: what is made of them is in the loop, too.

        ``late`` are the numbers of ops after the loop that are to be in it besides.
        """
        queue = [x for x in unit.reads if self.is_late(x)]
        while queue:
            x = queue.pop()
            if self.home[x.id] is Region.LOOP:
                self.estimated.add(x.id)
                self.code[x.id] = B
            elif self.maker[x.id] not in late:
                late.add(self.maker[x.id])
                queue += [y for y in self.units[self.maker[x.id]].reads if self.is_late(y)]
        self.pulled |= late
        for k in sorted(late):
            self.place(k, self.units[k])

    def is_of_means(self, unit: Unit) -> bool:
        """Whether an op outside of the backward pass reads nothing but statistics: of the means over micro-batches.

        An update reads the gradients of the whole batch. What a layer needs is taken into the loop for it.
        """
        loop = [x for x in unit.reads if self.home[x.id] is Region.LOOP]
        return all(x.id in self.estimated and self.code[x.id] == B for x in loop) and not is_transposed(unit)

    def joins_terms(self, k: int, unit: Unit) -> bool:
        """Take an op of the backward pass into the loop that reads statistics of a micro-batch; whether it was not
        there: products of two such are not the product of their means."""
        is_late = self.regions[k] is Region.AFTER and is_transposed(unit)
        if not is_late or not any(x.id in self.estimated for x in unit.reads):
            return False
        self.estimate(unit, {k})
        return self.regions[k] is not Region.AFTER

    def makes_part(self, op: Op) -> bool:
        """Whether a micro-batch's part of a value can be made that comes from no argument's batch."""
        d = self.dims.get(op.outs[0].id) if op.outs else None
        if d is None or op.outs[0].id in self.free or op.has_effect:
            return False
        for s in self.strategies(op):
            fits = all(
                c[0] == B or (isinstance(x, Value) and x.id in self.free) for x, c in zip(op.ins, s.ins, strict=True)
            )
            if s.outs[0][0] == d and fits:
                self.take(op, s)
                return True
        return False

    def strategies(self, op: Op) -> Sequence[Strategy]:
        f = self.factors[op.index]
        return strategies(f, (self.count,), (True,) * len(f.linear))

    def take(self, op: Op, s: Strategy) -> None:
        self.ways[op.index] = tuple(c[0] for c in s.ins), tuple(c[0] for c in s.outs)
        self.code.update((v.id, c[0]) for v, c in zip(op.outs, s.outs, strict=True))

    def decide(self, unit: Unit) -> bool:
        """Choose how an op runs on parts of the batch, if it can."""
        if isinstance(unit, Op):
            return self.decide_op(unit)
        return BODIES[unit.kind](self, unit)

    def decide_op(self, op: Op) -> bool:
        if op.runs_once or op.has_effect:
            return False
        best: tuple[int, Strategy] | None = None
        for s in self.strategies(op):
            price = self.price(op, s)
            if price is not None and (best is None or price < best[0]):
                best = price, s
        if best is None:
            return self.round_terms(op)
        self.take(op, best[1])
        return True

    def round_terms(self, op: Op) -> bool:
        """In a loop of the model's own, a sum that is made narrower (float32 to bfloat16) is rounded term by term.

        It cannot wait for the other micro-batches there. The sum of the rounded terms is as near as the rounded sum
        but for the last bits of the narrower type.
        """
        x = op.ins[0] if op.ins else None
        is_sum = isinstance(x, Value) and self.code.get(x.id) == PARTIAL["sum"]
        if not (self.depth and op.name == "convert_element_type" and is_sum and _is_float(x) and _is_float(op.outs[0])):
            return False
        self.link(op, (PARTIAL["sum"],), (PARTIAL["sum"],))
        return True

    def price(self, op: Op, s: Strategy) -> int | None:
        """What must be cut, in bytes, for an op to run so; None where its operands do not allow it."""
        total = 0
        for x, (c,) in zip(op.ins, s.ins, strict=True):
            if isinstance(x, Lit):
                if c >= 0:
                    return None
            elif self.code.get(x.id, B) != c:
                if self.code.get(x.id, B) != B:
                    return None
                total += 1 if x.id in self.free else 1 + x.size_bytes
        return total

    def body(self, graph_ops: Sequence[Unit]) -> bool:
        """The same for all ops of a body."""
        self.depth += 1
        try:
            return all(map(self.decide_inside, graph_ops))
        finally:
            self.depth -= 1

    def decide_inside(self, unit: Unit) -> bool:
        """Choose how an op of a body runs, if it can."""
        if any(self.code.get(x.id, B) != B for x in unit.reads):
            return self.decide(unit)
        if not (isinstance(unit, Op) and self.makes_part(unit)):
            whole(self, unit)
        return True

    def link(self, op: Op, ins: Sequence[int], outs: Sequence[int]) -> None:
        self.ways[op.index] = tuple(ins), tuple(outs)
        self.code.update((v.id, c) for v, c in zip(op.outs, outs, strict=True))

    def of(self, x: Atom) -> int:
        return self.code.get(x.id, B) if isinstance(x, Value) else B

    @property
    def is_spoilt(self) -> bool:
        """Whether much of the work on the batch would have to wait for all of it."""
        return sum(self.late_work()) > _MOST_AFTER * sum(self.work)

    def late_work(self) -> list[float]:
        return [
            w if r is Region.AFTER and any(v.id in self.dims for v in made_by(u)) else 0.0
            for w, r, u in zip(self.work, self.regions, self.units, strict=True)
        ]

    def cause(self) -> int:
        """The first op that needs parts of the batch together with what is known only after all of them."""
        for k, (unit, region) in enumerate(zip(self.units, self.regions, strict=True)):
            cut = [x for x in unit.reads if self.home[x.id] is Region.LOOP and self.code[x.id] >= 0]
            large = any(v.id in self.dims for v in made_by(unit))
            if region is Region.AFTER and cut and large and self.leads_to_work(k):
                return k
        return next(k for k, w in enumerate(self.late_work()) if w)

    def leads_to_work(self, k: int) -> bool:
        late, reached = self.late_work(), {v.id for v in made_by(self.units[k])}
        total = late[k]
        for j in range(k + 1, len(self.units)):
            if any(x.id in reached for x in self.units[j].reads):
                reached.update(v.id for v in made_by(self.units[j]))
                total += late[j]
        return total > _MOST_AFTER * sum(self.work)

    def quick_causes(self) -> set[int]:
        """Ops of the loop that, run once on the whole batch, would give the first one in trouble what it waits for."""
        unit = self.units[self.cause()]
        wanted = [x for x in unit.reads if self.code.get(x.id, B) < B or self.home[x.id] is Region.AFTER]
        found: set[int] = set()
        queue = [self.maker[x.id] for x in wanted if x.id in self.maker]
        while queue:
            k = queue.pop()
            if k not in found and k not in self.once:
                found.add(k)
                queue += [self.maker[x.id] for x in self.units[k].reads if x.id in self.maker]
        multiplies = any(n.name in _PRODUCTS for k in found for n in nodes_of(self.units[k]))
        most = _QUICK if multiplies else _QUICK_WITHOUT_PRODUCTS
        return found if sum(self.work[k] for k in found) <= most * sum(self.work) else set()

    def complaint(self) -> str:
        unit = self.units[self.cause()]
        name = unit.name if isinstance(unit, Op) else unit.kind
        where = user_line(unit.info)
        return (
            f"microbatches={self.count}: {name}{f' at {where}' if where else ''} needs all examples of the batch at "
            "once (statistics of a batch norm, a loss over pairs of examples): cut into micro-batches, the step would "
            "compute something else. Use microbatches=1, a layer whose results do not depend on the other examples (a "
            "group or layer norm), or, for a batch norm with the statistics of each micro-batch, "
            'Pipeline(batch_statistics="microbatch")'
        )


def _is_float(x: Atom | None) -> bool:
    return x is not None and bool(jnp.issubdtype(x.dtype, jnp.floating))
