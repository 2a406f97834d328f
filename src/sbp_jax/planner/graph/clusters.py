"""Folding: values that only follow another are decided with it.

A *cluster* is the unit of decision. Most clusters are one op. A chain or bundle of element-wise ops (and transposes)
that all depend on one value is one cluster: inside it nothing can be gained by a change of signature that could
not be had at its entry or its exits, where the same number of elements crosses.

Values that cost nothing to make anywhere (broadcast constants, iotas, and arithmetic on them) belong to no cluster:
each consumer gets them in the signature it wants.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...rules import Factors, lookup, whole
from ...rules.base import sums as additive
from ...rules.widen import Code, Strategy, strategies
from ...signature import ReduceOp
from ...trace import Atom, Lit, Op, Program, Value
from .fusion import fusion, is_pointwise
from .partials import useful_linear

# Ops without operands that cost nothing to make again, and element-wise ones that do cost.
_FREE_SOURCES = {"broadcast_in_dim", "iota", "constant"}
_COSTLY = {"threefry2x32"}


@dataclass(slots=True)
class OpCluster:
    """One decision: ops that share it, the values that enter and leave, and the ways to run.

    ``members`` maps each inner value to the dims of the cluster's root that its dims follow. A donated argument and its
    replacement are one cluster. ``in_memory`` says of each value that enters how often it is read from the device's
    memory, then of each that leaves whether it is written.
    """

    index: int
    ops: list[Op]
    ins: list[Value]
    outs: list[Value]
    strategies: tuple[Strategy, ...]
    label: tuple[object, ...]
    flops: float
    times: float
    root: Value | None = None
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    in_memory: tuple[int, ...] = ()

    def codes(self, strategy: Strategy, op: Op) -> tuple[tuple[Code | None, ...], tuple[Code, ...]]:
        """The codes of one member op's operands and results; None for operands that are free."""
        if self.root is None:
            by_id = dict(zip([v.id for v in self.ins], strategy.ins, strict=True))
            if len(by_id) == len(self.ins):
                ins = tuple([by_id.get(x.id) if isinstance(x, Value) else None for x in op.ins])
            else:
                ins = self._positional(strategy, op)
            return ins, strategy.outs if op is self.ops[0] else ()
        code = strategy.ins[0]
        follow = self.follow(code)
        return tuple(map(follow, op.ins)), tuple([c for v in op.outs if (c := follow(v)) is not None])

    def _positional(self, strategy: Strategy, op: Op) -> tuple[Code | None, ...]:
        slots = iter(zip(self.ins, strategy.ins, strict=True))
        result: list[Code | None] = []
        pending = next(slots, None)
        for x in op.ins:
            if pending is not None and isinstance(x, Value) and x.id == pending[0].id:
                result.append(pending[1])
                pending = next(slots, None)
            else:
                result.append(None)
        return tuple(result)

    def follow(self, code: Code) -> Callable[[Atom], Code | None]:
        """The code of any inner value, given the root's."""

        def of(x: Atom) -> Code | None:
            if not isinstance(x, Value):
                return None
            if self.root is not None and x.id == self.root.id:
                return code
            order = self.members.get(x.id)
            return None if order is None else _followed(code, order)

        return of


@functools.lru_cache(maxsize=65536)
def _followed(code: Code, order: tuple[int, ...]) -> Code:
    """The code of a value whose dims are those of another, which has ``code``, in another order."""
    return tuple(order.index(c) if c >= 0 else c for c in code)


@dataclass(slots=True)
class Clustering:
    """The program as clusters. ``free`` values are made where they are needed, ``fused`` ones never reach memory."""

    clusters: list[OpCluster]
    free: set[int]
    fused: set[int]
    cluster_of: dict[int, int]
    factors: list[Factors]
    kinds: dict[int, set[ReduceOp]]


def factor_maps(program: Program, narrow: bool = False) -> list[Factors]:
    """Every node's rule applied, once for all ops that look the same; all whole for a primitive without a rule.

    ``narrow``: whether a float may be narrowed while it is partial, each term rounded on its own.
    """

    def make(op: Op) -> Factors:
        rule = lookup(op.name)
        factors = rule.factors(op) if rule is not None else whole(op)
        if narrow or not any(item.narrows for item in factors.linear):
            return factors
        return replace(factors, linear=tuple(item for item in factors.linear if not item.narrows))

    known: dict[object, Factors] = {}
    found: list[Factors] = []
    for op in program.nodes:
        # A literal operand may matter to a rule (the value that pads), so it is part of what an op looks like.
        key = (op.name, tuple((x.shape, x.dtype, _plain(x)) for x in op.ins), tuple(v.shape for v in op.outs),
               tuple(op.params.items()))  # fmt: skip
        try:
            factors = known.get(key)
        except TypeError:  # parameters that cannot be compared
            found.append(make(op))
            continue
        found.append(known.setdefault(key, make(op)) if factors is None else factors)
    return found


