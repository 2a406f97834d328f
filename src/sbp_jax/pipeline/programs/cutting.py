"""A jaxpr cut into parts that run one after the other, each with just what the later ones need of it as results.

An equation that is named to a part runs in it, or in the first later one that what it reads allows. One that is not
runs as late as what reads it allows, so that what is sent between devices for the backward pass, say, is held as it
was before. What is made of nothing (a constant, positions in an array) is made anew in every part.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax import core
from jax.extend import core as jex

# Equations that cost nothing to run again where nothing but literals goes in.
_CHEAP = {"broadcast_in_dim", "iota", "convert_element_type", "reshape", "squeeze", "axis_index", "mul", "add", "sub"}


@dataclass(frozen=True, slots=True)
class Part:
    """Equations that run together: the variables they read of others, and those that others read of them."""

    equations: tuple[Any, ...]
    takes: tuple[Any, ...]
    gives: tuple[Any, ...]

    def run(self, *arguments: Any) -> list[Any]:
        """The values of ``gives``, given those of ``takes``."""
        effects = frozenset().union(*(e.effects for e in self.equations))
        names = ("",) * len(self.takes), ("",) * len(self.gives)
        about = jex.DebugInfo("pipeline", "a part of a stage", *names)
        jaxpr = jex.Jaxpr((), self.takes, self.gives, self.equations, effects, about)
        return core.eval_jaxpr(jaxpr, (), *arguments)


def is_literal(x: Any) -> bool:
    """Whether an operand is a constant in the program's text."""
    return isinstance(x, jex.Literal)


def before_barriers(equations: Sequence[Any], v: Any) -> Any:
    """The variable that optimization barriers hand on as ``v``."""
    barriers = {out: (e, k) for e in equations if e.primitive.name == "optimization_barrier"
                for k, out in enumerate(e.outvars)}  # fmt: skip
    while not is_literal(v) and v in barriers:
        e, k = barriers[v]
        v = e.invars[k]
    return v


def phases_of(
    equations: Sequence[Any], named: Callable[[Any], int | None], arrive: Mapping[Any, int], leave: Mapping[Any, int],
) -> list[int]:  # fmt: skip
    """The part that every equation runs in.

    ``named`` says which part an equation is meant for, None for those that follow others; ``arrive`` and ``leave`` by
    variable the part before which it is not there, and by which it must have been made.
    """
    made: dict[Any, int] = dict(arrive)
    earliest: list[int] = []
    is_named: list[bool] = []
    for e in equations:
        wanted = named(e)
        is_named.append(wanted is not None)
        at = max([wanted or 0, *(made.get(v, 0) for v in e.invars if not is_literal(v))])
        earliest.append(at)
        made.update((v, at) for v in e.outvars)
    latest: dict[Any, int] = dict(leave)
    found = list(earliest)
    for k in range(len(equations) - 1, -1, -1):
        e = equations[k]
        if not is_named[k]:
            wanted = [latest[v] for v in e.outvars if v in latest]
            found[k] = max(earliest[k], min(wanted, default=earliest[k]))
        for v in e.invars:
            if not is_literal(v):
                latest[v] = min(found[k], latest.get(v, found[k]))
    return found


def cut(
    equations: Sequence[Any], phases: Sequence[int], count: int, results: Iterable[Any], remakes: bool = True
) -> list[Part]:
    """The parts of a jaxpr, by the phase that each equation runs in.

    ``results`` are variables that are wanted of the whole; ``remakes``: whether parts make for themselves what is made
    of nothing.
    """
    maker = {v: k for k, e in enumerate(equations) for v in e.outvars}
    free: set[int] = set()
    for k, e in enumerate(equations):
        if remakes and e.primitive.name in _CHEAP and not e.effects:
            if all(is_literal(v) or maker.get(v, -1) in free for v in e.invars):
                free.add(k)
    wanted = {v for v in results if not is_literal(v)}
    read: list[dict[Any, None]] = []
    own: list[list[int]] = []
    for phase in range(count):
        chosen = {k for k, p in enumerate(phases) if p == phase and k not in free}
        queue = list(chosen)
        if phase == count - 1:
            queue += [maker[v] for v in wanted if v in maker and maker[v] in free]
            chosen.update(queue)
        while queue:
            for v in equations[queue.pop()].invars:
                k = -1 if is_literal(v) else maker.get(v, -1)
                if k in free and k not in chosen:
                    chosen.add(k)
                    queue.append(k)
        inside = {v for k in chosen for v in equations[k].outvars}
        order = sorted(chosen)
        own.append(order)
        read.append({v: None for k in order for v in equations[k].invars if not is_literal(v) and v not in inside})
    parts = []
    for phase in range(count):
        later = wanted.union(*read[phase + 1 :])
        gives = dict.fromkeys(v for k in own[phase] for v in equations[k].outvars
                              if v in later and (k not in free or (phase == count - 1 and v in wanted)))  # fmt: skip
        parts.append(Part(tuple(equations[k] for k in own[phase]), tuple(read[phase]), tuple(gives)))
    return parts


def split_weights(part: Part, passed_on: Iterable[Any], ends: Callable[[Any], bool]) -> tuple[Part, Part]:
    """A backward part as two: what gives the gradients that are passed on, and the rest, the weights' gradients.

    The first is what ``passed_on`` depends on (dead-code elimination). Where nothing is passed on (the first stage),
    it is what the equations that ``ends`` names, which sum over the examples, depend on: the gradients that go through
    the stage's own layers.
    """
    maker = {v: k for k, e in enumerate(part.equations) for v in e.outvars}
    queue = [maker[v] for v in passed_on if not is_literal(v) and v in maker]
    if not queue:
        stop = {k for k, e in enumerate(part.equations) if ends(e)}
        queue = [
            maker[v]
            for k in stop
            for v in part.equations[k].invars
            if not is_literal(v) and v in maker and maker[v] not in stop
        ]
    first: set[int] = set()
    while queue:
        k = queue.pop()
        if k not in first:
            first.add(k)
            queue += [maker[v] for v in part.equations[k].invars if not is_literal(v) and v in maker]
    phases = [0 if k in first else 1 for k in range(len(part.equations))]
    a, b = cut(part.equations, phases, 2, part.gives)
    return a, b
