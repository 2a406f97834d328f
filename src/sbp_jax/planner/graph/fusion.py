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

from ...rules import Factors
from ...trace import Op, Program, Value

# A row that a block of threads can hold while it is reduced and read again (shared memory is 100 KiB and more).
_LONGEST_ROW = 2**16
_SHAPES = {"broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "pad", "rev", "concatenate",
           "split", "copy"}  # fmt: skip
_REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"}

# A pass: how many ops that end one lie before it, the loop it is in by how often that runs, and what it reduces.
_Pass = tuple[int, float, str]


@dataclass(slots=True)
class Fusion:
    """``fused`` values never reach memory. ``reads`` counts how often a cluster reads a value from memory, by
    (cluster, value id)."""

    fused: set[int] = field(default_factory=set)
    reads: dict[tuple[int, int], int] = field(default_factory=dict)


def is_pointwise(op: Op, factors: Factors) -> bool:
    """Every result dim is one factor (or size 1) and operands repeat them in place; nothing is mixed."""
    if (
        op.primitive is None
        or op.name == "sbp.pin"
        or not op.outs
        or factors.blocked
        or factors.reduced
        or factors.once
    ):
        return False
    dims = factors.outs[0]
    if any(len(d) > 1 for d in dims) or any(out != dims for out in factors.outs[1:]):
        return False
    return all(x == () or (len(x) == len(dims) and all(a in ((), b) for a, b in zip(x, dims, strict=True)))
               for x in factors.ins)  # fmt: skip


def pointwise(program: Program, factors: Sequence[Factors]) -> list[bool]:
    """By node, whether it ``is_pointwise``: asked once for all ops that look alike, which share their factors."""
    known: dict[tuple[str, int], bool] = {}
    found: list[bool] = []
    for op, f in zip(program.nodes, factors, strict=True):
        look = (op.name, id(f))
        yes = known.get(look)
        if yes is None:
            yes = known[look] = is_pointwise(op, f)
        found.append(yes)
    return found


def movable(program: Program, factors: Sequence[Factors]) -> list[bool]:
    """By node, whether it can run inside a kernel of others."""
    return [
        yes or (op.primitive is not None and (op.name in _SHAPES or op.name in _REDUCTIONS))
        for op, yes in zip(program.nodes, pointwise(program, factors), strict=True)
    ]


def fusion(program: Program, factors: Sequence[Factors], cluster_of: Mapping[int, int]) -> Fusion:
    """What is fused, and what each cluster reads."""
    f = _Fuser(program, factors)
    f.decide()  # as if nothing were fused
    f.decide()  # now that it is known what the operands are made of
    return f.result(cluster_of)


