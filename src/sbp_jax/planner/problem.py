"""The planning problem as pairwise costs: a node for each class of cells, an edge for each value that links two.

A node chooses one strategy. An edge's matrix holds the seconds of boxing for every pair of choices at its ends.
A value with several consumers gets a node of its own, the *hub*: the signature it is boxed to once, for all;
what a consumer needs beyond that it pays itself. All costs are seconds a step, repeated layers counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..rules.widen import Code
from .cells import Cell
from .cost import CostModel

# Where there is no way: more than any step takes, small enough to add up without losing the rest.
IMPOSSIBLE = 1e6


@dataclass(slots=True)
class Problem:
    """Cost vectors by node, cost matrices by pair of nodes (``a < b``, rows are ``a``'s choices).

    The first ``n_classes`` nodes are the classes of cells, the others hubs; ``codes`` are a hub's choices,
    ``hub_source`` the class and result it is the hub of.
    """

    nodes: list[np.ndarray]
    edges: dict[tuple[int, int], np.ndarray]
    n_classes: int
    representative: list[Cell]
    count: list[int]
    codes: dict[int, tuple[Code, ...]] = field(default_factory=dict)
    hub_source: dict[int, tuple[int, int]] = field(default_factory=dict)

    def connect(self, a: int, b: int, matrix: np.ndarray) -> None:
        """Add costs for the choices of ``a`` (rows) and ``b`` (columns) together."""
        if a == b:
            self.nodes[a] = self.nodes[a] + np.diag(matrix)
            return
        if a > b:
            a, b, matrix = b, a, matrix.T
        known = self.edges.get((a, b))
        self.edges[a, b] = matrix if known is None else known + matrix

    def evaluate(self, choice: Sequence[int]) -> float:
        """Seconds a step of one choice for each node."""
        total = sum(float(c[k]) for c, k in zip(self.nodes, choice, strict=True))
        return total + sum(float(m[choice[a], choice[b]]) for (a, b), m in self.edges.items())


def assemble(cells: Sequence[Cell], classes: Sequence[int], model: CostModel) -> Problem:
    """The problem of a folded program whose cells share decisions by class."""
    n_classes = max(classes, default=-1) + 1
    first: list[Cell | None] = [None] * n_classes
    count = [0] * n_classes
    for cell, k in zip(cells, classes, strict=True):
        first[k] = first[k] or cell
        count[k] += 1
    representative = [c for c in first if c is not None]
    nodes = [
        np.array([n * cell.times * model.compute_seconds(cell, s) for s in cell.strategies])
        for cell, n in zip(representative, count, strict=True)
    ]
    problem = Problem(nodes, {}, n_classes, representative, count)
    producer = {v.id: (c.index, k) for c in cells for k, v in enumerate(c.outs)}
    users: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for cell in cells:
        for position, v in enumerate(cell.ins):
            source, result = producer[v.id]
            users.setdefault((classes[source], result), {})[classes[cell.index], position] = None
    for (source, result), readers in users.items():
        _link(problem, source, result, list(readers), model)
    return problem


def _link(problem: Problem, source: int, result: int, readers: Sequence[tuple[int, int]], model: CostModel) -> None:
    cell = problem.representative[source]
    value = cell.outs[result]
    weight = value.times * problem.count[source]
    made = [s.outs[result] for s in cell.strategies]
    wanted = [[s.ins[position] for s in problem.representative[k].strategies] for k, position in readers]
    codes = tuple(dict.fromkeys([*made, *(c for w in wanted for c in w)]))
    if len(codes) == 1:
        return
    at = {c: i for i, c in enumerate(codes)}
    seconds = model.boxing(value, codes)
    price = np.where(np.isfinite(seconds), seconds * weight, IMPOSSIBLE)
    made_at = [at[c] for c in made]
    wanted_at = [[at[c] for c in w] for w in wanted]
    if len(readers) == 1:
        problem.connect(source, readers[0][0], price[np.ix_(made_at, wanted_at[0])])
        return
    hub = len(problem.nodes)
    problem.nodes.append(np.zeros(len(codes)))
    problem.codes[hub], problem.hub_source[hub] = codes, (source, result)
    problem.connect(source, hub, price[made_at, :])
    for (reader, _), positions in zip(readers, wanted_at, strict=True):
        problem.connect(hub, reader, price[:, positions])
