"""A micro-batch's part of every value: the ops of a step on one part of the batch, in place of the whole.

The emitter that runs a device's pieces runs a micro-batch's as well: it is a device in time, whose position is the
number of the micro-batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...errors import InternalError
from ...lower.emit import Emitter, Scope
from ...placement import Placement
from ...rules import Local
from ...rules.widen import PARTIAL, B, signature_of
from ...signature import Signature, partial_sum
from ...trace import Atom, Graph, Lit, Op, Value
from .cut import Microbatches, Region

AXIS = "microbatch"
WHOLE = signature_of((B,))

# What a value that waits for its sum (max, min) begins with, and how a term is added.
_JOIN: dict[int, Callable[[Any, Any], Any]] = {
    PARTIAL["sum"]: jnp.add, PARTIAL["max"]: jnp.maximum, PARTIAL["min"]: jnp.minimum,
}  # fmt: skip


def identity(code: int, shape: Sequence[int], dtype: Any) -> jax.Array:
    """What a partial value is before its first term is added."""
    if code == PARTIAL["sum"]:
        return jnp.zeros(shape, dtype)
    if dtype == jnp.bool_:
        return jnp.full(shape, code == PARTIAL["min"])
    info = jnp.iinfo(dtype) if jnp.issubdtype(dtype, jnp.integer) else None
    low, high = (info.min, info.max) if info else (-np.inf, np.inf)
    return jnp.full(shape, low if code == PARTIAL["max"] else high, dtype)


def joined(code: int, held: Any, term: Any) -> Any:
    """A partial value with one more term."""
    return _JOIN[code](held, term).astype(held.dtype)


class PartEmitter(Emitter):
    """Runs ops of a step that is cut into micro-batches; ``number`` is that of the micro-batch."""

    def __init__(self, cut: Microbatches) -> None:
        self.program, self.cut = cut.program, cut
        self.placement = Placement("cpu", (cut.count,), tuple(range(cut.count)), (AXIS,), is_abstract=True)
        self.producer = {v.id: op for op in cut.program.nodes for v in op.outs}
        self.decision = [self.way(op) for op in cut.program.nodes]
        self.boxings = {}
        self.boxed = {}
        self.number: Any = 0
        self.local = self.part

    def part(self, *fields: Any) -> Local:
        return _Part(*fields, number=self.number)

    def way(self, op: Op) -> tuple[tuple[Signature, ...], tuple[Signature, ...]]:
        ways = self.cut.ways.get(op.index)
        if ways is None:
            return (WHOLE,) * len(op.ins), (WHOLE,) * len(op.outs)
        return tuple(signature_of((c,)) for c in ways[0]), tuple(signature_of((c,)) for c in ways[1])

    def graph(self, graph: Graph, scope: Scope) -> None:
        for op in graph.ops:
            self.op(op, scope)

    def compute(self, scope: Scope, op: Op, ins: Sequence[Signature], outs: Sequence[Signature]) -> Sequence[Any]:
        arguments = [self.read(scope, x, s) for x, s in zip(op.ins, ins, strict=True)]
        with jax.named_scope(f"node{op.index}"):
            # What has an effect is written as it was: the stage's own program has one device run it.
            return op.params["once"](*arguments) if op.runs_once else self.on_pieces(op, ins, outs, arguments)

    def define(self, scope: Scope, value: Value, signature: Signature, x: Any) -> None:
        if value.id in self.cut.estimated:
            if signature.has_partial:
                x = self.estimate(x, signature)
            scope[value.id] = {WHOLE: x}
        else:
            super().define(scope, value, signature, x)
            if self.cut.count == 1:
                scope[value.id][WHOLE] = x

    def estimate(self, term: Any, signature: Signature) -> Any:
        """What a sum over the whole batch would be, were all micro-batches like this one."""
        (component,) = signature
        return term * self.cut.count if component == partial_sum else term

    def read(self, scope: Scope, atom: Atom, signature: Signature) -> Any:
        if isinstance(atom, Lit):
            x = np.asarray(atom.literal, atom.dtype)
            return self.term(x, signature) if signature.has_partial else x
        known = scope.setdefault(atom.id, {})
        if signature not in known:
            known[signature] = self.changed(scope, atom, signature)
        return known[signature]

    def changed(self, scope: Scope, value: Value, signature: Signature) -> Any:
        """A whole value as a part, or as a term of a sum."""
        if self.cut.count == 1:
            return self.read(scope, value, WHOLE)
        if value.id in self.cut.free:
            if signature.has_partial:
                return self.term(self.read(scope, value, WHOLE), signature)
            return self.remake(scope, value, signature)
        if WHOLE not in scope[value.id]:
            raise InternalError(f"{value} is not whole in one micro-batch, and asked for as ({signature})")
        x = scope[value.id][WHOLE]
        if signature.has_partial and value.id in self.cut.estimated:
            return x / self.cut.count if signature == (partial_sum,) else x
        if signature.has_partial:
            return self.term(x, signature)
        (component,) = signature
        length = value.shape[component.dim] // self.cut.count  # pyright: ignore[reportAttributeAccessIssue]
        return lax.dynamic_slice_in_dim(x, self.number * length, length, component.dim)  # pyright: ignore

    def term(self, x: Any, signature: Signature) -> Any:
        """A whole value as a term of a sum: the first micro-batch has it."""
        (component,) = signature
        code = PARTIAL[component.op]  # pyright: ignore[reportAttributeAccessIssue]
        return jnp.where(self.number == 0, x, identity(code, np.shape(x), x.dtype))


@dataclass(slots=True)
class _Part(Local):
    """Where a micro-batch's part lies."""

    number: Any = 0

    def index(self, axis: int) -> Any:
        return self.number


def is_of_the_loop(cut: Microbatches, value: Value) -> bool:
    """Whether every micro-batch has a part of a value, or one of its own."""
    return cut.home[value.id] is Region.LOOP
