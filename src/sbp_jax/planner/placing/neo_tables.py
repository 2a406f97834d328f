"""Neo's placing of embedding tables: each whole on one device, their work shared out as evenly as can be.

Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models",
ISCA 2022, arXiv:2104.05158: the cost of each table is known, and a greedy heuristic or the largest
differencing method of Karmarkar and Karp shares them out. What hangs on them follows where it is finished earliest, as
HEFT does.
"""

import numpy as np

from ..catalogue import Option, register
from .partition import greedy, karmarkar_karp
from .task import Placing, PlacingTask, finished

_BY_NAME = {"karmarkar_karp": karmarkar_karp, "greedy": greedy}


@register(
    "neo_tables", family="placing", decides="the device of every op that reads much of its own (embedding tables)",
    promises="none", leaves_open=False,
    paper="Mudigere et al.: Software-Hardware Co-design for Fast and Scalable Training of DLRM, ISCA 2022, "
    "arXiv:2104.05158",
    options=(
        Option("partition", "karmarkar_karp", "how tables are shared out", possible=tuple(_BY_NAME)),
        Option("share", 0.01, "an op has a table where it reads this part of all arguments' bytes", most=1.0),
    ),
)  # fmt: skip
def neo_tables(task: PlacingTask) -> Placing:
    """Tables by their seconds; the part with the most work goes to the device that does it the quickest."""
    g, s = task.graph, task.simulator
    held = np.zeros(len(g))
    for t in g.tensors:
        if t.maker < 0:
            for r in t.readers:
                held[r] += t.size_bytes / len(t.readers)
    tables = [v for v in range(len(g)) if held[v] > 0 and held[v] >= task.options["share"] * held.sum()]
    seconds = np.where(s.possible, g.seconds, np.inf)
    mean = np.ma.masked_invalid(seconds).mean(axis=1).filled(0.0)
    part = _BY_NAME[task.options["partition"]]([float(mean[v]) for v in tables], len(task.devices))
    work = np.zeros((len(task.devices), len(task.devices)))
    for v, p in zip(tables, part, strict=True):
        work[p] += seconds[v]
    device = [-1] * len(g)
    left = list(range(len(task.devices)))
    for p in sorted(left, key=lambda p: -float(np.ma.masked_invalid(work[p]).mean() or 0.0)):
        d = min(left, key=lambda d: (work[p, d], d))
        left.remove(d)
        for v, own in zip(tables, part, strict=True):
            if own == p:
                device[v] = d if s.possible[v, d] else int(seconds[v].argmin())
    return finished(task, _followed(task, device, seconds))


def _followed(task: PlacingTask, device: list[int], seconds: np.ndarray) -> list[int]:
    """Ops without a device yet go, in order, where they are finished the earliest."""
    g, s = task.graph, task.simulator
    free, finish = np.zeros(len(task.devices)), np.zeros(len(g))
    for v in range(len(g)):
        ready = np.zeros(len(task.devices))
        for k in g.reads[v]:
            u = g.tensors[k].maker
            ready = np.maximum(ready, finish[u] + np.asarray(s.costs[k][device[u]]))
        end = np.maximum(free, ready) + seconds[v]
        if device[v] < 0:
            device[v] = int(end.argmin())
        finish[v] = free[device[v]] = end[device[v]]
    return device
