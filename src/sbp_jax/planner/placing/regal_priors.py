"""REGAL's priors: of which distributions a genetic search draws new keys, and how often a key is the elite parent's."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .features import Features
from .networks import parts
from .policy import choose, linen
from .simulate import Simulator

# What a network chooses from, for each key (a, b of a Beta distribution: even, then lower and higher, wide and narrow),
# and for each op (how often its keys are the elite parent's). The first of both are the search's alone.
_BETA = ((1.0, 1.0), (2.0, 4.0), (4.0, 2.0), (2.0, 10.0), (10.0, 2.0))
_BIAS = (0.7, 0.5, 0.6, 0.8, 0.9)


@dataclass(frozen=True, eq=False)
class Priors:
    """(keys,): Beta distributions of new keys, and how often a key is the elite parent's."""

    a: np.ndarray
    b: np.ndarray
    bias: np.ndarray

    def drawn(self, random: np.random.Generator, many: int) -> np.ndarray:
        """(many, keys): new chromosomes."""
        return random.beta(self.a, self.b, size=(many, len(self.a)))


def uniform(s: Simulator) -> Priors:
    """What the search alone begins with."""
    return priors_of(s, np.zeros((len(s.graph) * (len(s.devices) + 2)), int))


def priors_of(s: Simulator, actions: np.ndarray) -> Priors:
    """What actions stand for: (ops, devices + 2) flat; by op a choice for each device's key, its priority, its bias."""
    n, each = len(s.graph), len(s.devices) + 2
    own = np.asarray(actions)[: n * each].reshape(n, each)
    a, b = (np.array(_BETA)[:, k][own[:, :-1]] for k in (0, 1))
    bias = np.repeat(np.array(_BIAS)[own[:, -1]][:, None], each - 1, axis=1)
    # As chromosomes are laid out: first the keys of ops and devices, then the priorities.
    return Priors(*(np.concatenate([x[:, :-1].ravel(), x[:, -1]]) for x in (a, b, bias)))


@functools.cache
def network(devices: int) -> Any:
    """Graph layers; by op choices for its keys and its bias."""
    nn, known = linen(), parts()
    each = devices + 2

    class Proposal(nn.Module):
        @nn.compact
        def __call__(self, x: Features, given: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            h = known.GraphLayers(32)(x.ops, x.before, x.after)
            logits = nn.Dense(each * len(_BETA))(jnp.concatenate([h, x.ops], axis=-1)).reshape(-1, len(_BETA))
            action, log, entropy = choose(logits, noise, given)
            mask = jnp.repeat(jnp.asarray(x.mask), each)
            return action, (log * mask).sum(), (entropy * mask).sum() / mask.sum()

        def actions(self, x: Features) -> tuple[int, int]:
            return len(x.mask) * each, len(_BETA)

    return Proposal()
