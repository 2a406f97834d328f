"""Zeros that loops start from: XLA makes equal ones once for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...trace import Atom, Graph, Lit, Op, Structured, Value
from .kernels import RENAMES, REPEATING

_Type = tuple[tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Zeros:
    """Of ``one``'s loop to that of ``other``: there if the two have one signature.

    Or, with ``beside``, which is counted as it is and starts from zeros of the same type in the same loop: if ``one``
    has another signature than that.
    """

    one: Value
    other: Value
    beside: Value | None = None


def shared_zeros(graph: Graph, maker: Mapping[int, Op]) -> list[Zeros]:
    """What loops start from zeros, by pairs of equal ones in a loop and the next that has one.

    XLA makes such zeros once and copies them for every loop but the last: from the first loop to that they are there.
    The states that a loop collects for the products of its gradient are cut in one way, all else that it collects
    in another: zeros of two forms, then. What loops add to is cut in a way of its own, too.
    """
    found: list[Zeros] = []
    latest_sums: dict[_Type, Value] = {}
    latest: dict[_Type, list[Value]] = {}
    for op in graph.ops:
        if isinstance(op, Op):
            continue
        for body in op.bodies:
            found += shared_zeros(body, maker)
        if op.kind not in ("scan", "while"):
            continue
        sums = {_type(c.outs[0]): c.outs[0] for c in op.roles["carry"] if is_zero(c.ins[0], maker)}
        found += [Zeros(latest_sums[key], v) for key, v in sums.items() if v.shape and key in latest_sums]
        latest_sums |= sums
        for key, new in _collected(op, maker).items():
            if old := latest.get(key):
                found.append(Zeros(old[0], new[0]))
                if len(old) == len(new) == 2:
                    found.append(Zeros(old[1], new[1], old[0]))
            latest[key] = new
    return found


def _collected(loop: Structured, maker: Mapping[int, Op]) -> dict[_Type, list[Value]]:
    """What a loop collects, by type: one of the states for products, if there are any, then one of the others."""
    products = [op for body in loop.bodies for op in body.ops if isinstance(op, Op) and op.name == "dot_general"]
    multiplied = {x.id for op in products for x in op.reads}
    states = {link.outs[0].id for link in loop.roles["carry"]} & multiplied
    found: dict[_Type, dict[bool, Value]] = {}
    for link in loop.roles.get("stack", ()):
        (x,), (v,) = link.ins, link.outs
        other = not (isinstance(x, Value) and _named(x, maker).id in states)
        found.setdefault(_type(v), {})[other] = v
    return {key: [values[other] for other in sorted(values)] for key, values in found.items()}


def _type(v: Value) -> _Type:
    return v.shape, v.dtype_name


def _named(x: Value, maker: Mapping[int, Op]) -> Value:
    """What a value is another form of."""
    while x.id in maker and maker[x.id].name in REPEATING | RENAMES and isinstance(y := maker[x.id].ins[0], Value):
        x = y
    return x


def is_zero(x: Atom, maker: Mapping[int, Op]) -> bool:
    """Whether a value is zeros, by the op that makes it."""
    while isinstance(x, Value) and maker[x.id].name in REPEATING:
        x = maker[x.id].ins[0]
    return isinstance(x, Lit) and np.ndim(x.literal) == 0 and x.literal == 0
