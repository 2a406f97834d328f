"""On CPUs: collectives inside loops and those beside them take turns.

XLA for CPUs starts what hangs on no loop while the loop runs. All collectives of a manual step have one channel, by
which devices find each other: a device that comes to a collective in the loop meets one that comes to another beside
it, and the process ends, or waits for ever (jaxlib 0.10.2; an LSTM's step, every time). So where a graph has such a
loop a number that is False, which XLA does not know, hangs on what collectives and loops have given, and what the next
of them reads hangs on the number: were it True, that would be NaN. Barriers alone order what is compiled, not what
runs: they are no kernels, and kernels start as soon as the buffers that they read are there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..plan import Boxing
from ..trace import Graph, Structured


class Turns:
    """Whose turn it is among a graph's loops and the collectives beside them.

    ``loops``: the loops with collectives, by their ``id``.
    """

    def __init__(self, loops: Sequence[Structured]) -> None:
        self.loops = frozenset(map(id, loops))
        self.left = len(loops)
        self.has_begun = False
        self.number: Any = None

    def sent(self, x: Any) -> Any:
        """What a collective sends: it waits for the loops before it."""
        return self.held_up(x) if self.has_begun else x

    def given(self, y: Any) -> Any:
        """What a collective gives: the loops to come wait for it."""
        if self.left:
            self._wait_for([y])
        return y

    def held_up(self, x: Any) -> Any:
        """What a loop reads: it waits for the collectives and the loops before it."""
        if self.number is None or not x.size:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            data = self.held_up(jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        if jnp.issubdtype(x.dtype, jnp.inexact):  # not zeros, which XLA may know that ``x`` is
            return jnp.where(self.number, jnp.full_like(x, jnp.nan), x)
        return x ^ self.number.astype(x.dtype)

    def end(self, results: Sequence[Any]) -> None:
        """A loop has run, and gives these: what it does not change is there before, so all of them count."""
        self.left -= 1
        self.has_begun = True
        self._wait_for(results)

    def _wait_for(self, given: Sequence[Any]) -> None:
        """The number hangs on an element of each of these."""
        for y in given:
            if jnp.issubdtype(y.dtype, jax.dtypes.extended):
                y = jax.random.key_data(y)
            if y.size:
                element = lax.slice(y, (0,) * y.ndim, (1,) * y.ndim).reshape(())
                number = lax.optimization_barrier(np.zeros((), np.bool_)) if self.number is None else self.number
                self.number = number & (element != 0)


def loops_that_talk(graph: Graph, boxed: Mapping[int, Sequence[Boxing]]) -> list[Structured]:
    """The loops and branches of a graph that send something. ``boxed``: by value its boxings."""
    return [op for op in graph.ops if isinstance(op, Structured) and _talks(op, boxed)]


def _talks(op: Structured, boxed: Mapping[int, Sequence[Boxing]]) -> bool:
    made = [v.id for link in op.links for v in link.outs] if op.bodies else []
    for body in op.bodies:
        for inner in body.ops:
            if isinstance(inner, Structured) and _talks(inner, boxed):
                return True
            made += [v.id for v in inner.results]
    return any(m.is_collective for i in made for b in boxed.get(i, ()) for m in b.moves)
