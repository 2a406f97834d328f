"""What a boxing can hide behind: the compute between the making of a value and the first op that must wait for it.

On hardware that runs collectives beside compute, a boxing costs a step what sticks out. What that is depends on all
decisions: who else uses the links meanwhile, and how long the compute takes. Here it is taken from a plan that is there
already, so that prices stay a sum over pairs of decisions: of the part of a boxing that this plan's compute could cover
only ``share`` is charged, of the rest all. Links are shared, so ``share`` is above 0: it is the price of time on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.clusters import OpCluster

# (class and result that make a value) and (class and operand that read it), as in ``wait_time.py``.
Link = tuple[tuple[int, int], tuple[int, int]]
NO_SLACK = np.zeros(1)


@dataclass(frozen=True, slots=True)
class Slack:
    """Seconds of compute that can cover one boxing, by value and node that reads it; the part charged of what is
    covered."""

    seconds: Mapping[tuple[int, int], float]
    share: float


def slacks(clusters: Sequence[OpCluster], classes: Sequence[int], slack: Slack) -> dict[Link, np.ndarray]:
    """By link between classes the seconds that can cover a boxing, one for each of the links that it stands for."""
    made = {v.id: (classes[c.index], k) for c in clusters for k, v in enumerate(c.outs)}
    found: dict[Link, list[float]] = {}
    of = slack.seconds.get
    for cluster in clusters:
        reader, ops = classes[cluster.index], [op.index for op in cluster.ops]
        for k, v in enumerate(cluster.ins):
            i = v.id
            if len(ops) == 1:
                seconds = of((i, ops[0]), 0.0)
            else:
                seconds = min([s for at in ops if (s := of((i, at))) is not None], default=0.0)
            link = made[i], (reader, k)
            known = found.get(link)
            if known is None:
                found[link] = [seconds]
            else:
                known.append(seconds)
    return {link: np.array(each) for link, each in found.items()}


def exposed(seconds: np.ndarray, covers: np.ndarray, share: float) -> np.ndarray:
    """What boxings of ``seconds`` cost, on average over links with these seconds of cover."""
    if not covers.any():
        return seconds
    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    covered = np.minimum(finite, covers[:, None, None]).sum(axis=0) / len(covers)
    return seconds - (1 - share) * covered
