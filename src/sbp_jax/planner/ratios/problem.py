"""Which way each part of a program runs on two sides: the choices, their seconds, and what moves between them.

A matrix product or a convolution is cut along one of its dims: rows of its operand and result, output channels, or what
it sums over (AccPar's types I, III and II); every other part takes any way that its rule allows, runs on both sides,
or whole on one. Choices meet in a graph of costs, and the best are found by elimination, which is AccPar's dynamic
program where the layers are a chain.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...cluster import Cluster
from ...errors import PlanError
from ...rules import Factors
from ...rules.widen import B, Code, Strategy, strategies
from ...trace import Op, Program, Value
from ..costs.assemble import assemble
from ..costs.cost_graph import CostGraph
from ..costs.op_cost import CostModel
from ..graph.clusters import Clustering, OpCluster
from ..graph.partials import useful_linear
from ..methods.dp import eliminate
from ..placing import Devices, Steps, results_of, sources
from .layouts import FIRST, OUTSIDE, SECOND, Sides, received

WEIGHTED = ("dot_general", "conv_general_dilated")
_TWO = (2,)


@dataclass(frozen=True, slots=True)
class Way:
    """How a part runs: layouts of what it reads and makes, by position; of a cut, the factor's number and length.

    ``factor`` is -1 where nothing is cut: both sides run all of it, or one does.
    """

    ins: tuple[int, ...]
    outs: tuple[int, ...]
    factor: int = -1
    length: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A value sent from one layout to another. ``ends``: the places of the parts that make and read it so."""

    source: int
    target: int
    size_bytes: float
    ends: frozenset[int]


def ways_of(op: Op, factors: Factors, kinds: Mapping[int, set]) -> list[Way]:
    """Every way of an op, the cuts first."""
    # Of lengths only counts whether there is anything to cut: where, the ratio says. Pieces of unlike lengths are out
    # of the question where a rule asks for even ones.
    sizes = tuple(2 if n > 1 else 1 for n in factors.sizes)
    blocked = factors.blocked | {f for f, n in enumerate(factors.sizes) if n < 2 or factors.even}
    some = replace(factors, sizes=sizes, blocked=frozenset(blocked), even=False)
    cuts, others = list[Way](), list[Way]()
    for s in strategies(some, _TWO, useful_linear(op, factors, dict(kinds))):
        ins, outs = tuple(c for (c,) in s.ins), tuple(c for (c,) in s.outs)
        if s.share < 1.0:
            dims = next(d[c] for c, d in zip((*ins, *outs), (*factors.ins, *factors.outs), strict=True) if c >= 0)
            cuts.append(Way(ins, outs, dims[0], factors.sizes[dims[0]]))
        else:
            others.append(Way(ins, outs))
    if op.name in WEIGHTED and cuts:
        return cuts
    alone = [Way((c,) * len(op.ins), (c,) * len(op.outs)) for c in (FIRST, SECOND)]
    return [*cuts, *others, *alone]


