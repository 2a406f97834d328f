"""From a one-axis factor map to the n-d signatures an op can run with.

On each mesh axis an op chooses a factor, a linearity, or nothing; the n-d strategies are the product over the
axes. A factor that several axes choose is cut again by each, outermost first, and a dim made of several factors
can be cut along a later one only when the earlier ones are used up: then the piece is a plain ``S(dim)``.

A signature is a tuple of ints here, a *code*: ``d >= 0`` for ``S(d)``, negative for the rest.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ..signature import Broadcast, Component, Partial, ReduceOp, Signature, Split, broadcast
from .base import Factors

B = -1
PARTIAL: dict[ReduceOp, int] = {"sum": -2, "max": -3, "min": -4}
_KIND: dict[int, ReduceOp] = {code: op for op, code in PARTIAL.items()}
Code = tuple[int, ...]


def _component(code: int) -> Component:
    return Split(code) if code >= 0 else broadcast if code == B else Partial(_KIND[code])


@functools.lru_cache(maxsize=65536)
def signature_of(code: Code) -> Signature:
    """The signature a code stands for."""
    return Signature(tuple(map(_component, code)))


def code_of(signature: Iterable[Component]) -> Code:
    """The code of a signature with resolved dims."""
    return tuple(c.dim if isinstance(c, Split) else B if isinstance(c, Broadcast) else PARTIAL[c.op] for c in signature)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an op: codes of operands and results; ``share`` of the work that each device does."""

    ins: tuple[Code, ...]
    outs: tuple[Code, ...]
    share: float


def strategies(
    factors: Factors, axis_sizes: tuple[int, ...], linear: tuple[bool, ...], uneven: bool = False
) -> tuple[Strategy, ...]:
    """All strategies of an op on a mesh; ``linear`` says which of its linearities can matter.

    ``uneven``: whether a factor that makes up whole dims may be cut into pieces of different lengths.
    """
    f, uneven, sizes = factors, uneven and not factors.even, factors.sizes
    if not uneven:  # then of sizes only what divides them matters: shapes never seen before are known all the same
        devices = math.prod(axis_sizes)
        sizes = tuple([_divisors(n, devices) for n in sizes])
    parts = f.ins, f.outs, sizes, f.blocked, f.reduced, f.linear, f.addends
    return _strategies(parts, f.even, f.once, axis_sizes, linear, uneven)


def _divisors(size: int, devices: int) -> int:
    """A size that is divided by just those parts of ``devices`` that divide ``size``, and is used up when it is."""
    common = math.gcd(size, devices)
    return size if common == size or not size else common * (devices + 1)


@functools.lru_cache(maxsize=4096)
def _strategies(
    parts: tuple[Any, ...], even: bool, once: bool, axis_sizes: tuple[int, ...], linear: tuple[bool, ...], uneven: bool
) -> tuple[Strategy, ...]:
    """The same, by the parts of a factor map: a map made of them would have to be made for every look."""
    factors = Factors(*parts, even=even, once=once)
    reduced = dict(factors.reduced)
    free = [f for f in range(len(factors.sizes)) if f not in factors.blocked]
    passes = [item for item, useful in zip(factors.linear, linear, strict=True) if useful]
    ragged = _alone(factors) if uneven else frozenset()
    nothing = [] if factors.once else [None]
    per_axis: list[list[object]] = [
        [None] if n == 1 else [*nothing, *(f for f in free if _can_cut(factors.sizes[f], n, f in ragged)), *passes]
        for n in axis_sizes
    ]
    found: dict[tuple[tuple[Code, ...], tuple[Code, ...]], Strategy] = {}
    for choice in itertools.product(*per_axis):
        strategy = _widen(factors, reduced, axis_sizes, choice, ragged)
        if strategy is not None:
            key = (strategy.ins, strategy.outs)
            if key not in found or strategy.share < found[key].share:
                found[key] = strategy
    return tuple(found.values())


def _alone(factors: Factors) -> frozenset[int]:
    """The factors that share no dim with another one."""
    shared = {f for dims in (*factors.ins, *factors.outs) for dim in dims if len(dim) > 1 for f in dim}
    return frozenset(range(len(factors.sizes))) - shared


def _can_cut(length: int, parts: int, is_ragged: bool) -> bool:
    return length % parts == 0 or (is_ragged and length >= parts)


def _widen(
    factors: Factors, reduced: dict[int, ReduceOp], axis_sizes: tuple[int, ...], choice: Sequence[object],
    ragged: Set[int],
) -> Strategy | None:  # fmt: skip
    """The strategy of one choice for each axis, or None where a cut would not be a plain split."""
    left = list(factors.sizes)  # of each factor the longest piece
    shortest = list(factors.sizes)
    ins: list[list[int]] = [[] for _ in factors.ins]
    outs: list[list[int]] = [[] for _ in factors.outs]
    share = 1.0
    for axis, pick in enumerate(choice):
        if pick is None:
            for codes in (*ins, *outs):
                codes.append(B)
        elif isinstance(pick, int):
            n = axis_sizes[axis]
            if not _can_cut(shortest[pick], n, pick in ragged) or (left[pick] % n and pick not in ragged):
                return None
            for dims, codes in zip((*factors.ins, *factors.outs), (*ins, *outs), strict=True):
                at = _place(dims, pick, left)
                if at is None:
                    return None
                codes.append(at)
            if pick in reduced:
                code = PARTIAL[reduced[pick]]
                for dims, codes in zip(factors.outs, outs, strict=True):
                    if codes[-1] == B and not any(pick in dim for dim in dims):
                        codes[-1] = code
                for operand in factors.addends:
                    ins[operand][-1] = code
            whole, shortest[pick] = left[pick], shortest[pick] // n
            left[pick] = -(-whole // n)
            share *= left[pick] / whole if whole else 1.0
        else:
            for operand, codes in enumerate(ins):
                codes.append(PARTIAL[pick.takes] if operand in pick.operands else B)  # pyright: ignore
            for codes in outs:
                codes.append(PARTIAL[pick.gives])  # pyright: ignore
    return Strategy(tuple(map(tuple, ins)), tuple(map(tuple, outs)), share)


def _place(dims: Sequence[Sequence[int]], factor: int, left: Sequence[int]) -> int | None:
    """The dim that a cut of ``factor`` splits, B where the tensor lacks it, None where slower factors remain."""
    for d, made_of in enumerate(dims):
        if factor in made_of:
            before = made_of[: made_of.index(factor)]
            return d if all(left[f] == 1 for f in before) else None
    return B
