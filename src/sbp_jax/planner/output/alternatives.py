"""What else every decision could have been, and what it would cost: from the costs the search chose by.

One decision is changed and all others stay, but for the signature a shared value is boxed to (a hub), which is chosen
anew. Seconds are the 0-1 program's; the bytes are those held at the step's peak. What else would change if everything
could is another question, which planning again answers (``forced``).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ...errors import PlanError
from ...paths import named
from ...plan import PlanData
from ...plan.insight import Alternative, Crossing, Decision, Held, Insight
from ...rules.widen import Code, Strategy, code_of, signature_of
from ...signature import Signature
from ...trace import Program, Value
from ..costs.assemble import Decisions
from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from ..costs.op_cost import CostModel
from ..graph.clusters import OpCluster
from ..memory.footprint import Footprint
from .layers import BACKWARD, PARAMETER, UPDATE, Layers, layers
from .timeline import NO_KERNELS, label_of

# Alternatives of a decision that a plan keeps, and their figures.
_MOST = 6
_DIGITS = 4


def insight(
    decisions: Decisions, graph: CostGraph, choice: Sequence[int], footprint: Footprint, plan: PlanData
) -> Insight:
    """What can be said of a plan beyond what it takes to run it."""
    program, clustering, groups = decisions.program, decisions.clustering, decisions.class_of
    found = layers(program)
    memory = footprint.over_time(choice)
    peak = int(memory.argmax()) if memory.size else -1
    of_node = [-1 if (n := decisions.node_of(k)) is None else n for k in range(len(program.nodes))]
    members: list[list[int]] = [[] for _ in range(decisions.n_classes)]
    made_by: list[dict[int, None]] = [{} for _ in range(decisions.n_classes)]
    maker = {v.id: group for cluster, group in zip(clustering.clusters, groups, strict=True) for v in cluster.outs}
    for cluster, group in zip(clustering.clusters, groups, strict=True):
        members[group].append(cluster.ops[0].index)
        made_by[group].update((maker[v.id], None) for v in cluster.ins)
    around = _Around(graph, decisions.hubs, choice, footprint.at(peak) if peak >= 0 else None)
    described = tuple(
        _decision(k, decisions, around, members[k], tuple(made_by[k]), found) for k in range(decisions.n_classes)
    )
    inputs = [op.index for op in program.input_ops]
    return Insight(
        tuple(found.spots), tuple(found.of_node), described, tuple(found.kinds), tuple(found.of_argument),
        tuple(of_node[k] for k in inputs), tuple(_crossings(program, plan, of_node, found.of_node)),
        tuple(_held(program, footprint, choice, peak, found)), peak, tuple(map(tuple, members)),
    )  # fmt: skip


def force(graph: CostGraph, decisions: Decisions, forced: Mapping[int, Signature]) -> None:
    """Make every other choice impossible for the decisions of some nodes: their result (an output's operand) has this
    signature."""
    for node, signature in forced.items():
        code = code_of(signature)
        k = decisions.class_of[decisions.clustering.cluster_of[node]]
        cluster = decisions.representative[k]
        ways = cluster.strategies
        allowed = np.array([_key(s) == code for s in ways])
        if not allowed.any():
            possible = dict.fromkeys(str(signature_of(key)) for s in ways if (key := _key(s)) is not None)
            raise PlanError(
                f"({signature}) is not among the signatures of {_spoken(cluster, decisions.program.argument_names)}. "
                f"Possible: {', '.join(f'({p})' for p in possible)}"
            )
        graph.nodes[k] = np.where(allowed, graph.nodes[k], IMPOSSIBLE)


def _spoken(cluster: OpCluster, names: Sequence[str]) -> str:
    """A cluster in words: the argument's path, or its primitives."""
    return named(cluster.ops[0].label, names) or label_of(cluster)


def _key(s: Strategy) -> Code | None:
    """The signature that a strategy is asked for by."""
    return s.outs[0] if s.outs else s.ins[0] if s.ins else None


class _Around:
    """For each node of a problem: what another choice of it alone adds."""

    def __init__(
        self, graph: CostGraph, hubs: Iterable[int], choice: Sequence[int], bytes_at: CostGraph | None
    ) -> None:
        self.graph, self.choice, self.bytes_at = graph, choice, bytes_at
        self.beside: list[list[tuple[int, np.ndarray]]] = [[] for _ in graph.nodes]
        for (a, b), m in graph.edges.items():
            self.beside[a].append((b, m))
            self.beside[b].append((a, m.T))
        # Of a hub, what each of its choices costs beside all nodes that it has an edge with.
        self.hubs = {h: graph.nodes[h] + sum(m[:, choice[x]] for x, m in self.beside[h]) for h in hubs}

    def seconds(self, k: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """By choice of ``k``: seconds more than now; and by hub beside it, which of its choices is then best."""
        now = self.choice[k]
        total = self.graph.nodes[k] - self.graph.nodes[k][now]
        hubs: dict[int, np.ndarray] = {}
        for other, m in self.beside[k]:
            if other in self.hubs:
                full = m + (self.hubs[other] - m[now, :])
                hubs[other] = full.argmin(axis=1)
                best = full.min(axis=1)
                total = total + (best - full[now, self.choice[other]])
            else:
                column = m[:, self.choice[other]]
                total = total + (column - column[now])
        return total, hubs

    def bytes(self, k: int, to: int, hubs: Mapping[int, np.ndarray]) -> float:
        """Bytes at the peak more than now, where ``k`` chooses ``to`` and the hubs beside it what is best then."""
        p = self.bytes_at
        if p is None:
            return 0.0
        moved = {k: to} | {h: int(best[to]) for h, best in hubs.items()}

        def at(n: int) -> int:
            return moved.get(n, self.choice[n])

        total = sum(float(p.nodes[n][at(n)] - p.nodes[n][self.choice[n]]) for n in moved)
        edges = {tuple(sorted((n, x))) for n in moved for x, _ in self.beside[n]}
        for a, b in edges:
            m = p.edges.get((a, b))
            if m is not None:
                total += float(m[at(a), at(b)] - m[self.choice[a], self.choice[b]])
        return total


def _decision(
    k: int, decisions: Decisions, around: _Around, members: Sequence[int], made_by: tuple[int, ...], found: Layers,
) -> Decision:  # fmt: skip
    cluster, model = decisions.representative[k], decisions.model
    chosen = cluster.strategies[around.choice[k]]
    op = cluster.ops[0]
    value = next(iter(cluster.outs or cluster.ins), None)
    runs = cluster.times * decisions.count[k]
    now = model.compute_seconds(cluster, chosen)
    seconds = 0.0 if op.name in NO_KERNELS else _round(now * runs)
    spots = Counter(found.of_node[n] for n in members)
    return Decision(
        label_of(cluster), op.label, decisions.program.lines(op.info),
        value.shape if value else (), str(value.dtype) if value else "",
        signature_of(_key(chosen) or ()), tuple(map(signature_of, chosen.ins)), tuple(spots.items()), made_by,
        seconds, tuple(_others(k, cluster, around, model, runs, now)),
    )  # fmt: skip


def _others(
    k: int, cluster: OpCluster, around: _Around, model: CostModel, runs: float, now: float
) -> list[Alternative]:
    """The cheapest strategy for every other signature, the cheapest first."""
    ways = cluster.strategies
    if len(ways) < 2:
        return []
    total, hubs = around.seconds(k)
    taken = {_key(ways[around.choice[k]])}
    found: list[Alternative] = []
    for to in np.argsort(total, kind="stable").tolist():
        if total[to] >= IMPOSSIBLE / 2 or len(found) == _MOST:
            break
        key = _key(ways[to])
        if key in taken:
            continue
        taken.add(key)
        compute = (model.compute_seconds(cluster, ways[to]) - now) * runs
        found.append(Alternative(
            signature_of(key or ()), tuple(map(signature_of, ways[to].ins)), _round(compute),
            _round(float(total[to]) - compute), round(around.bytes(k, to, hubs)),
        ))  # fmt: skip
    return found


def _round(x: float) -> float:
    return float(f"{x:.{_DIGITS}g}") if abs(x) > 1e-15 else 0.0


def _crossings(program: Program, plan: PlanData, of_node: Sequence[int], spots: Sequence[int]) -> list[Crossing]:
    """For each boxing, who makes and who first needs the value."""
    maker = {v.id: op.index for op in program.nodes for v in op.outs}
    consumers = program.consumers()
    known: dict[tuple[int, Signature], int] = {}
    for i in {b.value_id for b in plan.boxing_list}:
        for op, k in consumers.get(i, ()):
            way = plan.nodes[op.index]
            if way >= 0:
                known.setdefault((i, plan.strategies[way][0][k]), op.index)
    found = []
    for b in plan.boxing_list:
        made = maker[b.value_id]
        # One that only others are boxed from has no reader: theirs stands for it.
        used = known.get((b.value_id, b.dst), next((op.index for op, _ in consumers.get(b.value_id, ())), made))
        found.append(Crossing(of_node[made], of_node[used], spots[made], spots[used]))
    return found


def _held(program: Program, footprint: Footprint, choice: Sequence[int], peak: int, found: Layers) -> list[Held]:
    """What a device holds at the peak by kind and layer, the most first."""
    if peak < 0:
        return []
    made = {v.id: op.index for op in program.nodes for v in op.outs}
    arguments = {op.index: k for k, op in enumerate(program.input_ops)}
    gradients = _gradients(program, found)
    now = found.spots[found.of_node[peak]].phase
    total: Counter[tuple[str, str]] = Counter()
    for size, t in zip(footprint.sizes(choice).tolist(), footprint.tables, strict=True):
        if not size:
            continue
        for v, start, end in zip(t.values, t.start, t.end, strict=True):
            if start <= peak <= end:
                node = made[v.id]
                spot = found.spots[found.of_node[node]]
                if t.words.startswith("scratch"):
                    kind = "temporaries"
                elif node in arguments:
                    kind = found.kinds[arguments[node]]
                elif v.id in gradients:
                    kind = "gradients"
                else:
                    kind = "activations" if spot.phase == "forward" or now == "forward" else "temporaries"
                total[f"{kind} (boxed)" if t.words.startswith("boxed") else kind, spot.layer] += size
    return [Held(kind, layer, size) for (kind, layer), size in total.most_common()]


def _gradients(program: Program, found: Layers) -> set[int]:
    """Ids of values made before the update, of a parameter's shape, that an op of its layer's update reads."""
    shapes = {
        (layer, op.outs[0].shape)
        for op, kind, layer in zip(program.input_ops, found.kinds, found.of_argument, strict=True)
        if kind == PARAMETER
    }
    phases = [(UPDATE if s.phase == "update" else BACKWARD, s.layer) for s in found.spots]
    before: set[int] = set()
    result: set[int] = set()
    start, end = len(program.input_ops), len(program.nodes) - len(program.output_ops)
    for op in program.nodes[start:end]:
        phase, layer = phases[found.of_node[op.index]]
        if phase == UPDATE:
            result.update(
                x.id for x in op.ins if isinstance(x, Value) and x.id in before and (layer, x.shape) in shapes
            )
        else:
            before.update(v.id for v in op.outs)
    return result
