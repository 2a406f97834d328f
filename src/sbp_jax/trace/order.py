"""Which results are to be in memory before something large starts.

A program's order is a suggestion to XLA. It may put off whatever nobody waits for: weights' gradients, which only the
optimizer reads, run last, and until then hold the activations that they are made of, which the plan counts as freed
(measured on CPUs: ResNet-18 took 1.37 times the plan's memory, GPT with rematerialised layers 1.6 times). So matrix
products, scatters and loops also wait for the results before them that hold more memory while they are put off than
they take themselves: ``emit.py`` passes them and one operand through one optimisation barrier.

On GPUs a reduction is one kernel with others that read the same, and with what is computed of them element by element:
a barrier takes it out of there. ResNet-50 read and wrote 4 % more for it, and took 3.4 % longer, in the same memory
(one H100, jax 0.11.2). So nothing waits for reductions there.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from .graph import Graph, Op, Structured, Value

_PRODUCTS = frozenset(("dot_general", "ragged_dot_general", "conv_general_dilated"))
_REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"))
_SCATTERS = "scatter"
SMALL = 16  # so many times smaller, and it costs next to nothing in memory

IsFree = Callable[[Op], bool]


@dataclass(frozen=True, slots=True)
class Early:
    """A result, and the ids of the values that stay in memory for it alone until it is made.

    ``turned``: its transpose, where nothing else reads it. With a barrier between a product and that, XLA turns the
    product apart. ``picks``: it is a gather of a few elements. XLA computes it in what reads it, maybe much later (a
    loss at the end): the next op that reads what it holds waits for it. ``within``: the ids of what is made of it,
    where that is put off as well: if one of those is waited for, it is there, too.
    """

    value: Value
    holds: tuple[int, ...]
    turned: Value | None = None
    picks: bool = False
    within: frozenset[int] = frozenset()


@dataclass(slots=True)
class _PutOff:
    """A result that may be made late: what it reads, the position of the op that needs it, and the ids of what is made
    of it. Where that op is put off itself (``is_used``), as a small weight's gradient is, it is made no sooner."""

    value: Value
    read: frozenset[int]
    need: float
    within: set[int]
    turned: Value | None = None
    picks: bool = False
    is_used: bool = False

    def early(self, last: Mapping[int, int]) -> Early:
        """What would be held for it, given the last kernel that reads each value."""
        within = frozenset(self.within) if self.is_used else frozenset[int]()
        return Early(self.value, tuple(i for i in self.read if last[i] < self.need), self.turned, self.picks, within)


@dataclass(frozen=True, slots=True)
class Wait:
    """What an op waits for, and the operand that is to come with it: one that is in memory anyway, if there is."""

    through: Value
    results: tuple[Early, ...]


def waits(
    graph: Graph, is_free: IsFree = lambda _: False, for_reductions: bool = True, in_place: Collection[int] = ()
) -> dict[int, Wait]:
    """By position among the graph's ops.

    ``is_free`` says which ops a plan makes no decision for: each reader makes their results where it needs them, so
    these ops have no time of their own at which to wait. ``for_reductions``: whether ops wait for those, too.
    ``in_place``: values, by id, that are written over others: they take nothing, and are waited for as well.
    """

    awaited = is_kernel if for_reductions else is_large
    free = [isinstance(op, Op) and is_free(op) for op in graph.ops]
    kernel = [isinstance(op, Structured) or (is_kernel(op) and not f) for op, f in zip(graph.ops, free, strict=True)]
    large = [k and is_large(op) for op, k in zip(graph.ops, kernel, strict=True)]
    if not any(large):
        return {}
    need, last, readers = _reads(graph, kernel, large)
    following = _following(large)
    behind: dict[int, frozenset[int]] = {}  # where a value's bytes are: in itself, or in what its one reader computes
    found: dict[int, Wait] = {}
    waiting: list[_PutOff] = []
    products: set[int] = set()
    for k, op in enumerate(graph.ops):
        read = frozenset[int]().union(*(behind.get(x.id, ()) for x in op.reads))
        late: tuple[Early, ...] = ()
        through: Value | None = None
        if large[k]:
            used = [e for e in waiting if not read.isdisjoint(e.within)]
            late = tuple(e.early(last) for e in waiting if e.need > k and not e.picks and e not in used)
            late = tuple(e for e in late if e.holds)
            through = next((x for x in op.reads if behind.get(x.id, {x.id}) == {x.id}), next(iter(op.reads), None))
            at = min([need.get(v.id, math.inf) for v in op.results], default=math.inf)
            waiting = [replace(e, need=at, is_used=True) for e in used if at > following[k]]  # put off together
        elif waiting and isinstance(op, Op) and not free[k]:
            ids = {x.id for x in op.reads}
            late = tuple(x for e in waiting if e.picks and not ids.isdisjoint((x := e.early(last)).holds))
            through = _aside(op, {i for e in late for i in e.holds}, behind, products) if late else None
        if late and through is not None:
            found[k] = Wait(through, late)
            met = {e.value.id for e in late}
            waiting = [e for e in waiting if e.value.id not in met]
        if isinstance(op, Op) and op.name == "transpose" and not free[k] and [readers[x.id] for x in op.reads] == [1]:
            waiting = [replace(e, turned=op.outs[0]) if e.value is op.reads[0] else e for e in waiting]
        made = {v.id for v in op.results}
        for e in waiting if following[k] < math.inf else ():
            if not read.isdisjoint(e.within):
                e.within.update(made)
        for v in op.results:
            behind[v.id] = frozenset((v.id,)) if kernel[k] or readers[v.id] > 1 else read
            if isinstance(op, Op) and op.name in _PRODUCTS:
                products.add(v.id)
            if isinstance(op, Op) and not free[k] and (awaited(op) or _picks_few(op) or v.id in in_place):
                waiting.append(_PutOff(v, read, need.get(v.id, math.inf), {v.id}, picks=_picks_few(op)))
        if isinstance(op, Structured) and large[k]:  # a loop runs when the first of its results is needed
            first = min(op.results, key=lambda v: need.get(v.id, math.inf), default=None)
            if first is not None:
                waiting.append(_PutOff(first, read, need.get(first.id, math.inf), made))
    return found


