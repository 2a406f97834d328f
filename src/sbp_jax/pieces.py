"""Where a device's piece of a tensor lies, also where a dimension does not divide.

Pieces are balanced: of ``n`` over ``p`` the first ``n mod p`` have one element more (OneFlow's
``BalancedSplitter``), and nested splits cut each piece again, outermost axis first. What a device stores is padded
at its end to the longest piece, so that all devices store the same shape.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .errors import SignatureError
from .signature import Signature, Split


def balanced(n: int, parts: int) -> tuple[int, ...]:
    """The lengths of ``parts`` pieces of ``n``: 20 over 6 is 4, 4, 3, 3, 3, 3."""
    base, more = divmod(n, parts)
    return tuple(base + (k < more) for k in range(parts))


def span(n: Any, sizes: Sequence[int], position: Sequence[Any]) -> tuple[Any, Any]:
    """Start and length of one piece of ``n`` cut by axes of ``sizes``, outermost first, at ``position``.

    Positions may be traced; where everything divides, the length is a plain int still.
    """
    start: Any = 0
    length: Any = n
    for parts, k in zip(sizes, position, strict=True):
        base, more = length // parts, length % parts
        if isinstance(more, int) and more == 0:
            start, length = start + k * base, base
        elif isinstance(more, int) and isinstance(k, int):
            start, length = start + k * base + min(k, more), base + (k < more)
        else:
            start, length = start + k * base + jnp.minimum(k, more), base + (k < more)
    return start, length


def longest(n: int, sizes: Sequence[int]) -> int:
    """The length of the longest piece, which is what every device stores."""
    for parts in sizes:
        n = -(-n // parts)
    return n


def splits(signature: Signature, axis_sizes: Sequence[int], dim: int) -> tuple[int, ...]:
    """The sizes of the mesh axes that split ``dim``, outermost first."""
    return tuple(axis_sizes[a] for a in signature.split_axes(dim))


def is_even(shape: Sequence[int], signature: Signature, axis_sizes: Sequence[int]) -> bool:
    """Whether every dimension divides by the axes that split it."""
    cuts: dict[int, int] = {}
    for n, c in zip(axis_sizes, signature.components, strict=True):
        if isinstance(c, Split):
            cuts[c.dim] = cuts.get(c.dim, 1) * n
    return all([shape[d] % n == 0 for d, n in cuts.items()])


def stored_shape(shape: Sequence[int], signature: Signature, axis_sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of what every device stores: the longest piece along each dimension.

    Raises ``SignatureError`` where a piece would be empty: a dimension shorter than the axes that split it. (One of
    length 0 may be split.)
    """
    found = []
    for d, n in enumerate(shape):
        left = n
        for parts in (sizes := splits(signature, axis_sizes, d)):
            left //= parts
        if left == 0 and n > 0:
            raise SignatureError(
                f"({signature}) splits dimension {d} of shape {tuple(shape)} into {math.prod(sizes)} pieces, but it "
                f"has only {n} element(s): every device needs at least one. Split a longer dimension, or use B"
            )
        found.append(longest(n, sizes))
    return tuple(found)


def stored_share(shape: tuple[int, ...], code: Sequence[int], axis_sizes: Sequence[int]) -> float:
    """The part of a tensor's elements that one device stores. ``code`` by axis: the dim it splits, else negative."""
    cuts: dict[int, int] = {}
    for n, dim in zip(axis_sizes, code, strict=True):
        if dim >= 0:
            cuts[dim] = cuts.get(dim, 1) * n
    share = 1.0
    for dim, parts in cuts.items():
        n = shape[dim]
        share *= -(-n // parts) / n if n % parts else 1 / parts
    return share


def piece_shape(
    shape: Sequence[int], signature: Signature, axis_sizes: Sequence[int], position: Sequence[int]
) -> tuple[int, ...]:
    """The exact shape of the component at a ``position`` of the mesh."""
    box = piece_box(shape, signature, axis_sizes, position)
    return tuple(stop - start for start, stop in box)


def piece_box(
    shape: Sequence[int], signature: Signature, axis_sizes: Sequence[int], position: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """First and last index (exclusive), by dimension, of the component at a ``position`` of the mesh."""
    box = []
    for d, n in enumerate(shape):
        axes = signature.split_axes(d)
        start, length = span(n, [axis_sizes[a] for a in axes], [position[a] for a in axes])
        box.append((start, start + length))
    return tuple(box)


def identity(op: str, dtype: Any) -> Any:
    """What changes nothing under a reduction."""
    if op == "sum":
        return np.zeros((), dtype)
    if dtype == np.bool_:
        return np.asarray(op == "min")
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.asarray(-np.inf if op == "max" else np.inf, dtype)
    info = jnp.iinfo(dtype)
    return np.asarray(info.min if op == "max" else info.max, dtype)
