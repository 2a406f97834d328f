"""Values of unlike groups of devices at common positions, so that one program holds them all.

In one program every device has the same operands. So what groups of devices have of one type (shape and dtype of a
device's piece) shares a position: the first weight of a type that one group has and the first of that type that another
has, and so on. Stages alike fill all positions; where one has nothing at a position it has zeros.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True, slots=True)
class Type:
    """What a device holds of a value.

    ``is_spent``: its memory may be used again (a donated argument, a result that all ranks are given another copy of).
    """

    shape: tuple[int, ...]
    dtype: Any
    is_spent: bool = False

    def zeros(self, *leading: int) -> Any:
        """Zeros of this type, with dims before it; inside a traced function."""
        return jnp.zeros((*leading, *self.shape), self.dtype)


@dataclass(slots=True)
class Layout:
    """Common positions: the type of each, and by owner the position of every value that it has."""

    types: list[Type] = field(default_factory=list)
    at: dict[Any, dict[Any, int]] = field(default_factory=dict)

    def fill(self, owner: Any, values: Mapping[Any, Any]) -> list[Any]:
        """What an owner has at every position; inside a traced function."""
        known = {p: values[key] for key, p in self.at.get(owner, {}).items()}
        return [known[p] if p in known else t.zeros() for p, t in enumerate(self.types)]


def align(owners: Mapping[Any, Iterable[tuple[Any, Type]]]) -> Layout:
    """Positions for the values of all owners: the n-th of a type shares one with the others' n-th."""
    found = Layout()
    known: dict[tuple[Type, int], int] = {}
    for owner, values in owners.items():
        count: dict[Type, int] = {}
        own = found.at[owner] = {}
        for key, kind in dict(values).items():
            n = count.get(kind, 0)
            count[kind] = n + 1
            if (kind, n) not in known:
                known[kind, n] = len(found.types)
                found.types.append(kind)
            own[key] = known[kind, n]
    return found


def permuted(x: Any, axis: str, pairs: Sequence[tuple[int, int]]) -> Any:
    """``lax.ppermute``, of random keys as well."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        words = lax.ppermute(jax.random.key_data(x), axis, pairs)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
    return lax.ppermute(x, axis, pairs)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that one rank gives another: what it is there, and what here."""

    source: int
    given: Any
    target: int
    taken: Any
    type: Type


class Exchange:
    """What ranks give each other at one time: one permutation of the ranks for each distance that something goes."""

    def __init__(self, transfers: Sequence[Transfer], ranks: int) -> None:
        self.ranks = ranks
        self.sends = align({r: [(t.given, t.type) for t in transfers if t.source == r] for r in range(ranks)})
        self.routes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._found: dict[tuple[int, Any], tuple[int, int]] = {}
        for t in transfers:
            distance, p = (t.target - t.source) % ranks, self.sends.at[t.source][t.given]
            pairs = self.routes.setdefault((distance, p), [])
            if (t.source, t.target) not in pairs:
                pairs.append((t.source, t.target))
            self._found[t.target, t.taken] = distance, p

    def run(self, values: Sequence[Any], axis: str) -> dict[tuple[int, int], Any]:
        """All that arrives, given what this rank has at every position."""
        return {
            (distance, p): values[p] if distance == 0 else permuted(values[p], axis, sorted(pairs))
            for (distance, p), pairs in self.routes.items()
        }

    def takes(self, rank: int, key: Any) -> bool:
        """Whether a rank is given this."""
        return (rank, key) in self._found

    def find(self, arrived: Mapping[tuple[int, int], Any], rank: int, key: Any) -> Any:
        """What a rank was given."""
        return arrived[self._found[rank, key]]
