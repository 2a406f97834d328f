"""Effects: what the host is told is compared as well, in order where it is ordered."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .scope import Scope

Log = list[tuple[str, str, Any]]


def host(log: Log) -> dict[str, Callable[..., Any]]:
    """The functions on the host that a program calls."""

    def note(x: Any, ordered: bool, name: str, effect: str = "debug") -> None:
        log.append((effect if ordered else "", name, np.asarray(x).tolist()))

    def told(x: Any, ordered: bool, name: str) -> np.ndarray:
        note(x, ordered, name, "io")
        return np.asarray(x) * np.asarray(2, np.asarray(x).dtype)

    return {"note": note, "told": told, "halved": lambda x: np.asarray(x) * np.asarray(0.5, np.asarray(x).dtype)}


def in_order(log: Log) -> tuple[list[Any], list[Any], list[Any]]:
    """Ordered calls as they came, those of each effect apart; the others sorted.

    JAX orders ``io_callback``s among themselves and ``debug.callback``s among themselves, not one with the other.
    """
    calls = {effect: [x[1:] for x in log if x[0] == effect] for effect in ("io", "debug", "")}
    return calls["io"], calls["debug"], sorted(calls[""], key=repr)


def effect(s: Scope) -> None:
    """A call of the host; exact values only, for they are compared exactly."""
    v = s.pick("fi", lambda v: v.exact and math.prod(v.shape) <= 64)
    if v is None or not s.effects:
        return
    ordered, name = s.rng.random() < 0.5, s.name("e")
    options = f"{ordered}, {name!r}"
    like = f"jax.ShapeDtypeStruct({v.shape}, jnp.asarray({v.name}).dtype)"
    how = s.rng.choice(("note", "note", "told", "halved"))
    if how == "note":
        s.lines.append(f"jax.debug.callback(lambda x: note(x, {options}), {v.name}, ordered={ordered})")
    elif how == "told":
        text = f"io_callback(lambda x: told(x, {options}), {like}, {v.name}, ordered={ordered})"
        s.let(text, v.shape, v.kind, 2 * v.bound, True)
    elif v.kind == "f":
        s.let(f"jax.pure_callback(halved, {like}, {v.name})", v.shape, "f", v.bound, True)
