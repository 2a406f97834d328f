"""GDP: a graph network and attention place all ops at once; one policy for many graphs.

Zhou, Roy, Abdolrashidi, Wong, Ma, Xu, Zhong, Liu, Goldie, Mirhoseini and Laudon, "GDP: Generalized Device Placement for
Dataflow Graphs", arXiv:1910.01578, section 3: GraphSAGE embeds the ops, a transformer gives each its device, and PPO
trains both on several graphs; the policy then places graphs that it has not seen, with or without more training. The
paper's transformer reads long graphs in segments, and its layers are weighed by the graph's embedding; here all ops of
these small graphs attend to each other.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..catalogue import register
from .devices import Devices
from .features import Features
from .graph import OpGraph
from .networks import parts
from .policy import OPTIONS, Policy, choose, learned, linen, masked
from .policy import train as trained
from .task import Placing, PlacingTask

_WIDE, _HEADS = 32, 4


@functools.cache
def network() -> Any:
    """Graph layers, one layer of attention, logits."""
    nn, known = linen(), parts()

    class GraphPolicy(nn.Module):
        @nn.compact
        def __call__(self, x: Features, given: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            h = known.GraphLayers(_WIDE)(x.ops, x.before, x.after)
            seen = (x.mask > 0)[None, None, :]
            h = h + nn.MultiHeadDotProductAttention(_HEADS)(nn.LayerNorm()(h), mask=seen)
            h = h + nn.Dense(_WIDE)(nn.relu(nn.Dense(2 * _WIDE)(nn.LayerNorm()(h))))
            logits = nn.Dense(x.possible.shape[-1])(jnp.concatenate([h, x.ops], axis=-1))
            action, log, entropy = choose(masked(logits, x.possible), noise, given)
            return action, (log * x.mask).sum(), (entropy * x.mask).sum() / x.mask.sum()

        def actions(self, x: Features) -> tuple[int, int]:
            return x.possible.shape

    return GraphPolicy()


def train(
    graphs: Sequence[OpGraph], devices: Devices, *, steps: int = 200, samples: int = 16, seed: int = 0
) -> Policy:  # fmt: skip
    """A policy for graphs like these; its ``place`` places others, too. Errors are those of ``policy.train``."""
    return trained("gdp", network(), graphs, devices, steps=steps, samples=samples, seed=seed, proximal=True)


@register(
    "gdp", family="placing", promises="none", options=OPTIONS,
    paper="Zhou et al.: GDP: Generalized Device Placement for Dataflow Graphs, arXiv:1910.01578, section 3",
)  # fmt: skip
def gdp(task: PlacingTask) -> Placing:
    """The best placement met while learning on this graph."""
    return learned(task, "gdp", network(), proximal=True)
