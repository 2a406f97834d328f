"""HDP: a grouper puts ops into groups, a placer gives groups their devices; both learn from one reward.

Mirhoseini, Goldie, Pham, Steiner, Le and Dean, "A Hierarchical Model for Device Placement", ICLR 2018, section 2: the
grouper is a feed-forward network with a softmax over groups, the placer a sequence-to-sequence network over the groups'
mean features; REINFORCE trains both.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..catalogue import Option, register
from .features import Features
from .networks import parts
from .policy import OPTIONS, Judged, choose, judged_devices, learned, linen
from .simulate import Simulator
from .task import Placing, PlacingTask


@functools.cache
def network(groups: int) -> Any:
    """Actions: a group for each op, then a device for each group."""
    nn, known = linen(), parts()

    class Hierarchy(nn.Module):
        @nn.compact
        def __call__(self, x: Features, given: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            n, choices = x.possible.shape
            around = jnp.concatenate([x.ops, x.before @ x.ops, x.after @ x.ops], axis=-1)
            logits = nn.Dense(groups)(nn.relu(nn.Dense(64)(around)))
            group, log, entropy = choose(logits, noise[:n, :groups], given[:n])
            members = jax.nn.one_hot(group, groups) * x.mask[:, None]
            count = members.sum(axis=0)
            means = members.T @ x.ops / jnp.maximum(count, 1.0)[:, None]
            near = members.T @ ((x.before + x.after) @ members) / jnp.maximum(count, 1.0)[:, None]
            own = jnp.concatenate([means, near, (count / x.mask.sum())[:, None]], axis=-1)
            anywhere = jnp.ones((groups, choices), bool)
            place, logs, spread = known.Seq2Seq()(own, jnp.ones(groups), anywhere, noise[n:, :choices], given[n:])
            used = (count > 0).astype(jnp.float32)
            total = (log * x.mask).sum() + (logs * used).sum()
            mean = (entropy * x.mask).sum() / x.mask.sum() + (spread * used).sum() / used.sum()
            return jnp.concatenate([group, place]), total, mean

        def actions(self, x: Features) -> tuple[int, int]:
            n, choices = x.possible.shape
            return n + groups, max(groups, choices)

    return Hierarchy()


@register(
    "hdp", family="placing", promises="none", decides="groups of ops, and their devices",
    paper="Mirhoseini et al.: A Hierarchical Model for Device Placement, ICLR 2018, section 2",
    options=(Option("groups", 12, "groups of ops at most", least=1), *OPTIONS),
)  # fmt: skip
def hdp(task: PlacingTask) -> Placing:
    """The best placement met while learning."""
    groups = task.options["groups"]

    def judge(s: Simulator, actions: np.ndarray) -> Judged:
        group, place = actions[:-groups], actions[-groups:]
        return judged_devices(s, place[group])

    return learned(task, "hdp", network(groups), judge)