@dataclass(frozen=True)
class _Between(CostModel):
    """What moves between layouts, in place of what moves on a mesh."""

    sides: Sides | None = None
    ratio: float = 0.5

    def compute_seconds(self, cluster: OpCluster, strategy: Strategy) -> float:
        """None: ``Problem.costs`` knows it by way."""
        return 0.0

    def boxing(self, value: Value, codes: Sequence[Code]) -> np.ndarray:
        """Seconds between every two layouts."""
        assert self.sides is not None
        return np.array([[max(self.sides.seconds(a, b, value.size_bytes, self.ratio)) for (b,) in codes]
                         for (a,) in codes])  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problem:
    """The parts of a program that two sides share, and their ways.

    Attributes:
        program, found: the whole program and its parts.
        mine: the numbers of the parts that the sides share, among ``found.steps``.
        sides: who shares them.
        hardware: a device's kind; the graph of costs wants one.
        seconds: (parts of ``mine``, 2), of a whole part on each side.
        floor: what the smallest kernel takes on each side.
        ways: by part of ``mine``.
    """

    program: Program
    found: Steps
    mine: tuple[int, ...]
    sides: Sides
    hardware: Cluster
    seconds: np.ndarray
    floor: tuple[float, float]
    ways: tuple[tuple[Way, ...], ...]

    @classmethod
    def of(cls, program: Program, found: Steps, mine: Sequence[int], devices: Devices, sides: Sides) -> "Problem":
        """``mine``: numbers of parts. A group of devices takes as long as its members together."""
        each = [1.0 / (1.0 / np.maximum(found.seconds[np.ix_(mine, group)], 1e-30)).sum(axis=1)
                for group in sides.groups]  # fmt: skip
        ways = []
        for k in mine:
            step = found.steps[k]
            if isinstance(step, Op):
                ways.append(tuple(ways_of(step, found.factors[step.index], found.kinds)))
            else:
                n, m = len(step.reads), len(results_of(step))
                ways.append(tuple(Way((c,) * n, (c,) * m) for c in (FIRST, SECOND)))
        floor = [min(devices.kinds[d].op_seconds_floor for d in group) for group in sides.groups]
        return cls(program, found, tuple(mine), sides, devices.kinds[0], np.stack(each, axis=1).reshape(-1, 2),
                   (floor[0], floor[1]), tuple(ways))  # fmt: skip

    @functools.cached_property
    def made(self) -> dict[int, tuple[Value, int]]:
        """By id the values that parts make, and the number of the part."""
        return {v.id: (v, k) for k, step in enumerate(self.found.steps) for v in results_of(step)}

    @functools.cached_property
    def number(self) -> dict[int, int]:
        """By number of a part its place in ``mine``."""
        return {k: i for i, k in enumerate(self.mine)}

    def reads(self, i: int) -> list[tuple[Value, int]]:
        """What part ``mine[i]`` reads of parts: the values, and which operands they are; -1 through what is free."""
        step = self.found.steps[self.mine[i]]
        atoms = step.ins if isinstance(step, Op) else step.reads
        direct = [(x, p) for p, x in enumerate(atoms) if isinstance(x, Value) and x.id in self.made]
        seen = {x.id for x, _ in direct}
        rest = [v for v in sources(step.reads, self.found.makers) if v in self.made and v not in seen]
        return [*direct, *((self.made[v][0], -1) for v in rest)]

    def layout(self, i: int, way: Way, operand: int) -> int:
        """The layout in which part ``mine[i]`` reads an operand, or something through what is free."""
        if operand >= 0:
            return way.ins[operand]
        alone = {*way.ins, *way.outs} & {FIRST, SECOND}
        return alone.pop() if alone else B

    def run_seconds(self, i: int, way: Way, ratio: float | None) -> tuple[float, float]:
        """Of part ``mine[i]`` on each side; without a ratio with that which makes both the same."""
        a, b = map(float, self.seconds[i])
        if way.factor >= 0:
            part = (b / (a + b) if a + b else 0.5) if ratio is None else ratio
            least = [min(x, n) for x, n in zip(self.floor, (a, b), strict=True)]
            return max(part * a, least[0]), max((1.0 - part) * b, least[1])
        where = {*way.ins, *way.outs}
        return (0.0 if SECOND in where else a), (0.0 if FIRST in where else b)

    def costs(self, ratio: Mapping[int, float], mean_ratio: float) -> CostGraph:
        """The graph of costs; its first nodes are the parts of ``mine``.

        ``ratio``: by place in ``mine``, where it is known; ``mean_ratio``: for what moves.
        """
        clusters, outside, after = list[OpCluster](), dict[int, Value](), list[tuple[Value, tuple[int, ...]]]()

        def add(ops: list[Op], ins: list[Value], outs: list[Value], ways: Sequence[Strategy]) -> None:
            n = len(clusters)
            clusters.append(OpCluster(n, ops, ins, outs, tuple(ways), (n,), 0.0, 1.0))

        for i, k in enumerate(self.mine):
            step, reads = self.found.steps[k], self.reads(i)
            outside.update({v.id: v for v, _ in reads if self.made[v.id][1] not in self.number})
            ways = [Strategy(tuple([(self.layout(i, w, p),) for _, p in reads]), tuple([(c,) for c in w.outs]), 1.0)
                    for w in self.ways[i]]  # fmt: skip
            add([step] if isinstance(step, Op) else step.links, [v for v, _ in reads], list(results_of(step)), ways)
        for k, step in enumerate(self.found.steps):
            if k not in self.number:
                after += [(v, (OUTSIDE,)) for v in self._of_mine(step.reads)]
        for op in self.program.output_ops:
            after += [(v, (FIRST, SECOND)) for v in self._of_mine(x for x in op.ins if isinstance(x, Value))]
        for v in outside.values():
            add([], [], [v], [Strategy((), ((OUTSIDE,),), 1.0)])
        for v, layouts in after:
            add([], [v], [], [Strategy(((c,),), (), 1.0) for c in layouts])
        clustering = Clustering(clusters, set(), set(), {}, self.found.factors, dict(self.found.kinds))
        model = _Between(self.hardware, _TWO, None, False, self.sides, mean_ratio)
        graph, _ = assemble(self.program, clustering, range(len(clusters)), model)
        for i, ways in enumerate(self.ways):
            graph.nodes[i] = np.array([max(self.run_seconds(i, w, ratio.get(i))) for w in ways])
        return graph

    def total(self, ways: Sequence[Way], ratio: Mapping[int, float], mean_ratio: float) -> float:
        """Seconds of all parts one after the other, and of what moves."""
        run = sum(max(self.run_seconds(i, w, ratio.get(i))) for i, w in enumerate(ways))
        return run + sum(
            max(self.sides.seconds(m.source, m.target, m.size_bytes, mean_ratio)) for m in self.moves(ways)
        )

    def moves(self, ways: Sequence[Way]) -> list[Move]:
        """What is sent, each value once to each layout; results are whole in the end, on the first side."""
        found: dict[tuple[int, int], Move] = {}

        def add(value: Value, target: int, reader: int) -> None:
            source = self.made_as(ways, value)
            if source != target and received(source, target, 1.0, 0.5) not in (None, (0.0, 0.0)):
                known = found.get((value.id, target))
                ends = known.ends if known else frozenset({self.number.get(self.made[value.id][1], -1)})
                found[value.id, target] = Move(source, target, float(value.size_bytes), ends | {reader})

        for i, way in enumerate(ways):
            for value, operand in self.reads(i):
                add(value, self.layout(i, way, operand), i)
        for op in self.program.output_ops:
            for value in self._of_mine(x for x in op.ins if isinstance(x, Value)):
                add(value, FIRST, -1)
        return list(found.values())

    def made_as(self, ways: Sequence[Way], value: Value) -> int:
        """The layout in which a value is made."""
        maker = self.made[value.id][1]
        if maker not in self.number:
            return OUTSIDE
        outs = [v.id for v in results_of(self.found.steps[maker])]
        return ways[self.number[maker]].outs[outs.index(value.id)]

    def kind_of(self, i: int, way: Way) -> str:
        """What a product is cut by, in words; empty for what is none, or is not cut."""
        step = self.found.steps[self.mine[i]]
        if not isinstance(step, Op) or step.name not in WEIGHTED or way.factor < 0:
            return ""
        return "what is summed" if way.outs[0] < 0 else "output channels" if way.ins[0] < 0 else "rows"

    def _of_mine(self, reads: Iterable[Value]) -> list[Value]:
        found = [self.made.get(v) for v in sources(reads, self.found.makers)]
        return [x[0] for x in found if x is not None and x[1] in self.number]

    def best(self, ratio: Mapping[int, float], mean_ratio: float) -> list[Way]:
        """The way of each part that takes least together. ``PlanError`` never: running whole is always possible."""
        found = eliminate(self.costs(ratio, mean_ratio))
        if found is None:
            raise PlanError("the parts of the program find no way to run on two sides: please report this")
        return [ways[c] for ways, c in zip(self.ways, found.choice, strict=False)]
