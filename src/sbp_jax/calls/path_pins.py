"""Pins by path: ``{"head/kernel": sbp.split(1), "blocks/*/mlp/kernel": ("B", "S(0)")}``: which values a key means.

A key is a path of variable names and indices, parts divided by "/". ``*`` stands for any one part or a piece of one,
``**`` for any number of parts, none included, ``0..11`` and ``0,2..5`` for numbers. Paths as plans print them are keys,
too ("0/params/blocks/0..11/mlp/kernel"). Where several keys match a variable the most specific one counts: the
one with the fewest ``**``, of those the one with the most characters besides ``*``; two that are equal in that and
ask for different signatures are an error. A value is a signature with one component for each mesh axis (one lone
component on a mesh of one axis), a ``PartitionSpec``, or None: left to the planner, whatever else pins it.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from jax.sharding import NamedSharding, PartitionSpec

from ..errors import PlanError
from ..paths import matcher, spellings, without_holder, without_root
from ..shardings import SbpLike
from ..signature import Signature

Pin: TypeAlias = SbpLike | None
PinDict: TypeAlias = Mapping[str, Pin]

_MOST_NAMED = 5
# What lies below this part of a path is an optimizer's.
_OPTIMIZER = "opt_state"


class Named(Protocol):
    """A value with a path: a model's variable, an argument of a function."""

    @property
    def path(self) -> str:
        """Its parts divided by "/"."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole shape."""
        ...

    @property
    def is_moment(self) -> bool:
        """Whether an optimizer keeps it for a parameter."""
        ...

    def spellings(self, is_rooted: bool) -> tuple[str, ...]:
        """The names that it goes by, the shortest last. ``is_rooted``: its path begins with an argument's name."""
        ...


@dataclass(frozen=True, slots=True)
class Argument:
    """A traced argument of a plain function: its path as plans print it, and the same with the argument's name."""

    path: str
    named: str
    shape: tuple[int, ...]

    @property
    def is_moment(self) -> bool:
        """Whether it lies in what is called an optimizer's state."""
        return _OPTIMIZER in self.named.split("/")[:-1]

    def spellings(self, is_rooted: bool) -> tuple[str, ...]:
        """The path, by number and by name, and what of it may be left out."""
        return (self.named, *spellings(self.path, is_rooted))


@dataclass(frozen=True, slots=True)
class Asked:
    """One pin dictionary: ``prefix`` is the path of the module whose variables its keys name ("" for all), ``words``
    say in errors whose dictionary it is."""

    pins: PinDict
    prefix: str = ""
    words: str = "sbp"


def followers(found: Sequence[Named], is_rooted: bool) -> dict[int, int]:
    """By entry of an optimizer the parameter it is kept for: the longest path that its own ends with, same shape.

    Where several models have a variable of that path and shape, that may be any of theirs: none is taken.
    """
    parameters: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for i, entry in enumerate(found):
        if not entry.is_moment:
            parameters.setdefault((entry.spellings(is_rooted)[-1], entry.shape), []).append(i)
    result = {}
    for i, entry in enumerate(found):
        if entry.is_moment:
            parts = entry.path.split("/")
            ends = ("/".join(parts[k:]) for k in range(1, len(parts)))
            same = next((parameters[end, entry.shape] for end in ends if (end, entry.shape) in parameters), [])
            if len(same) == 1:
                result[i] = same[0]
    return result


def matches(found: Sequence[Named], asked: Asked, is_rooted: bool) -> dict[int, tuple[str, Pin]]:
    """By entry the key that counts and its pin. Keys that match nothing raise, all of them at once."""
    names = _spell(found, asked.prefix, is_rooted)
    best: dict[int, tuple[str, Pin]] = {}
    unmatched = []
    for key, pin in asked.pins.items():
        hits = _hits(key, names, asked.words)
        if not hits:
            unmatched.append(key)
        for i in hits:
            rival = best.get(i)
            if rival is not None and specificity(rival[0]) == specificity(key) and _text(rival[1]) != _text(pin):
                raise PlanError(
                    f"{asked.words}: keys {rival[0]!r} and {key!r} both match {found[i].path} and neither is "
                    f"more specific: {_text(rival[1])} or {_text(pin)}? Name {found[i].path} itself, or narrow one key"
                )
            if rival is None or specificity(key) > specificity(rival[0]):
                best[i] = key, pin
    if unmatched:
        raise PlanError(_nothing_matched(unmatched, list(names.values()), asked.words))
    return best


def _spell(found: Sequence[Named], prefix: str, is_rooted: bool) -> dict[int, tuple[str, ...]]:
    if not prefix:
        return {i: entry.spellings(is_rooted) for i, entry in enumerate(found)}
    start = f"{prefix}/"
    return {i: (e.path.removeprefix(start),) for i, e in enumerate(found) if e.path.startswith(start)}


def specificity(key: str) -> tuple[int, int]:
    """How specific a key is, for comparing: fewer ``**``, then more characters besides ``*``."""
    return -key.split("/").count("**"), len(key.replace("*", ""))


def _hits(key: Any, known: Mapping[int, Sequence[str]], words: str) -> list[int]:
    """The entries that a key means: as it stands, else as a path that a plan prints, which begins with the number of
    the argument and may end with what holds the array ("0/model/head/kernel/value")."""
    if not isinstance(key, str) or not key:
        raise PlanError(f"{words}: keys are variable paths such as 'head/kernel' or 'blocks/*/kernel', got {key!r}")
    short = without_root(key)
    for way in dict.fromkeys((key, short, without_holder(key), without_holder(short))):
        is_meant = matcher(way)
        hits = [i for i, names in known.items() if any(map(is_meant, names))]
        if hits:
            return hits
    return []


def _nothing_matched(keys: Sequence[str], known: Sequence[tuple[str, ...]], words: str) -> str:
    shortest = [names[-1] for names in known]
    spelled = {name for names in known for name in names}
    told = []
    for key in keys:
        # In the key's own way of writing: with the argument's name, or with what may be left out.
        near = difflib.get_close_matches(key, sorted(spelled), _MOST_NAMED, 0.5)
        told.append(f"{key!r}" + (f" (did you mean {', '.join(near)}?)" if near else ""))
    some = ", ".join(shortest[:_MOST_NAMED]) + (f" and {len(shortest) - _MOST_NAMED} more" * (len(shortest) > 5))
    return (
        f"{words}: no variable matches {'; '.join(told)}. There are {some or 'no variables'}. In a key * stands for "
        "one part of the path, ** for any number of parts, 0..11 for numbers"
    )


def _text(pin: Pin) -> str:
    if pin is None or isinstance(pin, PartitionSpec | NamedSharding):
        return str(pin)
    return f"({Signature.of(pin)})"
