"""What a substitution is: where it fits in a graph, and what to compute there instead."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import PlanError
from ...trace import Atom, Graph, Op, Value

# The ops of a place at which a substitution fits, in the order that it wants them.
Site = tuple[Op, ...]
# A function, and the shapes and dtypes of its arguments.
Instance = tuple[Callable[..., Any], Sequence[Any]]
RandomInstance = Callable[[np.random.Generator], Instance]


class Scope:
    """One graph of a program, without the bodies in it, as substitutions look at it.

    Ops with effects, pins and boundaries are not seen: values that only they make have no maker.
    """

    def __init__(self, graph: Graph) -> None:
        self.ops = [op for op in graph.ops if isinstance(op, Op) and op.primitive is not None and not op.has_effect]
        self._maker = {v.id: op for op in self.ops for v in op.outs}

    def named(self, *names: str) -> Iterator[Op]:
        """The ops of these primitives, in order."""
        return (op for op in self.ops if op.name in names)

    def maker(self, x: Atom, *names: str) -> Op | None:
        """The op that makes a value, if it is one of these primitives (of any, where none is named)."""
        op = self._maker.get(x.id) if isinstance(x, Value) else None
        return op if op is not None and (not names or op.name in names) else None


@dataclass(frozen=True, slots=True)
class Change:
    """What a substitution does at a site.

    ``make`` takes arrays for ``reads`` and gives, in ``jax.lax``, arrays that are equal to the values of ``gives`` up
    to rounding, with their shapes and dtypes.
    """

    reads: tuple[Value, ...]
    gives: tuple[Value, ...]
    make: Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Substitution:
    """One way to compute the same otherwise.

    Attributes:
        name: what notes, saved plans and errors call it.
        find: the sites in a scope that may fit.
        change: what to do at a site; None where it does not fit. Sites of saved plans are checked by it too.
        instance: a random small function in which it fits, with the shapes and dtypes of its arguments: what it is
            proven on.
    """

    name: str
    find: Callable[[Scope], Iterable[Site]]
    change: Callable[[Scope, Site], Change | None]
    instance: RandomInstance

    def sites(self, scope: Scope) -> Iterator[Site]:
        """Where it fits, each place once."""
        seen: set[tuple[int, ...]] = set()
        for site in self.find(scope):
            key = tuple(op.index for op in site)
            if key not in seen and self.change(scope, site) is not None:
                seen.add(key)
                yield site


_KNOWN: dict[str, Substitution] = {}


def register(substitution: Substitution) -> Substitution:
    """Offer a substitution to the search, which proves it before its first use."""
    if substitution.name in _KNOWN:
        raise PlanError(f"there is a substitution {substitution.name!r} already")
    _KNOWN[substitution.name] = substitution
    return substitution


def substitutions() -> dict[str, Substitution]:
    """All by name, in the order in which the search tries them."""
    return dict(_KNOWN)


def lookup(name: str) -> Substitution:
    """The substitution of a name; ``PlanError`` lists those there are."""
    if name not in _KNOWN:
        raise PlanError(f"substitution {name!r} is not known; possible: {', '.join(map(repr, _KNOWN))}")
    return _KNOWN[name]
