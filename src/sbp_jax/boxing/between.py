"""From one placement to another: every device that needs a part gets it from one that holds it, device to device.

Placements may differ in ranks, size and shape. Nothing passes through the host: parts are sliced where they lie,
sent with ``jax.device_put``, and put together where they arrive.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import SignatureError
from ..pieces import piece_box
from ..placement import Placement
from ..signature import Partial, Signature

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What one device sends another: logical indices by dim, from a position of one mesh to one of the other."""

    src: tuple[int, ...]
    dst: tuple[int, ...]
    box: Box
    bytes: int


def parts(
    shape: Sequence[int], itemsize: int, src: tuple[Placement, Signature], dst: tuple[Placement, Signature]
) -> list[Part]:
    """Who sends what to whom; ``bytes`` is 0 where a device sends to itself.

    Copies are taken from the device itself where it has one, else from the holders in turn. On axes of ``dst`` that
    are partial, only the first device gets the value. Raises ``SignatureError`` where ``src`` is partial.
    """
    (here, a), (there, b) = src, dst
    if a.has_partial:
        raise SignatureError(f"({a}) is partial: reduce it on its own placement first")
    holders: dict[Box, list[tuple[int, ...]]] = {}
    for position in _positions(here):
        holders.setdefault(piece_box(shape, a, here.shape, position), []).append(position)
    found = []
    for k, position in enumerate(_positions(there)):
        if any(isinstance(c, Partial) and position[axis] > 0 for axis, c in enumerate(b)):
            continue
        wanted = piece_box(shape, b, there.shape, position)
        rank = there.ranks[position]
        for box, owners in holders.items():
            common = tuple((max(p, q), min(r, s)) for (p, r), (q, s) in zip(box, wanted, strict=True))
            if any(stop <= start for start, stop in common):
                continue
            own = [o for o in owners if here.type == there.type and here.ranks[o] == rank]
            origin = own[0] if own else owners[k % len(owners)]
            size = 0 if own else itemsize * math.prod(stop - start for start, stop in common)
            found.append(Part(origin, position, common, size))
    return found


def _positions(where: Placement) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, where.shape)))
