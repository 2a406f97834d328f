"""Which values to make again in the backward part: seconds of computing against bytes of holding.

Of what the forward part leaves for the backward one, each value is either held or made again; what is made again
needs its operands held or made again in turn. With a price for a byte, the cheapest mix is a minimum cut between what
is there anyway and what is read late: cutting a value is holding it, cutting off an op is running it again. So cuts
for rising prices give a ladder of programs, each of which holds less and computes more (``search.py`` climbs it).

Minimum cuts for rematerialisation: Horace He's partitioner in PyTorch's functorch ("min-cut optimal(*)
recomputation", 2022), whose cut has no prices; what each op costs is priced here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from ...plan import PlanData
from ...rules.widen import Code, code_of
from ...trace import Graph, Op, Program, Structured, Value
from ..costs.op_cost import CostModel

_SCALE = 1e9  # capacities are whole numbers below 2^31
# Above the sum of all others: what is not to be cut.
_NEVER = 2**30
# The next rung holds less by at least this part of what the turn holds: nearer ones are not worth a plan each.
_CLEARLY = 0.02


@dataclass(frozen=True, slots=True)
class Rung:
    """One mix: the nodes made again; bytes no longer held over the turn, seconds a step that it costs."""

    nodes: frozenset[int]
    saved_bytes: float
    seconds: float


@dataclass(slots=True)
class Turn:
    """The point of the program over which most is held: the last node before it, and what is held of the forward part.

    ``graph`` is the scope it lies in, the body of a loop over micro-batches say; ``early`` and ``late`` its ops.
    """

    node: int
    graph: Graph
    early: list[Op | Structured]
    late: list[Op | Structured]
    held_bytes: float


class Sizes:
    """Bytes of one device's piece of each value, as a plan makes it; 0 for those that are made where they are read."""

    def __init__(self, program: Program, plan: PlanData, model: CostModel) -> None:
        self.bytes: dict[int, float] = {}
        codes: dict[int, tuple[Code, ...]] = {
            k: tuple(map(code_of, outs)) for k, (_, outs) in enumerate(plan.strategies)
        }
        for op, k in zip(program.nodes, plan.nodes, strict=True):
            for i, v in enumerate(op.outs):
                self.bytes[v.id] = model.local_bytes(v, codes[k][i]) if k >= 0 and v.shape else 0.0

    def __call__(self, value: Value) -> float:
        return self.bytes.get(value.id, 0.0)


def find_turn(program: Program, sizes: Sizes) -> Turn | None:
    """The point over which most is held of what one scope's own ops made; None where nothing is."""
    best: tuple[float, int, Graph] | None = None
    pending = [program.graph]
    while pending:
        graph = pending.pop()
        pending += [body for op in graph.ops if isinstance(op, Structured) for body in op.bodies]
        change = np.zeros(len(graph.ops) + 1)
        made: dict[int, tuple[int, Value]] = {}
        last: dict[int, int] = {}
        for k, op in enumerate(graph.ops):
            for x in op.reads:
                if x.id in made:
                    last[x.id] = k
            made.update((v.id, (k, v)) for v in op.results)
        for i, k in last.items():
            start, value = made[i]
            change[start] += sizes(value)
            change[k] -= sizes(value)
        held = np.cumsum(change)
        k = int(held.argmax())
        if held[k] > 0 and (best is None or held[k] > best[0]):
            best = float(held[k]), k, graph
    if best is None:
        return None
    bytes_held, k, graph = best
    return Turn(graph.ops[k].span[1], graph, graph.ops[: k + 1], graph.ops[k + 1 :], bytes_held)


