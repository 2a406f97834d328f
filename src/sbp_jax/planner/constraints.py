"""JAX's sharding constraints on a placement: which signatures each leaves."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import SignatureError
from ..pieces import stored_shape
from ..placement import Placement
from ..rules.widen import PARTIAL, B, Code, signature_of
from ..shardings import check_mesh
from ..signature import local_shape
from ..trace import Constraint


@dataclass(frozen=True, slots=True)
class Among:
    """A pin that leaves a choice: for each mesh axis the components it may have. ``text``: as the user wrote it."""

    axes: tuple[frozenset[int], ...]
    text: str

    def allows(self, code: Code) -> bool:
        """Whether a signature is one of those left."""
        return all(c in possible for c, possible in zip(code, self.axes, strict=True))

    def __str__(self) -> str:
        return self.text


def among(asked: Constraint, shape: Sequence[int], placement: Placement, uneven: bool = False) -> Among | None:
    """What a constraint leaves of the signatures of a value of ``shape``; None where that is all of them.

    A dimension that it names is split by exactly those mesh axes, one that it does not name by none; a free one by
    any that are left. Raises ``SignatureError`` for another mesh than the placement's, and for a split that does not
    divide (``uneven``: for one with an empty piece).
    """
    if not asked.mesh:
        _check_device(asked, placement)
        return None
    check_mesh(asked.mesh, asked.devices, placement, str(asked))
    order = {name: k for k, name in enumerate(placement.axis_names)}
    free_dims = {d for d, names in enumerate(asked.dims) if names is None}
    axes = [frozenset((B, *free_dims)) for _ in order]
    for dim, names in enumerate(asked.dims):
        positions = [order[n] for n in names or ()]
        if positions != sorted(positions):
            raise SignatureError(
                f"{asked} splits dimension {dim} by {names}, against the order of the mesh axes "
                f"{placement.axis_names}: signatures nest outermost first. Reorder the mesh's axes, or the entry"
            )
        for k in positions:
            axes[k] = frozenset((dim,))
    for name in asked.partial:
        axes[order[name]] = frozenset((PARTIAL["sum"],))
    for name in asked.free:
        axes[order[name]] = frozenset((B, *PARTIAL.values(), *range(len(shape))))
    # On an axis of one device every component means the same; plans say B there.
    axes = [frozenset((B,)) if n == 1 else found for n, found in zip(placement.shape, axes, strict=True)]
    least = signature_of(tuple(next(iter(found)) if len(found) == 1 else B for found in axes))
    (stored_shape if uneven else local_shape)(shape, least, placement.shape)
    return Among(tuple(axes), str(asked))


def _check_device(asked: Constraint, placement: Placement) -> None:
    devices = asked.devices or ()
    if placement.size == 1 and (placement.is_abstract or [d.id for d in placement.mesh.devices.flat] == list(devices)):
        return
    raise SignatureError(
        f"one device (id {', '.join(map(str, devices))}) is asked for, but the plan is for {placement}, and "
        "each value lies on all of its devices. Give a NamedSharding of the placement's mesh, or leave it out"
    )
