"""TASO: programs that equal a program, best first, each priced as a whole.

Jia et al., "TASO: Optimizing Deep Learning Computation with Automatic Generation of Graph Substitutions", SOSP 2019,
section 5, after Jia et al., "Optimizing DNN Computation with Relaxed Graph Substitutions" (MetaFlow), MLSys 2019,
section 4: of the programs found the cheapest is taken from a queue, every substitution is applied to it, and what costs
less than alpha times the cheapest known is queued, so that a step for the worse may lead to a better one.

Where layers repeat a substitution is applied to all places that look alike at once, and to all places at once: layers
that were alike are alike afterwards, and the planner decides them together.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...trace import Op, Program, Value, fingerprint
from ..catalogue import Option, register
from .apply import Move, NoMatch, apply, places
from .proof import admitted
from .substitution import Scope, Substitution, substitutions

# Seconds of a program as it would be planned, infinite where it cannot be; given the origin of its nodes.
Price = Callable[[Program, Sequence[int]], float]


@dataclass(slots=True)
class Rewriting:
    """The cheapest program that was found.

    Attributes:
        moves: how it is made of the one given; none where that is the cheapest.
        origin: for each of its nodes the one of the given program that it is, -1 for new ones.
        seconds, before: its price, and that of the one given.
        priced: how many programs were priced.
    """

    program: Program
    moves: tuple[Move, ...]
    origin: Sequence[int]
    seconds: float
    before: float
    priced: int


@dataclass(order=True, slots=True)
class _Found:
    seconds: float
    number: int
    program: Program = field(compare=False)
    moves: tuple[Move, ...] = field(compare=False)
    origin: Sequence[int] = field(compare=False)


@register(
    "taso", family="rewriting", decides="which products, convolutions, concatenations and transposes become others",
    paper="Jia et al.: TASO: Optimizing Deep Learning Computation with Automatic Generation of Graph Substitutions, "
    "SOSP 2019, section 5; the substitutions are those of the library, tested on random programs",
    options=(
        Option("steps", 60, "how many programs are priced", least=1),
        Option("alpha", 1.05, "programs that cost more than this times the best are given up", least=1.0),
    ),
)  # fmt: skip
def taso(
    program: Program, price: Price, options: Mapping[str, Any], is_over: Callable[[], bool] = lambda: False
) -> Rewriting:  # fmt: skip
    """The cheapest program that ``steps`` prices find, or those until ``is_over``. Deterministic but for that."""
    steps, alpha = options["steps"], options["alpha"]
    whole = range(len(program.nodes))
    before = price(program, whole)
    best = first = _Found(before, 0, program, (), whole)
    queue, seen, priced = [first], {fingerprint(program)}, 1
    while queue and priced < steps and not is_over():
        at = heapq.heappop(queue)
        if at.seconds > alpha * best.seconds:
            break
        for substitution, sites in moves(at.program):
            if priced >= steps or is_over():
                break
            made = _applied(at.program, substitution, sites)
            if made is None or (look := fingerprint(made[0])) in seen:
                continue
            seen.add(look)
            new, of, taken = made
            origin = [at.origin[o] if o >= 0 else -1 for o in of]
            found = _Found(price(new, origin), priced, new, (*at.moves, Move(substitution.name, taken)), origin)
            priced += 1
            if found.seconds < alpha * best.seconds:
                heapq.heappush(queue, found)
            if found.seconds < best.seconds:
                best = found
    return Rewriting(best.program, best.moves, best.origin, best.seconds, before, priced)


def moves(program: Program) -> Iterator[tuple[Substitution, list[tuple[int, ...]]]]:
    """What can be applied: a substitution with all its places, then with those of each look."""
    for name, known in substitutions().items():
        found = list(places(program, known))
        if not found:
            continue
        substitution = admitted(name)
        looks: dict[Any, list[tuple[int, ...]]] = {}
        for scope, site in found:
            looks.setdefault(_look(scope, site), []).append(tuple(op.index for op in site))
        everything = _apart(tuple(op.index for op in site) for _, site in found)
        if len(looks) > 1:
            yield substitution, everything
        for sites in looks.values():
            yield substitution, _apart(sites)


def _look(scope: Scope, site: Sequence[Op]) -> Any:
    """What places that are alike have in common."""

    def of(op: Op) -> Any:
        ins = [(x.shape, str(x.dtype)) if isinstance(x, Value) else str(x) for x in op.ins]
        return op.name, str(sorted(op.params.items(), key=lambda x: x[0])), tuple(ins)

    return tuple(map(of, site))


def _apart(sites: Iterator[tuple[int, ...]] | Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Sites that have no node in common, the first ones of those that have."""
    taken: set[int] = set()
    found = []
    for site in sites:
        if taken.isdisjoint(site):
            taken.update(site)
            found.append(site)
    return found


def _applied(
    program: Program, substitution: Substitution, sites: list[tuple[int, ...]]
) -> tuple[Program, list[int], tuple[tuple[int, ...], ...]] | None:
    """The program with a substitution at as many of the sites as can be; None where it is at none."""
    try:
        return *apply(program, substitution, sites), tuple(sites)
    except NoMatch:
        kept: list[tuple[int, ...]] = []
        made = None
    if len(sites) == 1:
        return None
    for site in sites:
        try:
            made = apply(program, substitution, [*kept, site])
        except NoMatch:
            continue
        kept.append(site)
    return None if made is None else (*made, tuple(kept))
