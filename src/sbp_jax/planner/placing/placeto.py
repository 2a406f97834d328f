"""Placeto: a placement is improved node by node, by a policy on graph embeddings; one policy for many graphs.

Addanki, Bojja Venkatakrishnan, Gupta, Mao and Alizadeh, "Learning Generalizable Device Placement Algorithms for
Distributed Machine Learning", NeurIPS 2019, arXiv:1906.08879: an episode visits each op once and gives it a
device; the state is the graph with the placement so far, embedded by messages along its edges. The paper's rewards are
the improvements of each step; undiscounted they add up to what the placement gains, which is the reward here.
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
from .policy import OPTIONS, Policy, choose, learned, linen, masked
from .policy import train as trained
from .task import Placing, PlacingTask

_WIDE = 16


@functools.cache
def network() -> Any:
    """A step for each op; it begins with every op where it is fastest."""
    nn = linen()

    class Visit(nn.Module):
        """One op's turn: the graph with the placement so far is embedded anew."""

        @nn.compact
        def __call__(self, place: jax.Array, visit: Any, x: Features, own: jax.Array) -> Any:
            v, noise, given = visit
            n, choices = x.possible.shape
            visited = (jnp.arange(n) < v).astype(jnp.float32)[:, None]
            h = nn.relu(own + nn.Dense(_WIDE)(jnp.concatenate([jax.nn.one_hot(place, choices), visited], axis=-1)))
            for _ in range(2):
                h = nn.relu(nn.Dense(_WIDE)(jnp.concatenate([h, x.before @ h, x.after @ h], axis=-1))) + h
            whole = (h * x.mask[:, None]).sum(axis=0) / x.mask.sum()
            logits = nn.Dense(choices)(nn.relu(nn.Dense(_WIDE)(jnp.concatenate([h[v], whole, x.ops[v]]))))
            action, log, entropy = choose(masked(logits, x.possible[v]), noise, given)
            return place.at[v].set(action), (log, entropy)

    class Episode(nn.Module):
        @nn.compact
        def __call__(self, x: Features, given: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            own = nn.Dense(_WIDE)(x.ops)
            visits = jnp.arange(len(given)), noise, given
            step = nn.scan(Visit, variable_broadcast="params", split_rngs={"params": False},
                           in_axes=(0, nn.broadcast, nn.broadcast))()  # fmt: skip
            place, (log, entropy) = step(jnp.asarray(x.fastest), visits, x, own)
            return place, (log * x.mask).sum(), (entropy * x.mask).sum() / x.mask.sum()

        def actions(self, x: Features) -> tuple[int, int]:
            return x.possible.shape

    return Episode()


def train(
    graphs: Sequence[OpGraph], devices: Devices, *, steps: int = 200, samples: int = 16, seed: int = 0
) -> Policy:  # fmt: skip
    """A policy for graphs like these; its ``place`` places others, too. Errors are those of ``policy.train``."""
    return trained("placeto", network(), graphs, devices, steps=steps, samples=samples, seed=seed)


@register(
    "placeto", family="placing", promises="none", options=OPTIONS,
    paper="Addanki et al.: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning, "
    "NeurIPS 2019, arXiv:1906.08879",
)  # fmt: skip
def placeto(task: PlacingTask) -> Placing:
    """The best placement met while learning on this graph."""
    return learned(task, "placeto", network())
