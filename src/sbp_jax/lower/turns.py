"""On CPUs: collectives inside loops and those beside them take turns.

XLA for CPUs starts what hangs on no loop while the loop runs. All collectives of a manual step have one channel, by
which devices find each other: a device that comes to a collective in the loop meets one that comes to another beside
it, and the process ends, or waits for ever (jaxlib 0.10.2; an LSTM's step, every time). So where a graph has such a
loop a number that is False goes through barriers: with what a collective sends and gives, with what the loop reads and
gives. A barrier of which nobody reads the results is none to XLA, so that number has a say in one of the graph's
results in the end: were it True, that would be zeros.
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

    ``loops``: the loops with collectives, by their ``id``. ``is_waiting``: whether a collective or a loop was run that
    the next loop has to wait for. ``is_asked``: whether something waited for its turn.
    """

    def __init__(self, loops: Sequence[Structured]) -> None:
        self.loops = frozenset(map(id, loops))
        self.left = len(loops)
        self.is_waiting = self.has_begun = self.is_asked = False
        self.number: Any = np.zeros((), np.bool_)

    def pass_on(self, x: Any) -> Any:
        """What is read of ``x`` from now on waits for all that had its turn."""
        x, self.number = lax.optimization_barrier((x, self.number))
        return x

    def sent(self, x: Any) -> Any:
        """What a collective sends: it waits for the loops before it."""
        self.is_asked = self.is_asked or self.has_begun
        return self.pass_on(x) if self.has_begun else x

    def given(self, y: Any) -> Any:
        """What a collective gives: the loops to come wait for it."""
        if not self.left:
            return y
        self.is_waiting = True
        return self.pass_on(y)

    def loop(self, x: Any) -> Any:
        """What a loop reads: it waits for the collectives and the loops before it."""
        self.is_asked = self.is_asked or self.is_waiting
        return self.pass_on(x) if self.is_waiting else x

    def end(self, result: Any) -> Any:
        """What a loop gives, once it has run."""
        self.left -= 1
        self.is_waiting = self.has_begun = True
        return self.pass_on(result)

    def settle(self, results: Sequence[Any]) -> list[Any]:
        """The graph's results, one of which hangs on every turn."""
        found = list(results)
        if self.is_asked:
            plain = [k for k, x in enumerate(found) if not jnp.issubdtype(x.dtype, jax.dtypes.extended)]
            at = min(plain, key=lambda k: jnp.size(found[k]), default=None)
            if at is not None:
                found[at] = jnp.where(self.number, jnp.zeros_like(found[at]), found[at])
        return found


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
