"""FTPipe's mixed pipe: more blocks than devices, given to devices by multiprocessor scheduling.

Eliad, Hakimi, De Jagger, Silberstein and Schuster, "Fine-tuning giant neural networks on commodity hardware with
automatic pipeline model parallelism", USENIX ATC 2021 ("Mixed-pipe"). The graph is merged into blocks, several for
each device, that need not be neighbours; the longest block goes first, to the device that is least busy with it (LPT);
then blocks change devices where that sends fewer bytes and no device gets busier than the busiest was. As there,
several numbers of blocks are tried.
"""

from collections.abc import Sequence

import numpy as np

from ..catalogue import Option, register
from .coarsen import coarsened
from .graph import OpGraph
from .simulate import Simulator
from .task import Placing, PlacingTask, finished


@register(
    "ftpipe", family="placing", promises="none", decides="the device of every block of ops",
    paper="Eliad et al.: Fine-tuning giant neural networks on commodity hardware with automatic pipeline model "
    "parallelism, USENIX ATC 2021, Mixed-pipe",
    options=(Option("blocks", 8, "the most blocks for each device", least=1),),
)  # fmt: skip
def ftpipe(task: PlacingTask) -> Placing:
    """The best of one block for each device, two, and so on."""
    s, best = task.simulator, None
    for each in range(1, task.options["blocks"] + 1):
        blocks = coarsened(task.graph, each * len(task.devices))
        device = _refined(blocks, _longest_first(blocks, s), s)
        wide = widened(task.graph, blocks, device)
        score = s.score(wide)
        if best is None or score < best[0]:
            best = score, wide, len(blocks)
        if len(blocks) == len(task.graph):
            break
    assert best is not None
    return finished(task, best[1], notes=(f"{best[2]} blocks",))


def widened(graph: OpGraph, blocks: OpGraph, device: Sequence[int]) -> list[int]:
    """By op of the graph the device of its block."""
    first = {members[0]: k for k, members in enumerate(graph.members or [(k,) for k in range(len(graph))])}
    found = [0] * len(graph)
    for v, members in enumerate(blocks.members):
        for x in members:
            if x in first:
                found[first[x]] = device[v]
    return found


def _longest_first(blocks: OpGraph, s: Simulator) -> list[int]:
    """LPT on unlike devices: the device where the block's end is earliest, if its bytes fit there."""
    busy, room = np.zeros(len(s.devices)), s.limits.copy()
    device = [0] * len(blocks)
    finite = np.where(np.isfinite(blocks.seconds), blocks.seconds, 0.0)
    for v in sorted(range(len(blocks)), key=lambda v: (-finite[v].max(), v)):
        ends = busy + blocks.seconds[v]
        fits = (room >= blocks.own_bytes[v]) & np.isfinite(ends)
        d = int(np.where(fits, ends, np.inf).argmin()) if fits.any() else int(ends.argmin())
        device[v] = d
        busy[d] += blocks.seconds[v, d]
        room[d] -= blocks.own_bytes[v]
    return device


def _refined(blocks: OpGraph, device: list[int], s: Simulator) -> list[int]:
    """Blocks moved to a neighbour's device while that sends fewer bytes and the busiest device is no busier."""
    busy = np.zeros(len(s.devices))
    for v, d in enumerate(device):
        busy[d] += blocks.seconds[v, d]
    near: list[dict[int, float]] = [{} for _ in device]
    for a, b, n in blocks.edges:
        near[a][b] = near[a].get(b, 0.0) + n
        near[b][a] = near[b].get(a, 0.0) + n
    again = True
    while again:
        again = False
        for v in range(len(device)):
            tie = np.zeros(len(s.devices))
            for u, n in near[v].items():
                tie[device[u]] += n
            for d in np.argsort(-tie, kind="stable"):
                if tie[d] <= tie[device[v]]:
                    break
                if busy[d] + blocks.seconds[v, d] <= busy.max() * (1 + 1e-12):
                    busy[device[v]] -= blocks.seconds[v, device[v]]
                    busy[d] += blocks.seconds[v, d]
                    device[v], again = int(d), True
                    break
    return device
