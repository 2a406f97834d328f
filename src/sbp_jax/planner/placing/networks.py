"""Parts of policies' networks. Made when they are first asked for: Flax is imported no earlier."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .features import Features
from .policy import choose, linen, masked


@functools.cache
def parts() -> Any:
    """The modules, in one namespace."""
    nn = linen()

    class GraphLayers(nn.Module):
        """(n, features) to (n, wide): GraphSAGE with means over the ops before and after (Hamilton et al., 2017)."""

        wide: int = 32
        layers: int = 3

        @nn.compact
        def __call__(self, x: jax.Array, before: jax.Array, after: jax.Array) -> jax.Array:
            h = nn.relu(nn.Dense(self.wide)(x))
            for _ in range(self.layers):
                around = jnp.concatenate([h, before @ h, after @ h], axis=-1)
                h = h + nn.relu(nn.Dense(self.wide)(nn.LayerNorm()(around)))
            return h

    class Step(nn.Module):
        """One step of a decoder: attention over what was encoded, a choice, fed to the next step."""

        wide: int
        choices: int

        @nn.compact
        def __call__(self, carry: Any, x: Any, memory: jax.Array, mask: jax.Array) -> Any:
            state, last = carry
            own, noise, given, possible = x
            state, out = nn.OptimizedLSTMCell(self.wide)(state, jnp.concatenate([own, last]))
            weights = jax.nn.softmax(jnp.where(mask > 0, memory @ nn.Dense(self.wide)(out) / self.wide**0.5, -1e9))
            logits = nn.Dense(self.choices)(
                jnp.tanh(nn.Dense(self.wide)(jnp.concatenate([out, weights @ memory, own])))
            )
            action, log, entropy = choose(masked(logits, possible), noise, given)
            return (state, jax.nn.one_hot(action, self.choices)), (action, log, entropy)

    class Seq2Seq(nn.Module):
        """An LSTM reads a sequence, another gives each of its places an action, by content-based attention."""

        wide: int = 32

        @nn.compact
        def __call__(
            self, x: jax.Array, mask: jax.Array, possible: jax.Array, noise: jax.Array, given: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            own = nn.Dense(self.wide)(x)
            (c, h), memory = nn.RNN(nn.OptimizedLSTMCell(self.wide), return_carry=True)(
                own, seq_lengths=jnp.asarray(mask).sum().astype(int)
            )
            choices = possible.shape[-1]
            decoder = nn.scan(
                Step, variable_broadcast="params", split_rngs={"params": False}, in_axes=(0, nn.broadcast, nn.broadcast)
            )(self.wide, choices)
            begin = (c, h), jnp.zeros(choices)
            _, found = decoder(begin, (own, noise, given, possible), memory, mask)
            return found

    class Namespace:
        pass

    found = Namespace()
    found.GraphLayers, found.Seq2Seq = GraphLayers, Seq2Seq  # pyright: ignore[reportAttributeAccessIssue]
    return found


@functools.cache
def sequence_network(wide: int = 32) -> Any:
    """A sequence of ops, in an order they can run in, to a device for each."""
    nn, known = linen(), parts()

    class SequenceNetwork(nn.Module):
        @nn.compact
        def __call__(self, x: Features, given: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            action, log, entropy = known.Seq2Seq(wide)(x.ops, x.mask, x.possible, noise, given)
            return action, (log * x.mask).sum(), (entropy * x.mask).sum() / x.mask.sum()

        def actions(self, x: Features) -> tuple[int, int]:
            return x.possible.shape

    return SequenceNetwork()