def _aside(op: Op, held: set[int], behind: Mapping[int, frozenset[int]], products: set[int]) -> Value | None:
    """The operand that is to come with the results that an op waits for, where the op is no kernel of its own.

    What is held itself, where it must be in memory anyway, as a product's result is; or an operand that is small beside
    it. A barrier on anything else would keep XLA from computing it in its readers.
    """
    product = next((x for x in op.reads if x.id in held and x.id in products), None)
    if product is not None:
        return product
    size = max([x.size_bytes for x in op.reads if x.id in held])
    small = [x for x in op.reads if x.id in behind and x.id not in held and SMALL * x.size_bytes <= size]
    return min(small, key=lambda x: x.size_bytes, default=None)


def _reads(
    graph: Graph, kernel: Sequence[bool], large: Sequence[bool]
) -> tuple[dict[int, float], dict[int, int], Counter[int]]:  # fmt: skip
    """By value: the position of the first large op that it is made for, of the last kernel that reads it, its readers.

    Element-wise ops run in the kernels that need them, and reductions may be put off with what they are made for: of
    two in a row, as a bias broadcast twice has for its gradient, the second alone holds next to nothing. What only the
    graph's results need is needed at the end.
    """
    need: dict[int, float] = {}
    last: dict[int, int] = {}
    readers: Counter[int] = Counter()
    for k in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[k]
        first, final = k, k
        if not kernel[k]:
            final = max([last.get(v.id, k) for v in op.results], default=k)
        if not large[k]:
            first = min([need.get(v.id, math.inf) for v in op.results], default=math.inf)
        for x in op.reads:
            need[x.id] = min(need.get(x.id, math.inf), first)
            last[x.id] = max(last.get(x.id, k), final)
            readers[x.id] += 1
    return need, last, readers


def _following(large: Sequence[bool]) -> list[float]:
    """By position: that of the next large op."""
    found, after = [math.inf] * len(large), math.inf
    for k in range(len(large) - 1, -1, -1):
        found[k] = after
        if large[k]:
            after = k
    return found


def is_large(op: Op | Structured) -> bool:
    """Whether it makes a lot at once: then it matters what is in memory."""
    if isinstance(op, Structured):
        return op.kind in ("scan", "while")
    return op.name in _PRODUCTS or op.name.startswith(_SCATTERS)


def is_kernel(op: Op) -> bool:
    """Whether its results are in memory, whoever reads them."""
    return op.name in _REDUCTIONS or is_large(op)


def _picks_few(op: Op) -> bool:
    """Whether a gather takes little of what it reads; others are computed in what reads them."""
    if op.name != "gather" or not isinstance(x := op.ins[0], Value):
        return False
    return SMALL * op.outs[0].size_bytes <= x.size_bytes
