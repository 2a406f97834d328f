"""Global tensors as plain data, for ``pickle``: the components that this process holds, equal copies once."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import SbpError
from ..signature import Partial
from .spec import Spec
from .storage import components, from_pieces

# Where a component lies: its place along the partial axes, and the first and last index of each dim.
Key = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


def packed(spec: Spec, storage: jax.Array) -> dict[Key, Any]:
    """The components of this process's devices, exact, by where they lie. Copies along ``B`` axes are there once."""
    held = components(spec, storage)
    found: dict[Key, Any] = {}
    for position in spec.positions():
        rank, key = int(spec.placement.ranks[position]), _key(spec, position)
        if rank in held and key not in found:
            x = held[rank]
            found[key] = x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else np.asarray(x)
    return found


def unpacked(spec: Spec, parts: Mapping[Key, Any]) -> jax.Array:
    """The storage of a tensor of ``packed`` components, on this process's devices of its placement.

    Raises ``PlacementError`` where the devices do not exist, ``SbpError`` where this process's components are not
    among ``parts``: they were another process's.
    """

    def piece(position: tuple[int, ...]) -> Any:
        x = parts.get(_key(spec, position))
        if x is None:
            raise SbpError(
                f"this pickle holds {len(parts)} component(s) of {spec}, and not the one of rank "
                f"{int(spec.placement.ranks[position])}: it was made by a process that does not hold it. Let every "
                "process read the pickle that it wrote itself, on the same placement"
            )
        return x

    return from_pieces(spec, piece)


def _key(spec: Spec, position: tuple[int, ...]) -> Key:
    along = tuple(position[a] for a, c in enumerate(spec.sbp) if isinstance(c, Partial))
    return along, tuple((s.start, s.stop) for s in spec.box(position))