def _plain(x: Atom) -> object:
    return None if isinstance(x, Value) else float(x.literal) if np.isrealobj(x.literal) else complex(x.literal)


def free_values(program: Program, factors: Sequence[Factors], kinds: dict[int, set[ReduceOp]]) -> set[int]:
    """Ids of values that any device can make any piece of, from scalars alone."""
    free: set[int] = set()

    def is_constant(x: Atom) -> bool:
        return isinstance(x, Lit) or x.id in free or (x.shape == () and not kinds.get(x.id))

    for op, f in zip(program.nodes, factors, strict=True):
        if op.primitive is None and op.name != "constant":
            continue
        if not all(map(is_constant, op.ins)) or (op.outs and all(v.shape == () for v in op.outs)):
            continue
        if op.name in _FREE_SOURCES or (op.name not in _COSTLY and is_pointwise(op, f)):
            free.update(v.id for v in op.outs)
    return free


def _dim_order(op: Op, factors: Factors, operand: int) -> tuple[int, ...] | None:
    """For each result dim the operand dim it follows (-1: size 1), if the op only renames dims; else None."""
    source, target = factors.ins[operand], factors.outs[0]
    if any(len(d) > 1 for d in (*source, *target)) or factors.blocked or factors.reduced:
        return None
    where = {d[0]: i for i, d in enumerate(source) if d}
    if {d[0] for d in target if d} != set(where):
        return None
    return tuple(where[d[0]] if d else -1 for d in target)


