"""The logical graph: ops and values of a traced program, control flow with its bodies. Plain Python data.

Every place where a signature is decided is a *node*: an ordinary op, or a boundary op (an argument, a result,
what enters a loop, what it carries). A structured op (scan, while, cond, barrier) is not a node itself: its
boundary ops are, and so is everything in its bodies. Values know the scope they live in and how many times a
step runs through it.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .source import Lines

_name_of = functools.lru_cache(maxsize=256)(str)  # by dtype; numpy puts it together each time


@dataclass(eq=False, slots=True)
class Value:
    """One array of the program: its whole shape and dtype, which do not change, and how often a step computes it."""

    id: int
    shape: tuple[int, ...]
    dtype: Any
    times: float
    name: str = ""
    literal: Any = None
    weak: bool = False
    """Whether its type gives way to another's, as a Python scalar's does."""
    size_bytes: int = field(init=False, repr=False)
    """Bytes of the whole value."""

    def __post_init__(self) -> None:
        self.size_bytes = math.prod(self.shape, start=int(self.dtype.itemsize))

    @property
    def dtype_name(self) -> str:
        """``float32``, ``bfloat16``, ``key<fry>``."""
        return _name_of(self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return int(self.dtype.itemsize)

    def __str__(self) -> str:
        return f"{self.name or f'%{self.id}'}:{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(eq=False, slots=True)
class Lit:
    """A scalar constant written in the program."""

    literal: Any
    dtype: Any
    shape: tuple[int, ...] = ()
    weak: bool = False

    def __str__(self) -> str:
        return str(self.literal)


Atom = Value | Lit


@dataclass(eq=False, slots=True)
class Op:
    """One node. ``primitive`` is what to bind, None for boundary ops; ``info`` is JAX's source information.

    ``has_effect``: it does something besides its results, so it runs even if nobody reads them.
    """

    name: str
    ins: tuple[Atom, ...]
    outs: tuple[Value, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    primitive: Any = None
    info: Any = None
    label: str = ""
    index: int = -1
    has_effect: bool = False

    @property
    def reads(self) -> list[Value]:
        """The values among its operands."""
        return [x for x in self.ins if isinstance(x, Value)]

    @property
    def results(self) -> Sequence[Value]:
        """What it gives to its scope, as ``Structured.results``."""
        return self.outs

    @property
    def runs_once(self) -> bool:
        """Whether one device runs it for all (``rules/once.py``)."""
        return "once" in self.params

    @property
    def span(self) -> tuple[int, int]:
        """The first and last index of its nodes: its own."""
        return self.index, self.index

    def rename(self, names: Mapping[int, Atom]) -> None:
        """Read other values, by id."""
        self.ins = tuple(names.get(x.id, x) if isinstance(x, Value) else x for x in self.ins)

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.outs))} = {self.name} {', '.join(map(str, self.ins))}"


@dataclass(eq=False, slots=True)
class Structured:
    """Control flow: ``kind`` scan, while, cond or barrier; boundary ops by role; bodies."""

    kind: str
    params: Mapping[str, Any]
    bodies: tuple["Graph", ...]
    roles: dict[str, list[Op]]
    info: Any = None

    @property
    def links(self) -> list[Op]:
        """All boundary ops."""
        return [op for ops in self.roles.values() for op in ops]

    @property
    def trips(self) -> float:
        """How often a run of it runs its bodies: 0 for a loop without iterations, 1 where that is not known."""
        if self.kind == "scan":
            return float(self.params["length"])
        trips = self.params.get("trip_count")
        return 1.0 if trips is None else float(trips)

    @property
    def ins(self) -> Iterator[Atom]:
        """What the boundary reads, bodies' results included."""
        return (x for op in self.links for x in op.ins)

    @property
    def reads(self) -> list[Value]:
        """What it reads of the scope around it."""
        inner = {v.id for link in self.links for v in link.outs}
        inner |= {v.id for body in self.bodies for node in body.nodes() for v in node.outs}
        return [x for x in self.ins if isinstance(x, Value) and x.id not in inner]

    @property
    def results(self) -> Sequence[Value]:
        """What it gives to the scope around it."""
        inner = {v.id for body in self.bodies for v in body.inputs}
        return [v for link in self.links for v in link.outs if v.id not in inner]

    @property
    def span(self) -> tuple[int, int]:
        """The first and last index of its nodes: links, then bodies."""
        indices = [link.index for link in self.links]
        indices += [node.index for body in self.bodies for node in body.nodes()]
        return min(indices), max(indices)

    def rename(self, names: Mapping[int, Atom]) -> None:
        """Read other values of the scope around it, by id."""
        for link in self.links:
            link.rename(names)


@dataclass(eq=False, slots=True)
class Graph:
    """Ops in an order they can run in. A body's ``inputs`` are made by its boundary ops."""

    inputs: list[Value]
    outputs: list[Atom]
    ops: list[Op | Structured]
    times: float = 1.0

    def nodes(self) -> Iterator[Op]:
        """Every node, boundaries before the bodies they bound."""
        for op in self.ops:
            if isinstance(op, Op):
                yield op
            else:
                yield from op.links
                for body in op.bodies:
                    yield from body.nodes()


@dataclass(eq=False, slots=True)
class Program:
    """A whole traced function: input ops, the graph between, output ops, and its constants.

    ``donated`` pairs an input op's index with the output op that replaces it. ``weak_results`` are the weak types of
    its results. ``argument_names`` are those of the arguments given by position, for reports: the fingerprint ignores
    them. A program is not changed once it is made: what follows from its wiring is found once.
    """

    graph: Graph
    input_ops: list[Op]
    output_ops: list[Op]
    constants: list[Any]
    nodes: list[Op] = field(default_factory=list)
    donated: list[tuple[int, int]] = field(default_factory=list)
    weak_results: tuple[bool, ...] = ()
    argument_names: tuple[str, ...] = ()
    hashed: str | None = field(default=None, init=False, repr=False)
    """Its fingerprint, once it was asked for."""
    lines: Lines = field(default_factory=Lines, init=False, repr=False)
    """The line of the user's code that an op comes from."""
    _consumers: dict[int, list[tuple[Op, int]]] | None = field(default=None, init=False, repr=False)
    _reads: list[tuple[int, ...]] | None = field(default=None, init=False, repr=False)
    _wires: np.ndarray | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.nodes = [*self.input_ops, *self.graph.nodes(), *self.output_ops]
        for index, op in enumerate(self.nodes):
            op.index = index

    def consumers(self) -> dict[int, list[tuple[Op, int]]]:
        """By value id: the nodes that read it, and as which operand."""
        if self._consumers is None:
            self._consumers = result = {}
            for op in self.nodes:
                for k, x in enumerate(op.ins):
                    if isinstance(x, Value):
                        result.setdefault(x.id, []).append((op, k))
        return self._consumers

    def reads(self) -> list[tuple[int, ...]]:
        """By node: the ids of the values it reads, each once."""
        if self._reads is None:
            self._reads = [tuple(dict.fromkeys([x.id for x in op.ins if isinstance(x, Value)])) for op in self.nodes]
        return self._reads

    def wires(self) -> np.ndarray:
        """A row for each operand that is a value: the node that reads it, which operand it is, the node that makes it,
        which of the results it is."""
        if self._wires is None:
            made = {v.id: (op.index, k) for op in self.nodes for k, v in enumerate(op.outs)}
            self._wires = np.array(
                [(op.index, k, *made[x.id]) for op in self.nodes for k, x in enumerate(op.ins) if isinstance(x, Value)],
                np.int64,
            ).reshape(-1, 4)
        return self._wires
