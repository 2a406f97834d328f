"""Pins of Flax models by variable path: ``{"head/kernel": sbp.split(1), "blocks/*/mlp/kernel": ("B", "S(0)")}``.

``calls/path_pins.py`` has the rules for keys. Variables' own metadata is read as pins, too; a key counts before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ..calls.path_pins import Asked as Asked
from ..calls.path_pins import PinDict as PinDict
from ..calls.path_pins import followers, matches
from ..errors import PlanError, SignatureError
from ..placement import Placement
from ..planner import pin_signature
from ..shardings import PlacementLike, as_placement
from .variables import Entry, entries, pure


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
        hits = matches(found, one, is_rooted)
        for i, (key, pin) in hits.items():
            words = f"{one.words}[{key!r}] for {found[i].path}"
            result[i] = None if pin is None else _check(pin, found[i], placement, words)
        named |= hits.keys()
    if with_moments:
        for i, parameter in followers(found, is_rooted).items():
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