class _Clusterer:
    """Grows unary clusters in program order, then wraps every other op in a cluster of its own."""

    def __init__(self, program: Program, factors: list[Factors], kinds: dict[int, set[ReduceOp]], uneven: bool) -> None:
        self.program, self.factors, self.kinds, self.uneven = program, factors, kinds, uneven
        self.free = free_values(program, factors, kinds)
        # Operands that ask for no decision: free, or scalars that are always whole.
        whole = {v.id for op in program.nodes for v in op.outs if v.shape == () and not kinds.get(v.id)}
        self.undecided = self.free | whole
        self.groups: dict[tuple[int, bool], list[Op]] = {}
        self.group_of_value: dict[int, tuple[tuple[int, bool], tuple[int, ...]]] = {}
        self.root_value: dict[int, Value] = {}
        # Ways to run, by the table they are taken from (kept alive here) and the operands that matter.
        self.projected: dict[tuple[int, tuple[int, ...]], tuple[object, tuple[Strategy, ...]]] = {}
        self.unary: dict[object, tuple[Strategy, ...]] = {}
        # Like ops share one factor map object (``factor_maps``): what follows from it is found once for each.
        self.orders: dict[tuple[int, frozenset[int]], tuple[tuple[int, ...] | None, bool]] = {}
        self.ways: dict[tuple[int, tuple[bool, ...]], tuple[Strategy, ...]] = {}
        self.numbers: dict[int, int] = {}
        self.equal: dict[Factors, int] = {}
        self.grouped: dict[int, tuple[int, bool]] = {}

    def place(self, op: Op, f: Factors) -> None:
        """Add an op to the unary group of the value it depends on, if there is exactly one."""
        if op.primitive is None or op.name == "sbp.pin" or not op.outs or f.once or any([not v.shape for v in op.outs]):
            return
        real = self.decided(op)
        if not real:
            return
        order, linear = self._renaming(op, f, frozenset([k for k, _ in real]))
        if order is None:
            return
        operands = {x.id: x for _, x in real}
        if any(item.takes != "sum" and self._reaches(item.takes, operands) for item in f.linear):
            return  # a maximum may pass through it: that is a decision of its own
        home = self._home(operands, linear)
        if home is None:
            return
        key, base = home
        composed = tuple(base[d] if d >= 0 else -1 for d in order)
        self.groups.setdefault(key, []).append(op)
        self.grouped[op.index] = key
        for v in op.outs:
            self.group_of_value[v.id] = (key, composed)

    def decided(self, op: Op) -> list[tuple[int, Value]]:
        """The operands that ask for a decision, and which they are."""
        undecided = self.undecided
        return [(k, x) for k, x in enumerate(op.ins) if isinstance(x, Value) and x.id not in undecided]

    def _renaming(self, op: Op, f: Factors, positions: frozenset[int]) -> tuple[tuple[int, ...] | None, bool]:
        """The order of the dims of all operands at ``positions``, if it is one; whether sums pass through them."""
        known = self.orders.get((id(f), positions))
        if known is None:
            orders = {_dim_order(op, f, k) for k in positions}
            linear = any(item.operands == positions and item.takes == "sum" == item.gives for item in f.linear)
            known = self.orders[id(f), positions] = (orders.pop() if len(orders) == 1 else None, linear)
        return known

    def strategies(self, f: Factors, axis_sizes: tuple[int, ...], useful: tuple[bool, ...]) -> tuple[Strategy, ...]:
        """The strategies of a factor map where these linearities are useful."""
        known = self.ways.get((id(f), useful))
        if known is None:
            known = self.ways[id(f), useful] = strategies(f, axis_sizes, useful, self.uneven)
        return known

    def number(self, f: Factors) -> int:
        """The same number for equal factor maps: hashing one takes long, and every cluster's label has one."""
        known = self.numbers.get(id(f))
        if known is None:
            known = self.numbers[id(f)] = self.equal.setdefault(f, len(self.equal))
        return known

    def _home(self, operands: dict[int, Value], linear: bool) -> tuple[tuple[int, bool], tuple[int, ...]] | None:
        """The group to join: the operands' own, or a new one on the single value they are."""
        homes = {self.group_of_value.get(i, (None, ()))[0] for i in operands}
        if len(homes) == 1 and None not in homes:
            key = homes.pop()
            maps = {self.group_of_value[i][1] for i in operands}
            # A group whose root can be a sum holds either only linear ops, or only what comes after.
            if key is not None and len(maps) == 1 and (key[1] == linear or not self._can_be_partial(key[0])):
                return key, maps.pop()
        if len(operands) == 1:
            (root,) = operands.values()
            self.root_value[root.id] = root
            return (root.id, linear if self._can_be_partial(root.id) else False), tuple(range(len(root.shape)))
        roots = [i for i in operands if i in self.root_value]
        if len(operands) == 2 and len(roots) == 1:  # x and f(x)
            (other,) = [i for i in operands if i != roots[0]]
            key, order = self.group_of_value.get(other, (None, ()))
            straight = tuple(range(len(self.root_value[roots[0]].shape)))
            if key is not None and key[0] == roots[0] and order == straight:
                if key[1] == linear or not self._can_be_partial(key[0]):
                    return key, order
        return None

    def _reaches(self, kind: ReduceOp, operands: dict[int, Value]) -> bool:
        return any(kind in self.kinds.get(i, ()) for i in operands)

    def _can_be_partial(self, value: int) -> bool:
        return bool(self.kinds.get(value))


def cluster_ops(
    program: Program,
    factors: list[Factors],
    kinds: dict[int, set[ReduceOp]],
    axis_sizes: tuple[int, ...],
    allowed: Callable[[Op, Sequence[Strategy]], tuple[Strategy, ...]],
    uneven: bool = False,
) -> Clustering:
    """The clusters of a program on a mesh. ``allowed`` narrows an op's strategies (pins, donated arguments)."""
    folder = _Clusterer(program, factors, kinds, uneven)
    free = folder.free
    free_ops = {op.index for op in program.nodes if op.outs and all(v.id in free for v in op.outs)}
    for op, f in zip(program.nodes, factors, strict=True):
        if op.index not in free_ops:
            folder.place(op, f)
    consumers = program.consumers()
    clusters: list[OpCluster] = []
    cluster_of: dict[int, int] = {}
    twins = {i: o for i, o in program.donated}
    replaced = {program.output_ops[o].index: program.input_ops[i].index for i, o in program.donated}
    done: dict[tuple[int, bool], int] = {}
    for op, f in zip(program.nodes, factors, strict=True):
        if op.index in replaced or op.index in free_ops:
            continue
        key = folder.grouped.get(op.index)
        if key is not None:
            if key not in done:
                done[key] = len(clusters)
                clusters.append(_unary(folder, key, len(clusters), axis_sizes, factors, consumers))
            cluster_of[op.index] = done[key]
            continue
        ops = [op]
        if op.name == "sbp.input" and op.index in twins:
            ops.append(program.output_ops[twins[op.index]])
        cluster_of[op.index] = len(clusters)
        clusters.append(_single(folder, ops, f, len(clusters), axis_sizes, allowed))
    for output, source in replaced.items():
        cluster_of[output] = cluster_of[source]
    found = fusion(program, factors, cluster_of)
    for cluster in clusters:
        read = (found.reads.get((cluster.index, v.id), 0) for v in cluster.ins)
        cluster.in_memory = (*read, *(int(v.id not in found.fused) for v in cluster.outs))
        cluster.label = (*cluster.label, cluster.in_memory)
    return Clustering(clusters, folder.free, found.fused, cluster_of, factors, kinds)


