"""HeterPS: an LSTM gives every layer a kind of device; within a kind, layers go where they are finished first.

Liu, Wu, Yu, Ma, Feng, Zhang, Wu, Yao and Dou, "HeterPS: Distributed Deep Learning with Reinforcement Learning Based
Scheduling in Heterogeneous Environments", Future Generation Computer Systems 148, 2023, arXiv:2111.10635: the policy
reads the layers in order, its softmax draws a kind of resource for each, and REINFORCE with a baseline trains it. There
the cost is money at a given throughput, and a layer gets as many devices of its kind as that needs; here it is the
seconds of a run, and a layer gets one device.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..catalogue import register
from .features import Features
from .policy import OPTIONS, Judged, choose, learned, linen
from .simulate import Simulator
from .task import Placing, PlacingTask


@functools.cache
def network(kinds: int) -> Any:
    """An LSTM over ops, a softmax over kinds."""
    nn = linen()

    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x: Features, given: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            h = nn.RNN(nn.OptimizedLSTMCell(32))(nn.Dense(32)(x.ops))
            logits = nn.Dense(kinds)(jnp.concatenate([h, x.ops], axis=-1))
            action, log, entropy = choose(logits, noise, given)
            return action, (log * x.mask).sum(), (entropy * x.mask).sum() / x.mask.sum()

        def actions(self, x: Features) -> tuple[int, int]:
            return len(x.mask), kinds

    return Layers()


@register(
    "heterps", family="placing", promises="none", decides="the kind of device of every op", options=OPTIONS,
    paper="Liu et al.: HeterPS: Distributed Deep Learning with Reinforcement Learning Based Scheduling in "
    "Heterogeneous Environments, Future Generation Computer Systems 148, 2023, arXiv:2111.10635",
)  # fmt: skip
def heterps(task: PlacingTask) -> Placing:
    """The best placement met while learning."""
    kinds = list(dict.fromkeys(task.devices.kinds))
    of_kind = [[d for d, k in enumerate(task.devices.kinds) if k == kind] for kind in kinds]

    def judge(s: Simulator, actions: np.ndarray) -> Judged:
        device = _first_done(s, actions, of_kind)
        return Judged(s.score(device), device)

    return learned(task, "heterps", network(len(kinds)), judge)


def _first_done(s: Simulator, actions: np.ndarray, of_kind: list[list[int]]) -> list[int]:
    """Among the devices of its kind, an op goes where it is finished first; to any other if none is possible."""
    g, free, finish = s.graph, [0.0] * len(s.devices), [0.0] * len(s.graph)
    device = [0] * len(g)
    for v in range(len(g)):
        near = [d for d in of_kind[actions[v]] if s.possible[v, d]] or np.flatnonzero(s.possible[v]).tolist()

        def end(d: int, v: int = v) -> float:
            arrivals = [finish[g.tensors[k].maker] + s.costs[k][device[g.tensors[k].maker]][d] for k in g.reads[v]]
            return max([free[d], *arrivals]) + float(g.seconds[v, d])

        device[v] = near[0] if len(near) == 1 else min(near, key=end)
        finish[v] = free[device[v]] = end(device[v])
    return device
