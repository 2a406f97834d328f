"""Pins by variable path: ``{"head/kernel": sbp.split(1), "blocks/*/mlp/kernel": ("B", "S(0)")}``.

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
from typing import Any, TypeAlias

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import PlanError, SignatureError
from ..paths import matcher, without_holder, without_root
from ..placement import Placement
from ..planner import pin_signature
from ..shardings import PlacementLike, SbpLike, as_placement
from ..signature import Signature
from .variables import Entry, entries, pure

Pin: TypeAlias = SbpLike | None
PinDict: TypeAlias = Mapping[str, Pin]

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """One pin dictionary: ``prefix`` is the path of the module whose variables its keys name ("" for all), ``words``
    say in errors whose dictionary it is."""

    pins: PinDict
    prefix: str = ""
    words: str = "sbp"


def pins(tree: Any, sbp: PinDict | None = None, placement: PlacementLike | None = None) -> Any:
    """The signatures of a state's leaves, for ``in_sbp`` or ``out_sbp`` of ``sbp.auto_parallel``.

    Args:
        tree: what is passed to the function: linen variables, a ``TrainState``, an nnx state or object, with arrays
            or shapes. Metadata is read as pins: ``nn.with_partitioning``, ``nn.with_logical_partitioning`` (with its
            rules, or those of ``nn.logical_axis_rules`` around this call), ``nnx.with_partitioning``.
        sbp: signatures by path, with ``*`` and ``**``; ``params/`` may be left out. A key counts before metadata.
            What an optimizer keeps for a pinned parameter (under ``opt_state``, of its path and shape) follows it.
        placement: checks the signatures against the shapes now. None: they are checked when the plan is made.

    Returns:
        A tree like ``tree`` with a signature (without ``placement``: the pin as it was given) for every pinned
        variable, None elsewhere.

    Raises:
        PlanError: a key that no variable matches; two keys that contradict each other.
        SignatureError: a signature that does not fit its variable or the placement.
    """
    if sbp is not None and not isinstance(sbp, Mapping):
        raise PlanError(f"sbp is a dictionary of signatures by variable path, got {type(sbp).__name__}")
    found, structure = entries(pure(tree))
    where = None if placement is None else as_placement(placement)
    resolved = resolve(found, [Asked(sbp)] if sbp else [], where, is_rooted=False)
    return jax.tree.unflatten(structure, resolved)


def resolve(
    found: Sequence[Entry],
    asked: Sequence[Asked],
    placement: Placement | None,
    *,
    is_rooted: bool,
    with_moments: bool = True,
) -> list[Any]:
    """By entry its pin or None. Later dictionaries of ``asked`` count before earlier ones, all before metadata.

    ``is_rooted``: paths begin with an argument's name, which keys may leave out. ``with_moments``: optimizer state
    follows its parameter.
    """
    result: list[Any] = [None] * len(found)
    for i, entry in enumerate(found):
        if entry.annotation is not None and (with_moments or not entry.is_moment):
            result[i] = _check(entry.annotation, entry, placement, f"the annotation of {entry.path}")
    named: set[int] = set()
    for one in asked:
        matches = _match(found, one, is_rooted)
        for i, (key, pin) in matches.items():
            words = f"{one.words}[{key!r}] for {found[i].path}"
            result[i] = None if pin is None else _check(pin, found[i], placement, words)
        named |= matches.keys()
    if with_moments:
        for i, parameter in _moments(found, is_rooted).items():
            if parameter in named and i not in named:
                result[i] = result[parameter]
    return result


def _check(pin: Any, entry: Entry, placement: Placement | None, words: str) -> Any:
    if placement is None:
        return pin
    words = f"{words} of shape {entry.shape} on {placement}"
    signature = pin_signature(entry.shape, pin, placement, words)
    if signature.has_partial:
        raise SignatureError(f"{words}: ({signature}) is partial; a variable is whole or split: S(dim) or B")
    return signature


def _moments(found: Sequence[Entry], is_rooted: bool) -> dict[int, int]:
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


def _match(found: Sequence[Entry], asked: Asked, is_rooted: bool) -> dict[int, tuple[str, Pin]]:
    """By entry the key that counts and its pin. Keys that match nothing raise, all of them at once."""
    spellings = _spell(found, asked.prefix, is_rooted)
    best: dict[int, tuple[str, Pin]] = {}
    unmatched = []
    for key, pin in asked.pins.items():
        hits = _hits(key, spellings, asked.words)
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
        raise PlanError(_nothing_matched(unmatched, [names for names in spellings.values()], asked.words))
    return best


def _spell(found: Sequence[Entry], prefix: str, is_rooted: bool) -> dict[int, tuple[str, ...]]:
    if not prefix:
        return {i: entry.spellings(is_rooted) for i, entry in enumerate(found)}
    start = f"{prefix}/"
    return {i: (e.path.removeprefix(start),) for i, e in enumerate(found) if e.path.startswith(start)}


def specificity(key: str) -> tuple[int, int]:
    """How specific a key is, for comparing: fewer ``**``, then more characters besides ``*``."""
    return -key.split("/").count("**"), len(key.replace("*", ""))


def _hits(key: Any, spellings: Mapping[int, Sequence[str]], words: str) -> list[int]:
    """The entries that a key means: as it stands, else as a path that a plan prints, which begins with the number of
    the argument and may end with what holds the array ("0/model/head/kernel/value")."""
    if not isinstance(key, str) or not key:
        raise PlanError(f"{words}: keys are variable paths such as 'head/kernel' or 'blocks/*/kernel', got {key!r}")
    short = without_root(key)
    for way in dict.fromkeys((key, short, without_holder(key), without_holder(short))):
        matches = matcher(way)
        hits = [i for i, names in spellings.items() if any(map(matches, names))]
        if hits:
            return hits
    return []


def _nothing_matched(keys: Sequence[str], spellings: Sequence[tuple[str, ...]], words: str) -> str:
    shortest = [names[-1] for names in spellings]
    told = []
    for key in keys:
        near = difflib.get_close_matches(key, shortest, _MOST_NAMED, 0.5)
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
