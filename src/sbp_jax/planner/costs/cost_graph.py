"""The planning problem as pairwise costs: a node for each class of cells, an edge for each value that links two.

A node chooses one strategy. An edge's matrix holds the seconds of boxing for every pair of choices at its ends.
A value with several consumers gets a node of its own, the *hub*: the signature it is boxed to once, for all;
what a consumer needs beyond that it pays itself. All costs are seconds a step, repeated layers counted.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...rules.widen import Code
from ..graph.clusters import Cell
from .op_cost import CostModel
from .wait_time import waits

# Where there is no way: more than any step takes, small enough to add up without losing the rest.
IMPOSSIBLE = 1e6
# Of two signatures held at once, the pairs that are looked at for one value.
_MOST_PAIRS = 600


@dataclass(slots=True)
class Problem:
    """Cost vectors by node, cost matrices by pair of nodes (``a < b``, rows are ``a``'s choices).

    The first ``n_classes`` nodes are the classes of cells, the others hubs; ``codes`` are a hub's choices,
    ``hub_source`` the class and result it is the hub of. Where a hub may hold several signatures at once, ``sets`` has
    its choices: the positions among ``codes`` of those held.
    """

    nodes: list[np.ndarray]
    edges: dict[tuple[int, int], np.ndarray]
    n_classes: int
    representative: list[Cell]
    count: list[int]
    codes: dict[int, tuple[Code, ...]] = field(default_factory=dict)
    hub_source: dict[int, tuple[int, int]] = field(default_factory=dict)
    sets: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """How many pairs of choices have a cost: the size of the 0-1 program."""
        return sum(m.size for m in self.edges.values())

    def shared(self, hub: int, choice: int) -> tuple[Code, ...]:
        """The signatures that a hub holds by a choice."""
        return tuple(self.codes[hub][k] for k in self.sets[hub][choice]) if hub in self.sets else (
            self.codes[hub][choice],
        )  # fmt: skip

    def by_choice(self, hub: int, by_code: np.ndarray) -> np.ndarray:
        """Amounts (columns) for each signature of a hub as amounts for each choice."""
        if hub not in self.sets:
            return by_code
        return np.stack([by_code[:, list(held)].sum(axis=1) for held in self.sets[hub]], axis=1)

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


def costless(problem: Problem) -> Problem:
    """The same problem where only what is impossible costs anything."""

    def clear(x: np.ndarray) -> np.ndarray:
        return np.where(x >= IMPOSSIBLE / 2, IMPOSSIBLE, 0.0)

    return replace(
        problem, nodes=[clear(c) for c in problem.nodes], edges={k: clear(m) for k, m in problem.edges.items()}
    )


def sliced(problem: Problem, kept: Sequence[np.ndarray], tied: Sequence[tuple[int, int, np.ndarray]] = ()) -> Problem:
    """Only the kept choices; what is tied is added to what decides it, and has one choice that costs nothing."""
    decider = {b: (a, follows[kept[a]]) for a, b, follows in tied}

    def place(n: int) -> tuple[int, np.ndarray]:
        return decider.get(n, (n, kept[n]))

    nodes = [np.zeros(1) if n in decider else c[kept[n]] for n, c in enumerate(problem.nodes)]
    for b, (a, own) in decider.items():
        nodes[a] = nodes[a] + problem.nodes[b][own]
    result = replace(problem, nodes=nodes, edges={})
    for (a, b), m in problem.edges.items():
        (x, rows), (y, columns) = place(a), place(b)
        result.connect(x, y, m[np.ix_(rows, columns)])
    return result


def assemble(
    cells: Sequence[Cell], classes: Sequence[int], model: CostModel, wait_seconds: float = 0.0,
    trunk_algo: bool = True, sbp_collector: bool = False,
) -> Problem:  # fmt: skip
    """The problem of a folded program whose cells share decisions by class.

    ``wait_seconds`` and ``trunk_algo``: see ``wait_time.py``. ``sbp_collector``: a hub may hold two signatures at once.
    """
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
    waiting = waits(cells, classes, model, wait_seconds, trunk_algo) if wait_seconds else {}
    for made, readers in users.items():
        each = [waiting.get((made, reader), 0.0) for reader in readers]
        _link(problem, made, list(readers), each, model, sbp_collector)
    return problem


def _link(
    problem: Problem, made: tuple[int, int], readers: Sequence[tuple[int, int]], waiting: Sequence[float],
    model: CostModel, sbp_collector: bool,
) -> None:  # fmt: skip
    source, result = made
    cell = problem.representative[source]
    value = cell.outs[result]
    weight = value.times * problem.count[source]
    gives = [s.outs[result] for s in cell.strategies]
    wanted = [[s.ins[position] for s in problem.representative[k].strategies] for k, position in readers]
    codes = tuple(dict.fromkeys([*gives, *(c for w in wanted for c in w)]))
    if len(codes) == 1:
        return
    at = {c: i for i, c in enumerate(codes)}
    seconds = model.boxing(value, codes)
    talks = model.communicates(value, codes) if any(waiting) else np.zeros_like(seconds, bool)

    def price(wait: float) -> np.ndarray:
        total = seconds + wait * talks
        return np.where(np.isfinite(total), total * weight, IMPOSSIBLE)

    gives_at = [at[c] for c in gives]
    wanted_at = [[at[c] for c in w] for w in wanted]
    if len(readers) == 1:
        problem.connect(source, readers[0][0], price(waiting[0])[np.ix_(gives_at, wanted_at[0])])
        return
    # What is shared must be there for the first that waits for it.
    to_hub = price(max(waiting))
    pairs = _pairs(sorted({k for w in wanted_at for k in w})) if sbp_collector else []
    hub = len(problem.nodes)
    problem.nodes.append(np.zeros(len(codes) + len(pairs)))
    problem.codes[hub], problem.hub_source[hub] = codes, made
    if pairs:
        problem.sets[hub] = (*((k,) for k in range(len(codes))), *pairs)
    both = [_both(to_hub, a, b) for a, b in pairs]
    problem.connect(source, hub, np.column_stack([to_hub, *both])[gives_at, :])
    for (reader, _), positions, wait in zip(readers, wanted_at, waiting, strict=True):
        onward = price(wait)
        nearer = [np.minimum(onward[a], onward[b]) for a, b in pairs]
        problem.connect(hub, reader, np.vstack([onward, *nearer])[:, positions])


def _pairs(codes: Sequence[int]) -> list[tuple[int, int]]:
    found = list(itertools.combinations(codes, 2))
    return found if len(found) <= _MOST_PAIRS else []


def _both(price: np.ndarray, a: int, b: int) -> np.ndarray:
    """Of everything to both ``a`` and ``b``: one may be made from the other."""
    return np.minimum(
        price[:, a] + np.minimum(price[:, b], price[a, b]), price[:, b] + np.minimum(price[:, a], price[b, a])
    )
