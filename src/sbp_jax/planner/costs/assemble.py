"""A clustered program as a graph of costs: a node for each class of clusters, an edge for each value that links two.

A node chooses one strategy. An edge's matrix holds the seconds of boxing for every pair of choices at its ends.
A value with several consumers gets a node of its own, the *hub*: the signature it is boxed to once, for all;
what a consumer needs beyond that it pays itself. All costs are seconds a step, repeated layers counted.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...rules.widen import Code
from ...trace import Program
from ..graph.clusters import Clustering, OpCluster
from .cost_graph import IMPOSSIBLE, CostGraph
from .op_cost import CostModel
from .slack import NO_SLACK, Slack, exposed, slacks
from .wait_time import waits

# Of two signatures held at once, the pairs that are looked at for one value.
_MOST_PAIRS = 600


@dataclass(frozen=True, slots=True)
class Hub:
    """A value that is boxed once for several readers: the class that makes it, which of its results it is, and the
    signatures that it may have. Where several may be held at once, ``sets`` are the choices: positions among ``codes``.
    """

    source: int
    result: int
    codes: tuple[Code, ...]
    sets: tuple[tuple[int, ...], ...] = ()

    def held(self, choice: int) -> tuple[Code, ...]:
        """The signatures that are held by a choice."""
        return tuple(self.codes[k] for k in self.sets[choice]) if self.sets else (self.codes[choice],)

    def only(self, choice: int) -> "Hub":
        """The hub with this one choice."""
        held = self.held(choice)
        return replace(self, codes=held, sets=(tuple(range(len(held))),) if self.sets else ())

    def by_choice(self, by_code: np.ndarray) -> np.ndarray:
        """Amounts (columns) for each signature as amounts for each choice."""
        if not self.sets:
            return by_code
        return np.stack([by_code[:, list(held)].sum(axis=1) for held in self.sets], axis=1)


@dataclass(frozen=True, slots=True)
class Decisions:
    """What the nodes of a program's cost graph stand for: first the classes of clusters, then the hubs.

    ``class_of``: by cluster its class. ``representative`` and ``count``: by class one cluster of it, and how many there
    are.
    """

    program: Program
    clustering: Clustering
    class_of: Sequence[int]
    model: CostModel
    representative: list[OpCluster]
    count: list[int]
    hubs: dict[int, Hub] = field(default_factory=dict)

    @property
    def n_classes(self) -> int:
        """How many nodes are classes; the others are hubs."""
        return len(self.representative)

    def node_of(self, op: int) -> int | None:
        """The node that decides an op of the program; None where it is made wherever it is needed."""
        cluster = self.clustering.cluster_of.get(op)
        return None if cluster is None else self.class_of[cluster]


def assemble(
    program: Program, clustering: Clustering, classes: Sequence[int], model: CostModel, wait_seconds: float = 0.0,
    trunk_algo: bool = True, sbp_collector: bool = False, slack: Slack | None = None,
) -> tuple[CostGraph, Decisions]:  # fmt: skip
    """The cost graph of a program whose clusters share decisions by class, and what its nodes stand for.

    ``wait_seconds`` and ``trunk_algo``: see ``wait_time.py``. ``sbp_collector``: a hub may hold two signatures at once.
    ``slack``: what compute covers of boxings is charged in part (``slack.py``); None: all seconds are.
    """
    clusters = clustering.clusters
    n_classes = max(classes, default=-1) + 1
    first: list[OpCluster | None] = [None] * n_classes
    count = [0] * n_classes
    for cluster, k in zip(clusters, classes, strict=True):
        first[k] = first[k] or cluster
        count[k] += 1
    representative = [c for c in first if c is not None]
    seconds: dict[object, np.ndarray] = {}
    nodes = [n * c.times * _compute(c, model, seconds) for c, n in zip(representative, count, strict=True)]
    graph = CostGraph(nodes, {})
    decisions = Decisions(program, clustering, classes, model, representative, count)
    producer = {v.id: (c.index, k) for c in clusters for k, v in enumerate(c.outs)}
    users: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for cluster in clusters:
        for position, v in enumerate(cluster.ins):
            source, result = producer[v.id]
            users.setdefault((classes[source], result), {})[classes[cluster.index], position] = None
    waiting = waits(clusters, classes, model, wait_seconds, trunk_algo) if wait_seconds else {}
    hides = {} if slack is None else slacks(clusters, classes, slack)
    for made, readers in users.items():
        each = [waiting.get((made, reader), 0.0) for reader in readers]
        covers = [hides.get((made, reader), NO_SLACK) for reader in readers]
        _link(graph, decisions, made, list(readers), each, covers, 1.0 if slack is None else slack.share, sbp_collector)
    return graph, decisions


def _compute(cluster: OpCluster, model: CostModel, known: dict[object, np.ndarray]) -> np.ndarray:
    """Seconds of one run of a cluster by strategy; computed once for all that look alike."""
    ids = [v.id for v in cluster.ins]
    key = cluster.label, cluster.flops, tuple([ids.index(i) for i in ids])
    found = known.get(key)
    if found is None:
        found = known[key] = np.array([model.compute_seconds(cluster, s) for s in cluster.strategies])
    return found


def _link(
    graph: CostGraph, decisions: Decisions, made: tuple[int, int], readers: Sequence[tuple[int, int]],
    waiting: Sequence[float], covers: Sequence[np.ndarray], share: float, sbp_collector: bool,
) -> None:  # fmt: skip
    source, result = made
    model, representative = decisions.model, decisions.representative
    cluster = representative[source]
    value = cluster.outs[result]
    weight = value.times * decisions.count[source]
    gives = [s.outs[result] for s in cluster.strategies]
    wanted = [[s.ins[position] for s in representative[k].strategies] for k, position in readers]
    codes = tuple(dict.fromkeys([*gives, *(c for w in wanted for c in w)]))
    if len(codes) == 1:
        return
    at = {c: i for i, c in enumerate(codes)}
    seconds = model.boxing(value, codes)
    talks = model.communicates(value, codes) if any(waiting) else np.zeros_like(seconds, bool)

    def price(wait: float, cover: np.ndarray) -> np.ndarray:
        total = exposed(seconds, cover, share) + wait * talks
        return np.where(np.isfinite(total), total * weight, IMPOSSIBLE)

    gives_at = [at[c] for c in gives]
    wanted_at = [[at[c] for c in w] for w in wanted]
    if len(readers) == 1:
        whole = price(waiting[0], covers[0])
        graph.connect(source, readers[0][0], whole.take(gives_at, axis=0).take(wanted_at[0], axis=1))
        return
    # What is shared must be there for the first that waits for it.
    to_hub = price(max(waiting), min(covers, key=np.sum))
    pairs = _pairs(sorted({k for w in wanted_at for k in w})) if sbp_collector else []
    hub = len(graph.nodes)
    graph.nodes.append(np.zeros(len(codes) + len(pairs)))
    graph.beside[hub] = min(source, *(k for k, _ in readers))
    sets = (*((k,) for k in range(len(codes))), *pairs) if pairs else ()
    decisions.hubs[hub] = Hub(source, result, codes, sets)
    both = [_both(to_hub, a, b) for a, b in pairs]
    graph.connect(source, hub, np.column_stack([to_hub, *both])[gives_at, :])
    for (reader, _), positions, wait, cover in zip(readers, wanted_at, waiting, covers, strict=True):
        onward = price(wait, cover)
        nearer = [np.minimum(onward[a], onward[b]) for a, b in pairs]
        graph.connect(hub, reader, np.vstack([onward, *nearer])[:, positions])


def _pairs(codes: Sequence[int]) -> list[tuple[int, int]]:
    found = list(itertools.combinations(codes, 2))
    return found if len(found) <= _MOST_PAIRS else []


def _both(price: np.ndarray, a: int, b: int) -> np.ndarray:
    """Of everything to both ``a`` and ``b``: one may be made from the other."""
    return np.minimum(
        price[:, a] + np.minimum(price[:, b], price[a, b]), price[:, b] + np.minimum(price[:, a], price[b, a])
    )
