"""Zeros that loops start from: XLA makes equal ones once for all of them."""

from collections.abc import Mapping

import numpy as np

from ...trace import Atom, Graph, Lit, Op, Value
from .kernels import REPEATING


def shared_zeros(graph: Graph, maker: Mapping[int, Op]) -> list[tuple[Value, Value]]:
    """What loops start from zeros, by pairs of equal ones in a loop and the next that has one.

    XLA makes such zeros once and copies them for every loop but the last: from the first loop to that they are there.
    """
    pairs: list[tuple[Value, Value]] = []
    latest: dict[tuple[tuple[int, ...], str], Value] = {}
    for op in graph.ops:
        if isinstance(op, Op):
            continue
        for body in op.bodies:
            pairs += shared_zeros(body, maker)
        if op.kind not in ("scan", "while"):
            continue
        starts = [link.outs[0] for link in op.roles.get("stack", ())]
        starts += [link.outs[0] for link in op.roles["carry"] if _is_zero(link.ins[0], maker)]
        mine = {(v.shape, str(v.dtype)): v for v in starts if v.shape}
        pairs += [(latest[key], v) for key, v in mine.items() if key in latest]
        latest |= mine
    return pairs


def _is_zero(x: Atom, maker: Mapping[int, Op]) -> bool:
    """Whether a value is zeros, by the op that makes it."""
    while isinstance(x, Value) and maker[x.id].name in REPEATING:
        x = maker[x.id].ins[0]
    return isinstance(x, Lit) and np.ndim(x.literal) == 0 and x.literal == 0
