"""Zeros that loops start from: XLA makes equal ones once for all of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...trace import Atom, Graph, Lit, Op, Value
from .kernels import RENAMES, REPEATING


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
    in another: zeros of two forms, then. What it adds to is cut in a way of its own, too.
    """
    found: list[Zeros] = []
    latest: dict[tuple[tuple[int, ...], str], dict[str, Value]] = {}
    for op in graph.ops:
        if isinstance(op, Op):
            continue
        for body in op.bodies:
            found += shared_zeros(body, maker)
        if op.kind not in ("scan", "while"):
            continue
        multiplied = {x.id for body in op.bodies for x in _factors(body)}
        states = {link.outs[0].id for link in op.roles["carry"]} & multiplied
        starts = [(link.outs[0], "added to") for link in op.roles["carry"] if _is_zero(link.ins[0], maker)]
        for link in op.roles.get("stack", ()):
            (x,) = link.ins
            is_state = isinstance(x, Value) and _named(x, maker).id in states
            starts.append((link.outs[0], "state" if is_state else "collected"))
        mine: dict[tuple[tuple[int, ...], str], dict[str, Value]] = {}
        for v, kind in starts:
            if v.shape:
                mine.setdefault((v.shape, str(v.dtype)), {})[kind] = v
        for key, new in mine.items():
            found += _pairs(latest.get(key, {}), new)
            # What is collected later may start from the zeros of states before.
            if "collected" in new or "state" in new:
                latest[key] = {kind: v for kind, v in latest.get(key, {}).items() if kind == "added to"}
            latest[key] = latest.get(key, {}) | new
    return found


def _pairs(old: Mapping[str, Value], new: Mapping[str, Value]) -> Iterator[Zeros]:
    if "added to" in old and "added to" in new:
        yield Zeros(old["added to"], new["added to"])
    collects = "state" in new or "collected" in new
    main = old.get("state", old.get("collected"))
    if collects and main is not None:
        yield Zeros(main, new.get("state", new.get("collected", main)))
        if "state" in old and "collected" in old and len(new.keys() & {"state", "collected"}) == 2:
            yield Zeros(old["collected"], new["collected"], main)


def _factors(body: Graph) -> Iterator[Value]:
    """What is read by matrix products."""
    for op in body.ops:
        if isinstance(op, Op) and op.name == "dot_general":
            yield from op.reads


def _named(x: Value, maker: Mapping[int, Op]) -> Value:
    """What a value is another form of."""
    while x.id in maker and maker[x.id].name in REPEATING | RENAMES and isinstance(y := maker[x.id].ins[0], Value):
        x = y
    return x


def _is_zero(x: Atom, maker: Mapping[int, Op]) -> bool:
    """Whether a value is zeros, by the op that makes it."""
    while isinstance(x, Value) and maker[x.id].name in REPEATING:
        x = maker[x.id].ins[0]
    return isinstance(x, Lit) and np.ndim(x.literal) == 0 and x.literal == 0
