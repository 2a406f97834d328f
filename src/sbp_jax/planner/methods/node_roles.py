"""Roles as the search sees them: for each parameter, state, batch leaf and gradient, its signature by choice."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from ...paths import named
from ...rules.widen import Code
from ...trace import Op, Value
from ..costs.assemble import Decisions
from ..graph.batch import Examples
from ..graph.roles import Roles

Counts = tuple[int | None, tuple[int, ...], bool]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value where it is stored or read: the problem's node that decides it, its code by the node's choice.

    ``batch``: its dim that counts examples. ``is_table``: whether rows of it are looked up (a gather). ``path`` and
    ``dtype`` are an argument's.
    """

    node: int
    label: str
    shape: tuple[int, ...]
    codes: tuple[Code, ...]
    batch: int | None = None
    is_table: bool = False
    path: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes through one of the nodes: for each value that it reads and makes, the dim that counts examples, the
    dims that it has in common with data, whether it is a matrix of weights. A set, for a node may stand for several
    clusters."""

    node: int
    dims: frozenset[tuple[Counts, ...]]


@dataclass(frozen=True, slots=True)
class NodeRoles:
    """Which nodes decide what. ``states`` are (state, its parameter or None); ``gradients`` are gradients where the
    parameters' updates read them. ``known``: whether any argument is known to be kept between steps. ``signatures``:
    by node and choice, the codes of all values that the node reads and makes; ``reads``: how many of them it reads."""

    axis_sizes: tuple[int, ...] = ()
    parameters: tuple[Leaf, ...] = ()
    states: tuple[tuple[Leaf, Leaf | None], ...] = ()
    buffers: tuple[Leaf, ...] = ()
    data: tuple[Leaf, ...] = ()
    gradients: tuple[Leaf, ...] = ()
    flows: tuple[Flow, ...] = ()
    known: bool = False
    pinned: frozenset[int] = field(default_factory=frozenset)
    signatures: tuple[tuple[tuple[Code, ...], ...], ...] = ()
    reads: tuple[int, ...] = ()

    def among(self, kept: Sequence[np.ndarray], followers: Set[int]) -> "NodeRoles":
        """The same roles where only some choices of each node are left, and some nodes follow others."""

        def fewer(leaf: Leaf) -> Leaf:
            return replace(leaf, codes=tuple(leaf.codes[k] for k in kept[leaf.node]))

        return replace(
            self,
            parameters=tuple(map(fewer, self.parameters)),
            states=tuple(
                (fewer(s), None if p is None else fewer(p)) for s, p in self.states if s.node not in followers
            ),
            buffers=tuple(map(fewer, self.buffers)),
            data=tuple(map(fewer, self.data)),
            gradients=tuple(map(fewer, self.gradients)),
            flows=tuple(flow for flow in self.flows if flow.node not in followers),
            signatures=tuple(tuple(codes[k] for k in left) for codes, left in zip(self.signatures, kept, strict=True)),
        )


def node_roles(
    decisions: Decisions, found: Roles, pins: Sequence[int] = (), batch: Examples | None = None
) -> NodeRoles:
    """Roles by node. ``pins``: the indices of the ops that users pinned; ``batch``: which dims count examples."""
    batch = batch or Examples()
    program = decisions.program
    consumers = program.consumers()

    def label_of(i: int) -> str:
        return named(program.input_ops[i].label, program.argument_names)

    def argument(i: int) -> Leaf:
        op = program.input_ops[i]
        node = decisions.class_of[decisions.clustering.cluster_of[op.index]]
        ways = decisions.representative[node].strategies
        value = op.outs[0]
        codes = tuple(s.outs[0] for s in ways)
        return Leaf(
            node, label_of(i), value.shape, codes, batch.dims.get(value.id), is_looked_up(value), op.label,
            str(value.dtype),
        )  # fmt: skip

    def is_looked_up(value: Value) -> bool:
        readers = consumers.get(value.id, ())
        return any(
            (op.name == "gather" and at == 0) or (op.name == "convert_element_type" and is_looked_up(op.outs[0]))
            for op, at in readers
        )

    leaves = {i: argument(i) for i in range(len(program.input_ops) - len(program.constants))}
    gradients = {
        (leaf.node, leaf.codes): leaf
        for g in found.gradients
        for reader in g.readers
        if (leaf := _read(g.value, reader, label_of(g.parameter), decisions)) is not None
    }
    pinned = frozenset(node for i in pins if (node := decisions.node_of(i)) is not None)
    return NodeRoles(
        decisions.model.axis_sizes,
        tuple(leaves[i] for i in found.parameters),
        tuple((leaves[s], None if p is None else leaves[p]) for s, p in found.states.items()),
        tuple(leaves[i] for i in found.buffers if leaves[i].shape),
        tuple(leaves[i] for i in found.data),
        tuple(gradients.values()),
        tuple(_flows(decisions, batch)),
        found.known,
        pinned,
        tuple(_signatures(decisions)),
        # A hub reads what it holds.
        (*(len(c.ins) for c in decisions.representative), *(1 for _ in decisions.hubs)),
    )


def _signatures(decisions: Decisions) -> Iterator[tuple[tuple[Code, ...], ...]]:
    for cluster in decisions.representative:
        yield tuple((*s.ins, *s.outs) for s in cluster.strategies)
    for hub in decisions.hubs.values():
        yield tuple(hub.held(k) for k in range(len(hub.sets or hub.codes)))


def _flows(decisions: Decisions, batch: Examples) -> Iterator[Flow]:
    dims: dict[int, set[tuple[Counts, ...]]] = {}
    for cluster, node in zip(decisions.clustering.clusters, decisions.class_of, strict=True):
        values = (*cluster.ins, *cluster.outs)
        dims.setdefault(node, set()).add(
            tuple((batch.dims.get(v.id), batch.of_data.get(v.id, ()), v.id in batch.weights) for v in values)
        )
    for node, found in dims.items():
        if len(decisions.representative[node].strategies) > 1:
            yield Flow(node, frozenset(found))


def _read(value: Value, reader: Op, label: str, decisions: Decisions) -> Leaf | None:
    """A value as an op reads it; None where the op needs no decision."""
    clustering = decisions.clustering
    if reader.index not in clustering.cluster_of:
        return None
    cluster = clustering.clusters[clustering.cluster_of[reader.index]]
    at = next((k for k, v in enumerate(cluster.ins) if v.id == value.id), None)
    codes: list[Code] = []
    for s in cluster.strategies:
        code = s.ins[at] if at is not None else cluster.follow(s.ins[0])(value) if cluster.root is not None else None
        if code is None:
            return None
        codes.append(code)
    return Leaf(decisions.class_of[cluster.index], f"gradient of {label}", value.shape, tuple(codes))
