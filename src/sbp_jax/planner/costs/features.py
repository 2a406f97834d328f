"""What a device does by choice, in numbers that are no seconds: for searches that learn the seconds from them."""

import numpy as np

from .assemble import Decisions
from .cost_graph import CostGraph

FEATURES = ("floating-point operations", "bytes read and written", "kernels")


def features(decisions: Decisions, problem: CostGraph) -> tuple[CostGraph, ...]:
    """For each of ``FEATURES`` its amounts a step by node and choice, repeated layers counted; hubs do nothing."""
    amounts = [np.zeros((len(FEATURES), len(c))) for c in problem.nodes]
    for n, (cluster, count) in enumerate(zip(decisions.representative, decisions.count, strict=True)):
        values = (*cluster.ins, *cluster.outs)
        for k, s in enumerate(cluster.strategies):
            codes = (*s.ins, *s.outs)
            moved = sum(
                times * decisions.model.local_bytes(v, code)
                for v, code, times in zip(values, codes, cluster.in_memory, strict=True)
                if times
            )
            amounts[n][:, k] = cluster.flops * s.share, moved, float(cluster.flops > 0)
        amounts[n] *= count * cluster.times
    return tuple(CostGraph([x[f] for x in amounts], {}) for f in range(len(FEATURES)))