class _Net:
    """A flow network: node 0 is what is there anyway, node 1 what is read late. Cut edges cost seconds, or bytes."""

    def __init__(self) -> None:
        self.size = 2
        self.edges: dict[tuple[int, int], tuple[float, float]] = {}

    def node(self) -> int:
        self.size += 1
        return self.size - 1

    def edge(self, tail: int, head: int, seconds: float = 0.0, size: float = 0.0) -> None:
        """An edge; ``seconds`` may be infinite."""
        self.edges[tail, head] = (seconds, size)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Tails, heads, seconds and bytes of the edges."""
        ends, costs = np.array(list(self.edges)), np.array(list(self.edges.values()))
        return ends[:, 0], ends[:, 1], costs[:, 0], costs[:, 1]

    def cut(self, price: float) -> np.ndarray:
        """By node whether it is on the side of what is there, at a price in seconds per byte."""
        tails, heads, seconds, size = self.arrays()
        cost = seconds + price * size
        finite = np.isfinite(cost)
        scale = _SCALE / max(float(cost[finite].sum()), 1e-300)
        capacity = np.full(len(cost), _NEVER, np.int32)
        capacity[finite] = np.ceil(cost[finite] * scale)
        network = sparse.coo_matrix((capacity, (tails, heads)), shape=(self.size, self.size)).tocsr()
        residual = network - csgraph.maximum_flow(network, 0, 1).flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        reached = np.zeros(self.size, bool)
        reached[csgraph.breadth_first_order(residual, 0, return_predecessors=False)] = True
        return reached


class Ladder:
    """The mixes of holding and making again that are best for some price of a byte."""

    def __init__(self, program: Program, plan: PlanData, turn: Turn, sizes: Sizes) -> None:
        self.sizes, self.turn = sizes, turn
        self.net = _Net()
        self.of_value: dict[int, int] = {}
        self.of_op: dict[int, int] = {}
        self.seconds = _seconds(program, plan)
        self._scope(turn.early)
        pairs = self._pairs()
        for op in turn.late:
            for x in op.reads:
                if x.id in pairs:
                    self.net.edge(pairs[x.id], 1, seconds=np.inf)
                elif x.id in self.of_value:
                    self.net.edge(self.of_value[x.id], 1, seconds=np.inf)

    def _scope(self, ops: Sequence[Op | Structured], times: float = 1.0) -> None:
        for op in ops:
            if isinstance(op, Op):
                self._op(op, times)
            elif op.kind == "scan":
                self._scan(op, times)
            else:
                for v in op.results:
                    self._held(v, self.sizes(v) * times)

    def _op(self, op: Op, times: float) -> None:
        """An op runs again, or its results are held; what runs once does not run again."""
        if op.runs_once:
            for v in op.outs:
                self._held(v, self.sizes(v) * times)
            return
        node = self.of_op[op.index] = self.net.node()
        self.net.edge(0, node, seconds=self.seconds.get(op.index, 0.0))
        for x in op.reads:
            if x.id in self.of_value:
                self.net.edge(self.of_value[x.id], node, seconds=np.inf)
        for v in op.outs:
            self.of_value[v.id] = self.net.node()
            self.net.edge(node, self.of_value[v.id], size=self.sizes(v) * times)

    def _held(self, v: Value, size: float) -> None:
        """A value that cannot be made again."""
        self.of_value[v.id] = self.net.node()
        self.net.edge(0, self.of_value[v.id], size=size)

    def _scan(self, op: Structured, times: float) -> None:
        """A scan's body: what it makes can be collected for all iterations, or made again in another body."""
        trips = op.params["length"]
        for role in ("enter", "unstack"):
            for link in op.roles[role]:
                (x,) = link.ins
                if isinstance(x, Value) and x.id in self.of_value:
                    self.of_value[link.outs[0].id] = self.of_value[x.id]
        for link in op.roles["carry"]:
            self._held(link.outs[0], self.sizes(link.outs[0]) * trips * times)
        self._scope(op.bodies[0].ops, trips * times)
        for v in op.results:
            self._held(v, self.sizes(v) * times)

    def _pairs(self) -> dict[int, int]:
        """By collected array that only late scans of the same length slice: the node of what it is collected from."""
        sources = {
            link.outs[0].id: (op, link.ins[0])
            for op in self.turn.early
            if isinstance(op, Structured) and op.kind == "scan"
            for link in op.roles["stack"]
        }
        for op in (*self.turn.early, *self.turn.late):
            sliced: set[int] = set()
            if isinstance(op, Structured) and op.kind == "scan":
                sliced = {x.id for link in op.roles["unstack"] if isinstance(x := link.ins[0], Value)}
                sliced = {i for i in sliced if i in sources and sources[i][0].params["length"] == op.params["length"]}
                other = {x.id for link in op.links if link.name != "sbp.unstack" for x in link.reads}
                sliced -= other
            for x in op.reads:
                if x.id in sources and (x.id not in sliced or op in self.turn.early):
                    del sources[x.id]
        return {
            i: self.of_value[x.id] for i, (_, x) in sources.items() if isinstance(x, Value) and x.id in self.of_value
        }

    def rungs(self, prices: int = 16) -> list[Rung]:
        """Mixes for rising prices of a byte, each of which holds clearly less than the one before."""
        tails, heads, seconds, size = self.net.arrays()
        if not np.isfinite(seconds).any() or not size.any():
            return []
        middle = float(seconds[np.isfinite(seconds)].sum() / size.sum())
        found: list[Rung] = []
        held = self.turn.held_bytes
        for price in middle * np.geomspace(1e-4, 1e4, prices):
            reached = self.net.cut(price)
            cut = reached[tails] & ~reached[heads]
            again = frozenset(index for index, node in self.of_op.items() if not reached[node])
            left = float(size[cut].sum())
            if again and left < held - _CLEARLY * self.turn.held_bytes:
                found.append(Rung(again, self.turn.held_bytes - left, float(seconds[cut].sum())))
                held = left
        return found

    def seconds_of(self, nodes: Collection[int]) -> float:
        """Seconds a step of running these nodes once more."""
        return sum(self.seconds.get(n, 0.0) for n in nodes)

    def saved(self, nodes: Collection[int]) -> float:
        """Bytes no longer held when these nodes, and no others, are made again."""
        before: dict[int, list[int]] = {}
        for tail, head in self.net.edges:
            before.setdefault(head, []).append(tail)
        again = {self.of_op[index] for index in nodes if index in self.of_op}
        held, pending, seen = 0.0, [1], {1}
        while pending:
            head = pending.pop()
            for tail in before.get(head, ()):
                size = self.net.edges[tail, head][1]
                if tail not in again and size:
                    held += size
                elif tail not in seen and tail != 0:
                    seen.add(tail)
                    pending.append(tail)
        return self.turn.held_bytes - held


def _seconds(program: Program, plan: PlanData) -> dict[int, float]:
    """Seconds a step of each node, with those of boxing what it makes."""
    times = {op.index: (op.outs or op.reads or (None,))[0] for op in program.nodes}
    found = {
        node: plan.timeline.costs[cost].seconds * (v.times if (v := times[node]) is not None else 1.0)
        for node, cost in plan.timeline.runs
    }
    maker = {v.id: op.index for op in program.nodes for v in op.outs}
    for b in plan.boxing_list:
        at = maker[b.value_id]
        found[at] = found.get(at, 0.0) + b.seconds * b.times
    return found
