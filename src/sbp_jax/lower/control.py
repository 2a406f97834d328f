"""Loops, branches and barriers of a program, written with JAX's own; their bodies by whoever writes the program."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
from jax import lax

from ..signature import Signature
from ..trace import Atom, Graph, Op, Structured, Value

Scope = dict[int, dict[Signature, Any]]


class Writer(Protocol):
    """What control flow needs of an emitter (``emit.py``)."""

    def ins(self, op: Op) -> Sequence[Signature]:
        """An op's operands' signatures."""
        ...

    def outs(self, op: Op) -> Sequence[Signature]:
        """Its results'."""
        ...

    def define(self, scope: Scope, value: Value, signature: Signature, x: Any) -> None:
        """A value is there in a signature."""
        ...

    def read(self, scope: Scope, atom: Atom, signature: Signature) -> Any:
        """The local piece of a value in a signature."""
        ...

    def typed(self, scope: Scope, atom: Atom, signature: Signature, like: Any) -> Any:
        """The same, with the dtype and weak type of ``like``."""
        ...

    def body(
        self, graph: Graph, arguments: Sequence[tuple[Value, Signature, Any]], results: Callable[[Scope], list[Any]]
    ) -> list[Any]:
        """What ``results`` reads where a body has run."""
        ...


def _scan(e: Writer, op: Structured, scope: Scope) -> None:
    enter, carry, unstack, stack = (op.roles[r] for r in ("enter", "carry", "unstack", "stack"))
    (body,) = op.bodies
    fixed = [(o.outs[0], e.outs(o)[0], e.read(scope, o.ins[0], e.ins(o)[0])) for o in enter]
    initial = [e.read(scope, o.ins[0], e.ins(o)[0]) for o in carry]
    sliced = [e.read(scope, o.ins[0], e.ins(o)[0]) for o in unstack]

    def step(held: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        def results(inner: Scope) -> list[Any]:
            new = [e.typed(inner, o.ins[1], e.ins(o)[1], x) for o, x in zip(carry, held, strict=True)]
            return [*new, *(e.read(inner, o.ins[0], e.ins(o)[0]) for o in stack)]

        arguments = [
            *fixed,
            *((o.outs[0], e.outs(o)[0], x) for o, x in zip(carry, held, strict=True)),
            *((o.outs[0], e.outs(o)[0], x) for o, x in zip(unstack, xs, strict=True)),
        ]
        found = e.body(body, arguments, results)
        return found[: len(carry)], found[len(carry) :]

    final, collected = lax.scan(
        step, initial, sliced, length=op.params["length"], reverse=op.params["reverse"], unroll=op.params["unroll"]
    )
    for o, x in zip(carry, final, strict=True):
        e.define(scope, o.outs[1], e.outs(o)[1], x)
    for o, x in zip(stack, collected, strict=True):
        e.define(scope, o.outs[0], e.outs(o)[0], x)


def _while(e: Writer, op: Structured, scope: Scope) -> None:
    carry = op.roles["carry"]
    cond_graph, body_graph = op.bodies
    entered = {
        role: [(o.outs[0], e.outs(o)[0], e.read(scope, o.ins[0], e.ins(o)[0])) for o in op.roles[role]]
        for role in ("cond_enter", "body_enter")
    }
    (predicate,) = op.roles["predicate"]

    def goes_on(held: list[Any]) -> Any:
        (found,) = e.body(
            cond_graph,
            entered["cond_enter"] + [(o.outs[2], e.outs(o)[2], x) for o, x in zip(carry, held, strict=True)],
            lambda inner: [e.read(inner, predicate.ins[0], e.ins(predicate)[0])],
        )
        return found

    def step(held: list[Any]) -> list[Any]:
        return e.body(
            body_graph,
            entered["body_enter"] + [(o.outs[0], e.outs(o)[0], x) for o, x in zip(carry, held, strict=True)],
            lambda inner: [e.typed(inner, o.ins[1], e.ins(o)[1], x) for o, x in zip(carry, held, strict=True)],
        )

    final = lax.while_loop(goes_on, step, [e.read(scope, o.ins[0], e.ins(o)[0]) for o in carry])
    for o, x in zip(carry, final, strict=True):
        e.define(scope, o.outs[1], e.outs(o)[1], x)


def _cond(e: Writer, op: Structured, scope: Scope) -> None:
    (predicate,), join = op.roles["predicate"], op.roles["join"]
    entered = [
        [(o.outs[0], e.outs(o)[0], e.read(scope, o.ins[0], e.ins(o)[0])) for o in op.roles[f"enter{k}"]]
        for k in range(len(op.bodies))
    ]

    def branch(k: int) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            results = e.body(
                op.bodies[k], entered[k], lambda inner: [e.read(inner, o.ins[k], e.ins(o)[k]) for o in join]
            )
            return [
                y if y.dtype == o.outs[0].dtype else lax.convert_element_type(y, o.outs[0].dtype)
                for o, y in zip(join, results, strict=True)
            ]

        return run

    index = e.read(scope, predicate.ins[0], e.ins(predicate)[0])
    results = lax.switch(lax.convert_element_type(index, jnp.int32), [branch(k) for k in range(len(op.bodies))])
    for o, x in zip(join, results, strict=True):
        e.define(scope, o.outs[0], e.outs(o)[0], x)


def _barrier(e: Writer, op: Structured, scope: Scope) -> None:
    links = op.roles["barrier"]
    held = lax.optimization_barrier(tuple(e.read(scope, o.ins[0], e.ins(o)[0]) for o in links))
    for o, x in zip(links, held, strict=True):
        e.define(scope, o.outs[0], e.outs(o)[0], x)


CONTROL: dict[str, Callable[[Writer, Structured, Scope], None]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "barrier": _barrier,
}
