"""Planned code inside ``jax.set_mesh``."""

from contextlib import AbstractContextManager
from typing import Any

import jax

from .._compat import within_mesh
from ..errors import PlacementError
from ..placement import Placement


def on_mesh(where: Placement, name: str) -> AbstractContextManager[Any]:
    """A block of traced code on the placement's mesh, whatever ``jax.set_mesh`` the caller stands in.

    Raises ``PlacementError`` for a mesh of another number of devices: JAX leaves no way from one to the other.
    """
    around = jax.sharding.get_abstract_mesh()
    if not around.empty and around.size != where.size:
        raise PlacementError(
            f"{name} runs on {where}, {where.size} devices, and is called inside jax.set_mesh of a mesh of "
            f"{around.size} devices ({dict(around.shape)}): call it outside of that block, "
            "or set a mesh of as many devices"
        )
    return within_mesh(where.mesh)
