"""What a policy sees of a graph: numbers that mean the same on every graph, as padded arrays."""

from typing import NamedTuple

import numpy as np

from .simulate import Simulator

_IMPOSSIBLE = 8.0


class Features(NamedTuple):
    """A graph for a network; ops beyond its own are padding.

    Attributes:
        ops: (n, features): by device the logarithm of an op's seconds over the mean op's, and over its own least; what
            its operands and results take to be sent, over the mean op's seconds; depth; rank; numbers of neighbours;
            bytes.
        before, after: (n, n), means over the ops that an op reads of, and that read of it.
        mask: (n,), 1 for the graph's own ops.
        possible: (n, devices), where an op can run.
        fastest: (n,), the device where it takes least.
    """

    ops: np.ndarray
    before: np.ndarray
    after: np.ndarray
    mask: np.ndarray
    possible: np.ndarray
    fastest: np.ndarray


def features(s: Simulator, size: int | None = None) -> Features:
    """The features of a graph, padded to ``size`` ops."""
    g, n = s.graph, len(s.graph)
    least = np.where(s.possible, g.seconds, np.inf).min(axis=1)
    mean = max(float(least.mean()), 1e-12)
    near = np.where(s.possible, g.seconds, mean)
    absolute = np.where(s.possible, np.log(near / mean + 1e-3), _IMPOSSIBLE)
    relative = np.where(s.possible, np.log((near + 1e-3 * mean) / (least[:, None] + 1e-3 * mean)), _IMPOSSIBLE)
    away = max(len(s.devices) * (len(s.devices) - 1), 1)
    sent = [sum(map(sum, c)) / away / mean for c in s.costs]
    into = np.array([sum(sent[k] for k in ks) for ks in g.reads])
    out = np.zeros(n)
    for k, t in enumerate(g.tensors):
        if t.maker >= 0 and t.readers:
            out[t.maker] += sent[k]
    depth = np.zeros(n)
    for v, before in enumerate(g.before):
        depth[v] = max((depth[u] + 1 for u in before), default=0)
    rank = np.zeros(n)
    rank[s.mean_order] = np.arange(n) / max(n, 1)
    rows = [
        absolute, relative, np.log1p(into)[:, None], np.log1p(out)[:, None], (depth / max(depth.max(), 1))[:, None],
        rank[:, None], np.array([[len(a) / 4, len(b) / 4] for a, b in zip(g.before, g.after, strict=True)]),
        (g.own_bytes / s.limits.min())[:, None],
    ]  # fmt: skip
    before, after = np.zeros((n, n)), np.zeros((n, n))
    for a, b, _ in g.edges:
        before[b, a] = after[a, b] = 1.0
    before /= np.maximum(before.sum(axis=1, keepdims=True), 1.0)
    after /= np.maximum(after.sum(axis=1, keepdims=True), 1.0)
    more = (size or n) - n
    wide = ((0, more), (0, 0))
    return Features(
        np.pad(np.concatenate(rows, axis=1), wide).astype(np.float32),
        np.pad(before, ((0, more), (0, more))).astype(np.float32),
        np.pad(after, ((0, more), (0, more))).astype(np.float32),
        np.pad(np.ones(n, np.float32), (0, more)), np.pad(s.possible, wide, constant_values=True),
        np.pad(np.where(s.possible, g.seconds, np.inf).argmin(axis=1), (0, more)),
    )  # fmt: skip