class _Fuser:
    """Nodes, values and passes are numbers here: a pass is a number of its own, a set of passes one object wherever
    it is the same one."""

    def __init__(self, program: Program, factors: Sequence[Factors]) -> None:
        nodes = program.nodes
        self.reads = program.reads()
        self.made = [tuple([v.id for v in op.outs]) for op in nodes]
        self.size = {v.id: v.size_bytes for op in nodes for v in op.outs}
        self.users: dict[int, list[int]] = {i: [] for i in self.size}
        for k, values in enumerate(self.reads):
            for i in values:
                self.users[i].append(k)
        self.reduces = [op.name in _REDUCTIONS for op in nodes]
        self.shapes = [op.name in _SHAPES for op in nodes]
        self.movable = movable(program, factors)
        self.own = self._passes(program)
        self.maker = {i: k for k, values in enumerate(self.made) for i in values}
        self.leaves: dict[int, frozenset[int]] = {}
        self.before: set[int] = set()
        self.fused: set[int] = set()
        self.asked: list[frozenset[int]] = []

    def _passes(self, program: Program) -> list[frozenset[int]]:
        """By node, the pass it would be part of; for what is a kernel of its own, the pass in which it reads."""
        depth: dict[int, int] = {}
        deepest = 0
        number: dict[_Pass, frozenset[int]] = {}
        found: list[frozenset[int]] = []
        for k, op in enumerate(program.nodes):
            here = max([depth.get(i, 0) for i in self.reads[k]], default=0)
            if op.primitive is None and op.ins:  # a boundary: nothing crosses it
                here = deepest
            after = here
            if self.movable[k]:
                kind = _reduced(op) if self.reduces[k] else ""
                one = (here, op.outs[0].times, kind)
                known = number.get(one)
                found.append(number.setdefault(one, frozenset((len(number),))) if known is None else known)
                after += bool(kind)
            else:
                found.append(frozenset((-1 - k,)))
                after += 1
            deepest = max(deepest, after)
            for i in self.made[k]:
                depth[i] = after
        return found

    def decide(self) -> None:
        """Last op first, whether each value is fused, and in which passes it is needed."""
        movable, reduces, shapes, users, made = self.movable, self.reduces, self.shapes, self.users, self.made
        self.before, self.leaves = self.fused, {}
        fused: set[int] = set()
        # The passes in which an op reads its operands. A loop's boundary reads what its body makes further down:
        # that is known beforehand.
        asked = list(self.own)
        takes = list(movable)  # whether an operand may stay out of memory
        for k in range(len(made) - 1, -1, -1):
            if not movable[k]:
                continue
            own = asked[k]
            inside: list[frozenset[int]] = []
            for i in made[k]:
                readers = users[i]
                # A reduction's result is small, and may take a pass to make.
                if reduces[k] or not readers:
                    continue
                passes, all_take = asked[readers[0]], takes[readers[0]]
                for u in readers[1:]:
                    all_take = all_take and takes[u]
                    if asked[u] is not passes:
                        passes = passes | asked[u]
                if all_take and (len(passes) == 1 or self._is_cheap_again(k, i, passes, own)):
                    fused.add(i)
                    inside.append(passes)
            if inside:
                asked[k] = _union(inside if len(inside) == len(made[k]) else [own, *inside])
            if shapes[k]:  # a change of shape is no kernel by itself
                takes[k] = len(inside) == len(made[k])
        self.fused, self.asked = fused, asked

    def _is_cheap_again(self, k: int, value: int, passes: frozenset[int], own: frozenset[int]) -> bool:
        """Whether a value is better made in each pass that needs it than written for all."""
        from_bytes = sum([self.size[i] for i in self._sources(k)])
        return len(passes) * from_bytes < from_bytes + self.size[value] * (1 + len(passes - own))

    def _sources(self, k: int) -> frozenset[int]:
        """The values in memory that a node's results are made from, by the round before this one."""
        pending = [k]
        while pending:
            at = pending[-1]
            values = [i for i in self.reads[at] if i in self.before]
            wanting = [i for i in values if i not in self.leaves]
            if wanting:
                pending += [self.maker[i] for i in wanting]
                continue
            pending.pop()
            sources = frozenset([i for i in self.reads[at] if i not in self.before])
            sources = sources.union(*[self.leaves[i] for i in values]) if values else sources
            for i in self.made[at]:
                self.leaves[i] = sources
        return sources

    def result(self, cluster_of: Mapping[int, int]) -> Fusion:
        """Each pass that reads a value is charged to the first cluster in it."""
        found = Fusion(self.fused)
        claimed: dict[int, frozenset[int]] = {}
        for k, values in enumerate(self.reads):
            cluster = cluster_of.get(k)
            if cluster is None:
                continue
            asked = self.asked[k]
            for i in values:
                if i in self.fused:
                    continue
                before = claimed.get(i)
                fresh = len(asked) if before is None else 0 if before is asked else len(asked - before)
                if fresh:
                    claimed[i] = asked if before is None else before | asked
                found.reads[cluster, i] = found.reads.get((cluster, i), 0) + fresh
        return found


def _union(sets: Sequence[frozenset[int]]) -> frozenset[int]:
    first = sets[0]
    return first if all(x is first for x in sets) else first.union(*sets[1:])


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
