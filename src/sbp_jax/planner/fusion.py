"""What goes through a device's memory: XLA computes element-wise ops, reductions and changes of shape inside the
kernels that need their results, and those kernels read what they share once.

Fusible ops with nothing but fusible ops between them form one kernel, here a *pass*: it reads each of its operands
once and writes what other passes need. A softmax is one pass, as is a layer norm, or dropout with the bias and the
residual around it; XLA builds them by (multi-output) fusion (openxla/xla, ``priority_fusion.cc``,
``multi_output_fusion.cc``) and, around reductions of rows, by its Triton emitter
(``softmax_rewriter_triton.cc``). Matrix products end a pass, so do reductions too long for one block, and boundaries
of loops; reductions of columns are a pass of their own. What several passes need is written once or computed again in
each, whichever moves fewer bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..rules import Factors
from ..trace import Op, Program, Value

# A row that a block of threads can hold while it is reduced and read again (shared memory is 100 KiB and more).
_LONGEST_ROW = 2**16
_SHAPES = {"broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "pad", "rev", "concatenate",
           "split", "copy"}  # fmt: skip
_REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"}

# A pass: how many ops that end one lie before it, the loop it is in by how often that runs, and what it reduces.
_Pass = tuple[int, float, str]


@dataclass(slots=True)
class Fusion:
    """``fused`` values never reach memory; each is made from its ``leaves``, which do. ``reads`` counts how often a
    cell reads a value from memory, by (cell, value id)."""

    fused: set[int] = field(default_factory=set)
    leaves: dict[int, frozenset[int]] = field(default_factory=dict)
    reads: dict[tuple[int, int], int] = field(default_factory=dict)


def is_pointwise(op: Op, factors: Factors) -> bool:
    """Every result dim is one factor (or size 1) and operands repeat them in place; nothing is mixed."""
    if op.primitive is None or op.name == "sbp.pin" or not op.outs or factors.blocked or factors.reduced:
        return False
    dims = factors.outs[0]
    if any(len(d) > 1 for d in dims) or any(out != dims for out in factors.outs[1:]):
        return False
    return all(x == () or (len(x) == len(dims) and all(a in ((), b) for a, b in zip(x, dims, strict=True)))
               for x in factors.ins)  # fmt: skip


def fusion(program: Program, factors: Sequence[Factors], cell_of: Mapping[int, int]) -> Fusion:
    """What is fused, and what each cell reads."""
    f = _Fuser(program, factors, cell_of)
    f.decide(f.direct_bytes())  # as if nothing were fused
    f.decide(f.leaf_bytes())  # now that it is known what the operands are made of
    return f.result()


class _Fuser:
    def __init__(self, program: Program, factors: Sequence[Factors], cell_of: Mapping[int, int]) -> None:
        self.program, self.cell_of = program, cell_of
        self.operands = [list({x.id: x for x in op.ins if isinstance(x, Value)}.values()) for op in program.nodes]
        self.users: dict[int, list[Op]] = {}
        for op, values in zip(program.nodes, self.operands, strict=True):
            for x in values:
                self.users.setdefault(x.id, []).append(op)
        self.movable = [
            op.primitive is not None and (op.name in _SHAPES or op.name in _REDUCTIONS or is_pointwise(op, f))
            for op, f in zip(program.nodes, factors, strict=True)
        ]
        self.passes = self._passes()
        self.fused: set[int] = set()
        self.needed: dict[int, frozenset[_Pass]] = {}
        self.asked: dict[int, frozenset[_Pass]] = {}

    def _passes(self) -> list[_Pass]:
        """By node, the pass it would be part of."""
        depth: dict[int, int] = {}
        deepest = 0
        found: list[_Pass] = []
        for op, movable in zip(self.program.nodes, self.movable, strict=True):
            here = max([0, *(depth.get(x.id, 0) for x in self.operands[op.index])])
            if op.primitive is None and op.ins:  # a boundary: nothing crosses it
                here = deepest
            kind = _reduced(op) if op.name in _REDUCTIONS else ""
            found.append((here, op.outs[0].times if op.outs else 1.0, kind))
            after = here if movable and not kind else here + 1
            deepest = max(deepest, after)
            depth.update((v.id, after) for v in op.outs)
        return found

    def direct_bytes(self) -> dict[int, int]:
        """By value, the bytes of its maker's operands."""
        return self._bytes({})

    def leaf_bytes(self) -> dict[int, int]:
        """By value, the bytes of the values in memory that it is made from."""
        return self._bytes(self.leaves())

    def _bytes(self, leaves: Mapping[int, frozenset[int]]) -> dict[int, int]:
        size = {v.id: v.size_bytes for op in self.program.nodes for v in op.outs}
        result: dict[int, int] = {}
        for op, values in zip(self.program.nodes, self.operands, strict=True):
            if self.movable[op.index]:
                total = sum([size[i] for i in self._sources(values, leaves)])
                result.update((v.id, total) for v in op.outs)
        return result

    def _sources(self, values: Sequence[Value], leaves: Mapping[int, frozenset[int]]) -> frozenset[int]:
        if len(values) == 1:
            return leaves.get(values[0].id) or frozenset((values[0].id,))
        return frozenset().union(*(leaves.get(x.id, (x.id,)) for x in values))

    def leaves(self) -> dict[int, frozenset[int]]:
        """By fused value, the values in memory it is made from."""
        found: dict[int, frozenset[int]] = {}
        for op, values in zip(self.program.nodes, self.operands, strict=True):
            for v in op.outs:
                if v.id in self.fused:
                    found[v.id] = self._sources(values, found)
        return found

    def decide(self, made_from_bytes: Mapping[int, int]) -> None:
        """Last op first, whether each value is fused, and in which passes it is needed."""
        self.fused, self.needed = set(), {}
        # A loop's boundary reads what its body makes further down: those are known beforehand.
        self.asked = {op.index: self._asks(op) for op in self.program.nodes if not self.movable[op.index]}
        for op in reversed(self.program.nodes):
            for v in op.outs:
                users = self.users.get(v.id, [])
                passes = self.asked[users[0].index] if users else frozenset()
                if len(users) > 1:
                    passes = passes.union(*(self.asked[u.index] for u in users))
                self.needed[v.id] = passes
                # A reduction's result is small, and may take a pass to make.
                if not self.movable[op.index] or op.name in _REDUCTIONS or not users:
                    continue
                if not all(self._takes(u) for u in users):
                    continue
                made_from = made_from_bytes[v.id]
                again = len(passes) * made_from
                kept = made_from + v.size_bytes * (1 + len(passes - {self.passes[op.index]}))
                if len(passes) == 1 or again < kept:
                    self.fused.add(v.id)
            if self.movable[op.index]:
                self.asked[op.index] = self._asks(op)

    def _takes(self, user: Op) -> bool:
        """Whether an operand of ``user`` may stay out of memory; a change of shape is no kernel by itself."""
        if not self.movable[user.index]:
            return False
        return user.name not in _SHAPES or all(v.id in self.fused for v in user.outs)

    def _asks(self, user: Op) -> frozenset[_Pass]:
        """The passes in which ``user`` reads its operands."""
        if not self.movable[user.index]:
            return frozenset({(-1 - user.index, 0.0, "")})  # a kernel of its own
        inside = [self.needed[v.id] for v in user.outs if v.id in self.fused]
        own = frozenset((self.passes[user.index],)) if len(inside) < len(user.outs) else frozenset()
        return own.union(*inside) if inside else own

    def result(self) -> Fusion:
        """Each pass that reads a value is charged to the first cell in it."""
        found = Fusion(self.fused, self.leaves())
        claimed: set[tuple[int, _Pass]] = set()
        for op in self.program.nodes:
            cell = self.cell_of.get(op.index)
            if cell is None:
                continue
            for x in self.operands[op.index]:
                if x.id in self.fused:
                    continue
                fresh = {(x.id, p) for p in self.asked[op.index]} - claimed
                claimed |= fresh
                found.reads[cell, x.id] = found.reads.get((cell, x.id), 0) + len(fresh)
        return found


def _reduced(op: Op) -> str:
    """How a reduction ends a pass: "" for rows that fit a block, which do not."""
    source, outs = op.ins[0], op.outs[0]
    axes = op.params.get("axes", ())
    length = source.size_bytes // max(source.itemsize, 1) if isinstance(source, Value) else 1
    for n in outs.shape:
        length //= max(n, 1)
    if length > _LONGEST_ROW:
        return "long"
    return "" if not axes or len(source.shape) - 1 in axes else "columns"
