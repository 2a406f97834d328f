"""What the barriers that lowering adds put in memory, as far as that hangs on no signature.

An op waits for results (``order.py``), a cotangent for the gradient beside it (``replaced.py``): what goes through a
barrier is written before it, in its own dtype, and what is read after it is another value to XLA.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .graph import Graph, Op, Program, Structured, Value
from .order import IsFree, waits
from .replaced import joined


@dataclass(slots=True)
class Barriers:
    """``aside``: what comes with the results that an op waits for, as the ids of values and the indices of ops.

    ``written``: the ids of all values that go through barriers, or whose transposes do. ``passed``: by value id, the
    nodes after which one is; half a node less where it comes before the node. ``together`` as in ``late_reads``.
    """

    aside: set[tuple[int, int]] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    passed: dict[int, list[float]] = field(default_factory=dict)
    together: Mapping[int, tuple[Value, ...]] = field(default_factory=dict)

    def put(self, value_id: int, after: float) -> None:
        """A value goes through a barrier."""
        self.written.add(value_id)
        self.passed.setdefault(value_id, []).append(after)


def barriers(program: Program, free: Collection[int]) -> Barriers:
    """The barriers of a program on CPUs, those in bodies too; results that would hold more than they take, whatever
    their signatures. ``free``: the ids of values that each reader makes where it needs them.
    """

    def is_free(op: Op) -> bool:
        return bool(op.outs) and op.outs[0].id in free

    found = Barriers(together=joined(program, is_free))
    _waits(program.graph, is_free, found)
    for position, values in found.together.items():
        after = max([link.index for link in _links(program.graph.ops[position])])
        for v in values:
            found.put(v.id, after)
    return found


def _links(op: Op | Structured) -> list[Op]:
    return [op] if isinstance(op, Op) else op.links


def _waits(graph: Graph, is_free: IsFree, found: Barriers) -> None:
    waiting = waits(graph, is_free)
    size = {x.id: x.size_bytes for op in graph.ops for x in op.reads} if waiting else {}
    for k, op in enumerate(graph.ops):
        if isinstance(op, Structured):
            for body in op.bodies:
                _waits(body, is_free, found)
        if k not in waiting:
            continue
        early = [e for e in waiting[k].results if sum(size[i] for i in e.holds) > e.value.size_bytes]
        before = min([link.index for link in _links(op)]) - 0.5
        for v in [*(e.value for e in early), *([waiting[k].through] if early else [])]:
            found.put(v.id, before)
        if early and isinstance(op, Op):
            found.aside.add((waiting[k].through.id, op.index))