def _single(
    folder: _Clusterer, ops: list[Op], f: Factors, index: int, axis_sizes: tuple[int, ...],
    allowed: Callable[[Op, Sequence[Strategy]], tuple[Strategy, ...]],
) -> OpCluster:  # fmt: skip
    op = ops[0]
    useful = useful_linear(op, f, folder.kinds)
    every = folder.strategies(f, axis_sizes, useful)
    ways = allowed(op, every)
    pinned = ways if len(ways) < len(every) else ()
    real = folder.decided(op)
    keep, ins = [k for k, _ in real], [x for _, x in real]
    if len(ops) == 2:  # a donated argument: its replacement arrives in the signature it left with
        ins = [x for x in ops[1].ins if isinstance(x, Value) and x.id not in folder.free]
        ways = tuple(Strategy(s.outs * len(ins), s.outs, s.share) for s in ways)
    else:
        ways = _project(folder, ways, tuple(keep))
    times = op.outs[0].times if op.outs else (ins[0].times if ins else 1.0)
    flops = 0.0 if op.primitive is None else f.flops
    # Equal labels mean equal strategies: whatever chooses among them is part of it.
    label = (
        op.name,
        folder.number(f),
        *(x.dtype for x in (*op.ins, *op.outs)),
        len(ops),
        times,
        useful,
        tuple(keep),
        pinned,
    )
    return OpCluster(index, ops, ins, list(op.outs), ways, label, flops, times)


def _project(folder: _Clusterer, ways: tuple[Strategy, ...], keep: tuple[int, ...]) -> tuple[Strategy, ...]:
    """Strategies over the operands that need a decision; scalars that are always whole must stay so."""
    known = folder.projected.get((id(ways), keep))
    if known is not None:
        return known[1]
    found: dict[object, Strategy] = {}
    for s in ways:
        t = Strategy(tuple(s.ins[k] for k in keep), s.outs, s.share)
        if (t.ins, t.outs) not in found or t.share < found[t.ins, t.outs].share:
            found[t.ins, t.outs] = t
    folder.projected[id(ways), keep] = (ways, tuple(found.values()))
    return folder.projected[id(ways), keep][1]


def _unary(
    folder: _Clusterer, key: tuple[int, bool], index: int, axis_sizes: tuple[int, ...], factors: Sequence[Factors],
    consumers: dict[int, list[tuple[Op, int]]],
) -> OpCluster:  # fmt: skip
    root, ops = folder.root_value[key[0]], folder.groups[key]
    members = {v.id: folder.group_of_value[v.id][1] for op in ops for v in op.outs}
    inside = {op.index for op in ops}
    exits = [v for op in ops for v in op.outs if any([user.index not in inside for user, _ in consumers.get(v.id, ())])]
    n = len(root.shape)
    dims = tuple((k,) if root.shape[k] != 1 else () for k in range(n))
    sums = key[1] and folder._can_be_partial(root.id)
    plain = Factors((dims,), (dims,), root.shape, linear=(additive(0),) if sums else ())
    cluster = OpCluster(index, ops, [root], exits, (), (), 0.0, ops[0].outs[0].times, root, members)
    shape_of_it = (root.shape, sums, tuple(members[v.id] for v in exits))
    if shape_of_it not in folder.unary:
        ways = []
        for s in strategies(plain, axis_sizes, (True,) if sums else (), folder.uneven):
            follow = cluster.follow(s.ins[0])
            ways.append(Strategy(s.ins, tuple(c for v in exits if (c := follow(v)) is not None), s.share))
        folder.unary[shape_of_it] = tuple(ways)
    cluster.strategies = folder.unary[shape_of_it]
    cluster.flops = sum(factors[op.index].flops for op in ops)
    cluster.label = (
        tuple((op.name, op.outs[0].dtype, len(op.ins)) for op in ops),
        root.shape, root.dtype, tuple(members[v.id] for v in exits), tuple(v.dtype for v in exits),
        cluster.times, sums,
    )  # fmt: skip
    return cluster
