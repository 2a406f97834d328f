"""What a program computes twice, element by element: XLA does it once (``HloCSE``), and all readers are the first's.

A variance takes the mean that a norm has taken already, and subtracts it once more.
"""

import math
from collections.abc import Callable, Collection, Hashable, Sequence

import numpy as np

from ...trace import Atom, Graph, Lit, Op, Program, Value
from .kernels import MOVES, RENAMES

_Elements = tuple[int, tuple[int, ...]]  # a value's id, and the shape that they have there
_Readers = dict[int, list[tuple[Op, int]]]


def read_once(program: Program, eligible: Sequence[bool], free: Collection[int]) -> tuple[_Readers, dict[int, int]]:
    """By value: the nodes that read it or a duplicate of it, and as which operand. And by duplicate what it is one of.

    A duplicate keeps its own readers, too, and reads nothing. ``eligible``: by op, whether it may be one, or have one.
    ``free`` values are made by each reader.
    """
    first = _first(program.graph, eligible, free)
    readers: _Readers = {}
    for op in program.nodes:
        if op.outs and op.outs[0].id in first:
            continue
        for k, x in enumerate(op.ins):
            if isinstance(x, Value):
                readers.setdefault(x.id, []).append((op, k))
                if x.id in first:
                    readers.setdefault(first[x.id], []).append((op, k))
    return readers, first


def _first(graph: Graph, eligible: Sequence[bool], free: Collection[int]) -> dict[int, int]:
    """By duplicate: the value that is computed before it, in the same graph, as XLA looks no further."""
    found: dict[int, int] = {}
    known: dict[Hashable, Value] = {}  # what a value is made of -> the first such value
    elements: dict[int, _Elements] = {}  # of what is another value's elements in another shape

    def of(x: Value) -> _Elements:
        return elements.get(x.id, (found.get(x.id, x.id), x.shape))

    for op in graph.ops:
        if not isinstance(op, Op):
            for body in op.bodies:
                found |= _first(body, eligible, free)
            continue
        x = op.ins[0] if op.ins else None
        if isinstance(x, Value) and _renames(op, x):
            elements[op.outs[0].id] = of(x)
        elif eligible[op.index] and len(op.outs) == 1 and (v := op.outs[0]).id not in free and not op.has_effect:
            arrays = [x for x in op.reads if x.shape]
            # Whatever shape they are in, if it is the same for all.
            in_step = op.name not in MOVES and {x.shape for x in arrays} == {v.shape}
            in_step = in_step and len({of(x)[1] for x in arrays}) == 1
            key = op.name, tuple([_told(x, of, in_step) for x in op.ins]), tuple(op.params.items())
            try:
                other = known.setdefault(key, v)
            except TypeError:  # parameters that cannot be compared
                continue
            if other is not v:
                elements[v.id] = of(other)
                if other.shape == v.shape:
                    found[v.id] = other.id
            elif in_step:
                elements[v.id] = v.id, of(arrays[0])[1]
    return found


def _told(x: Atom, of: Callable[[Value], _Elements], in_step: bool) -> Hashable:
    """What an operand is, for its reader; ``in_step``: whatever its shape."""
    if isinstance(x, Lit):
        return x.dtype, x.shape, np.asarray(x.literal).tobytes()
    return of(x), None if in_step else x.shape


def _renames(op: Op, x: Value) -> bool:
    """Whether a result has its operand's elements, in their order, and on the same devices: what is pinned may not."""
    same = op.name == "broadcast_in_dim" and math.prod(op.outs[0].shape) == math.prod(x.shape)
    return same or (op.name in RENAMES and op.name != "sbp.pin")
