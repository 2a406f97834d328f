"""Parts of a program run as they are: nothing is split, nothing is sent."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..signature import Signature
from ..trace import Atom, Graph, Op, Structured, Value
from .emit import Emitter, Scope

_WHOLE = Signature(())


class PlainEmitter(Emitter):
    """Emits ops on whole values. ``makers`` are ops whose results are made where they are read, by value id."""

    def __init__(self, makers: Mapping[int, Op]) -> None:
        self.makers = makers

    def steps_on(
        self, steps: Sequence[Op | Structured], values: Mapping[int, Any], wanted: Sequence[Atom]
    ) -> list[Any]:
        """Run parts of a program, in order, on values by id; the values of ``wanted``."""
        scope: Scope = {i: {_WHOLE: x} for i, x in values.items()}
        for step in steps:
            self.op(step, scope)
        return [self.read(scope, x, _WHOLE) for x in wanted]

    def decide(self, op: Op) -> tuple[tuple[Signature, ...], tuple[Signature, ...]]:
        return (_WHOLE,) * len(op.ins), (_WHOLE,) * len(op.outs)

    def graph(self, graph: Graph, scope: Scope) -> None:
        for op in graph.ops:
            self.op(op, scope)

    def op(self, op: Op | Structured, scope: Scope) -> None:
        if isinstance(op, Structured):
            super().op(op, scope)
        else:
            for v, y in zip(op.outs, self.compute(scope, op, *self.decide(op)), strict=True):
                self.define(scope, v, _WHOLE, y)

    def read(self, scope: Scope, atom: Atom, signature: Signature) -> Any:
        if isinstance(atom, Value) and atom.id not in scope:
            self.op(self.makers[atom.id], scope)
        return super().read(scope, atom, signature)

    def on_pieces(
        self, op: Op, ins: Sequence[Signature], outs: Sequence[Signature], arguments: Sequence[Any]
    ) -> Sequence[Any]:
        if op.primitive is None:  # a constant
            return [op.params["value"]]
        y = op.primitive.bind(*arguments, **op.params)
        return y if op.primitive.multiple_results else [y]
