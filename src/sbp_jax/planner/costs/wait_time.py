"""OneFlow's wait time: what starting a transfer costs beside its bytes, and where compute on the trunk covers it.

``set_auto_parallel_wait_time`` adds a constant to every boxing in which devices talk: the time they idle for. With
``enable_auto_parallel_trunk_algo`` it is less on tributaries: while a branch off the longest path waits, the trunk
computes. The trunk here is the longest path through the program by each op's cheapest compute seconds; an edge's
slack is how much later it could happen without making any path longer than the trunk, and covers that much of the wait.
(OneFlow's ``SbpGraph::FindTrunk`` counts layers for the path and seconds for the cover.)
"""

from collections.abc import Mapping, Sequence

from ..graph.clusters import OpCluster
from .op_cost import CostModel

# (class and result that make a value) and (class and operand that read it)
Link = tuple[tuple[int, int], tuple[int, int]]


def waits(
    clusters: Sequence[OpCluster], classes: Sequence[int], model: CostModel, wait_seconds: float, trunk_algo: bool
) -> Mapping[Link, float]:
    """Seconds that a boxing on each link between classes waits; the longest of the links that one class stands for."""
    made = {v.id: (c.index, k) for c in clusters for k, v in enumerate(c.outs)}
    own: dict[int, float] = {}
    for cluster, group in zip(clusters, classes, strict=True):
        if group not in own:
            own[group] = cluster.times * min(model.compute_seconds(cluster, s) for s in cluster.strategies)
    cost = [own[group] for group in classes]
    head, tail = [0.0] * len(clusters), list(cost)
    for cluster in clusters:
        before = (head[made[v.id][0]] for v in cluster.ins if made[v.id][0] < cluster.index)
        head[cluster.index] = cost[cluster.index] + max(before, default=0.0)
    for cluster in reversed(clusters):
        for v in cluster.ins:
            source = made[v.id][0]
            if source < cluster.index:
                tail[source] = max(tail[source], cost[source] + tail[cluster.index])
    longest = max(head, default=0.0)
    found: dict[Link, float] = {}
    for cluster in clusters:
        for k, v in enumerate(cluster.ins):
            source, result = made[v.id]
            slack = 0.0
            if trunk_algo and source < cluster.index:
                slack = longest - head[source] - tail[cluster.index]
            elif trunk_algo and cluster.ops[0].name == "sbp.input":  # what replaces an argument: the step's end
                slack = longest - head[source]
            link = (classes[source], result), (classes[cluster.index], k)
            # Rounding is no slack: the trunk's own links keep all of their wait.
            covered = slack if slack > 1e-9 * longest else 0.0
            found[link] = max(found.get(link, 0.0), wait_seconds - covered, 0.0)
    return found
