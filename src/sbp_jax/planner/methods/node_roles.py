"""Roles as the search sees them: for each parameter, state, batch leaf and gradient, its signature by choice."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from ...paths import named
from ...rules.widen import Code
from ...trace import Op, Program, Value
from ..costs.cost_graph import Problem
from ..graph.batch import Examples
from ..graph.clusters import Folded
from ..graph.roles import Roles

Counts = tuple[int | None, tuple[int, ...], bool]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value where it is stored or read: the problem's node that decides it, its code by the node's choice.

    ``batch``: its dim that counts examples.
    """

    node: int
    label: str
    shape: tuple[int, ...]
    codes: tuple[Code, ...]
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes through one of the problem's nodes: by choice the codes of the values it reads and makes.

    ``dims``: of each value, the dim that counts examples, the dims that it has in common with data, whether it is a
    matrix of weights; a set, for one node may stand for several cells.
    """

    node: int
    codes: tuple[tuple[Code, ...], ...]
    dims: frozenset[tuple[Counts, ...]]


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Which nodes decide what. ``states`` are (state, its parameter or None); ``gradients`` are gradients where the
    parameters' updates read them. ``known``: whether any argument is known to be kept between steps."""

    axis_sizes: tuple[int, ...] = ()
    parameters: tuple[Leaf, ...] = ()
    states: tuple[tuple[Leaf, Leaf | None], ...] = ()
    buffers: tuple[Leaf, ...] = ()
    data: tuple[Leaf, ...] = ()
    gradients: tuple[Leaf, ...] = ()
    flows: tuple[Flow, ...] = ()
    known: bool = False
    pinned: frozenset[int] = field(default_factory=frozenset)

    def among(self, kept: Sequence[np.ndarray], followers: Set[int]) -> "Anatomy":
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
            flows=tuple(
                replace(flow, codes=tuple(flow.codes[k] for k in kept[flow.node]))
                for flow in self.flows if flow.node not in followers
            ),
        )  # fmt: skip


def anatomy(
    program: Program, found: Roles, folded: Folded, groups: Sequence[int], problem: Problem,
    axis_sizes: tuple[int, ...], pins: Sequence[int] = (), batch: Examples | None = None,
) -> Anatomy:  # fmt: skip
    """Roles by node of the problem. ``pins`` are the indices of the ops that users pinned; ``batch`` says which dims
    count examples."""
    batch = batch or Examples()

    def label_of(i: int) -> str:
        return named(program.input_ops[i].label, program.argument_names)

    def argument(i: int) -> Leaf:
        op = program.input_ops[i]
        node = groups[folded.cell_of[op.index]]
        ways = problem.representative[node].strategies
        value = op.outs[0]
        return Leaf(node, label_of(i), value.shape, tuple(s.outs[0] for s in ways), batch.dims.get(value.id))

    leaves = {i: argument(i) for i in range(len(program.input_ops) - len(program.constants))}
    gradients = {
        (leaf.node, leaf.codes): leaf
        for g in found.gradients
        for reader in g.readers
        if (leaf := _read(g.value, reader, label_of(g.parameter), folded, groups)) is not None
    }
    pinned = frozenset(groups[folded.cell_of[i]] for i in pins if i in folded.cell_of)
    return Anatomy(
        axis_sizes,
        tuple(leaves[i] for i in found.parameters),
        tuple((leaves[s], None if p is None else leaves[p]) for s, p in found.states.items()),
        tuple(leaves[i] for i in found.buffers if leaves[i].shape),
        tuple(leaves[i] for i in found.data),
        tuple(gradients.values()),
        tuple(_flows(folded, groups, problem, batch)),
        found.known,
        pinned,
    )


def _flows(folded: Folded, groups: Sequence[int], problem: Problem, batch: Examples) -> Iterator[Flow]:
    dims: dict[int, set[tuple[Counts, ...]]] = {}
    for cell, node in zip(folded.cells, groups, strict=True):
        values = (*cell.ins, *cell.outs)
        dims.setdefault(node, set()).add(
            tuple((batch.dims.get(v.id), batch.of_data.get(v.id, ()), v.id in batch.weights) for v in values)
        )
    for node, found in dims.items():
        ways = problem.representative[node].strategies
        if len(ways) > 1:
            yield Flow(node, tuple((*s.ins, *s.outs) for s in ways), frozenset(found))


def _read(value: Value, reader: Op, label: str, folded: Folded, groups: Sequence[int]) -> Leaf | None:
    """A value as an op reads it; None where the op needs no decision."""
    if reader.index not in folded.cell_of:
        return None
    cell = folded.cells[folded.cell_of[reader.index]]
    at = next((k for k, v in enumerate(cell.ins) if v.id == value.id), None)
    codes: list[Code] = []
    for s in cell.strategies:
        code = s.ins[at] if at is not None else cell.follow(s.ins[0])(value) if cell.root is not None else None
        if code is None:
            return None
        codes.append(code)
    return Leaf(groups[cell.index], f"gradient of {label}", value.shape, tuple(codes))
