"""Where variables are to lie, and what ``sbp.flax.parallel`` has written on classes about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

from ..api import AutoParallelConfig
from ..errors import PlacementError, PlanError
from ..placement import Placement, placement
from ..plan import PlanData
from ..shardings import as_placement
from .pins import Asked, PinDict

# Where a decorated class keeps what it was decorated with.
_WHERE = "_sbp_where"


@dataclass(frozen=True, slots=True)
class Where:
    """Where variables are to lie: on a placement by pins, or as in a plan."""

    placement: Placement | None = None
    pins: PinDict | None = None
    plan: PlanData | None = None
    config: AutoParallelConfig | None = None

    def mesh_placement(self) -> Placement:
        """The placement; every visible device on one axis where none is given."""
        if self.plan is not None:
            return self.plan.placement
        return placement.all(jax.default_backend()) if self.placement is None else self.placement


def checked(where: Where, called: str) -> Where:
    """``where``, or an error that says what ``called`` takes."""
    if isinstance(where.placement, Mesh | AbstractMesh):
        where = replace(where, placement=as_placement(where.placement))
    if where.placement is not None and not isinstance(where.placement, Placement):
        raise PlacementError(
            f"{called} takes placement=sbp.placement(...) or a jax.sharding.Mesh; got {where.placement!r}. Where the "
            "planner is to choose the mesh, plan a step first (sbp.flax.jit(step, placement='auto').plan(...), with "
            "nnx.eval_shape for the model) and pass plan="
        )
    if where.plan is not None and not isinstance(where.plan, PlanData):
        raise PlanError(f"{called} takes plan=, a sbp.Plan; got {type(where.plan).__name__}")
    if where.plan is not None and (where.placement is not None or where.pins):
        raise PlanError(f"{called} takes plan=, or placement= and sbp=: a plan says where every variable lies")
    if where.pins is not None and not hasattr(where.pins, "items"):
        raise PlanError(f"{called} takes sbp={{'head/kernel': sbp.split(1)}}, got {type(where.pins).__name__}")
    return where


def decorate(cls: type, where: Where) -> None:
    """Write ``where`` on a class."""
    setattr(cls, _WHERE, where)


def where_of(cls: type) -> Any:
    """What a class, or the nearest of its bases, was decorated with; None for a plain class."""
    return getattr(cls, _WHERE, None)


def decorated(made: Any, start: str = "", known: Any = ()) -> list[tuple[str, Where]]:
    """Path and decoration of every decorated module in an nnx object, those that contain others last; without those
    among the objects ``known``."""
    if not isinstance(made, nnx.Pytree | nnx.Variable | tuple | list | dict):
        return []
    found, old = [], {id(node) for _, node in nnx.iter_graph(known) if isinstance(node, nnx.Module)}
    for path, node in nnx.iter_graph(made):
        where = where_of(type(node)) if isinstance(node, nnx.Module) else None
        if where is not None and id(node) not in old:
            found.append(("/".join(map(str, (*([start] if start else []), *path))), where))
    return sorted(found, key=lambda pair: -pair[0].count("/") if pair[0] else 1)


def dictionaries(found: Sequence[tuple[str, Where]]) -> list[Asked]:
    """The pin dictionaries of decorated modules; outer modules' are last, for the last counts."""
    return [Asked(w.pins, path, "sbp") for path, w in found if w.pins]


def common_placement(found: Sequence[Where], name: str) -> Placement | None:
    """The placement that modules were decorated with; None where none was. Different ones raise."""
    theirs = list(dict.fromkeys(w.mesh_placement() for w in found if w.placement or w.plan))
    if len(theirs) > 1:
        raise PlacementError(
            f"{name} has no placement of its own, and its modules lie on different ones: "
            f"{', '.join(map(str, theirs))}. Say which: placement=..."
        )
    return theirs[0] if theirs else None
