"""HEFT: ops by upward rank, each on the device where it is finished earliest.

Topcuoglu, Hariri and Wu, "Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing", IEEE
TPDS 13(3), 2002, section 4.2. Links are busy here while they send, which the paper leaves out; an op may be put into a
gap between two others, as there.
"""

import numpy as np

from ..catalogue import register
from .task import Placing, PlacingTask, finished


@register(
    "heft", family="placing", promises="none",
    paper="Topcuoglu, Hariri, Wu: Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous "
    "Computing, IEEE TPDS 13(3), 2002, section 4.2",
)  # fmt: skip
def heft(task: PlacingTask) -> Placing:
    """Devices in order of upward rank; arguments and results of ops on a device stay within its memory if possible."""
    s, g = task.simulator, task.graph
    n = len(task.devices)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    link = np.zeros((n, n))
    start, finish, device = np.zeros(len(g)), np.zeros(len(g)), [-1] * len(g)
    arrived: dict[tuple[int, int], float] = {}
    room = s.limits.copy()
    for v in s.mean_order:
        best = None
        for d in map(int, np.flatnonzero(s.possible[v])):
            ready, sent, used = 0.0, dict[tuple[int, int], float](), link[:, d].copy()
            for k in g.reads[v]:
                u = g.tensors[k].maker
                e = device[u]
                when = finish[u] if e == d else arrived.get((k, d))
                if when is None:
                    when = used[e] = sent[k, d] = max(used[e], finish[u]) + s.costs[k][e][d]
                ready = max(ready, when)
            at = _gap(busy[d], ready, g.seconds[v, d])
            key = (bool(g.own_bytes[v] > room[d]), at + g.seconds[v, d], d)
            if best is None or key < best[0]:
                best = key, at, sent, used
        assert best is not None
        (_, end, d), start[v], sent, used = best
        device[v], finish[v], link[:, d] = d, end, used
        arrived |= sent
        busy[d] = sorted([*busy[d], (start[v], end)])
        room[d] -= g.own_bytes[v]
    return finished(task, device, sorted(range(len(g)), key=lambda v: (start[v], v)))


def _gap(busy: list[tuple[float, float]], ready: float, seconds: float) -> float:
    """The earliest start, no earlier than ``ready``, at which a device is free for so long."""
    at = ready
    for a, b in busy:
        if at + seconds <= a:
            break
        at = max(at, b)
    return at
