"""Which mesh? The shapes that some devices can be arranged in, and the plan that is best on any of them.

Ranks are row-major, so the innermost axis holds neighbours: which axis lies inside a node is a matter of the shape's
order, and both orders are tried.
"""

from collections.abc import Callable, Iterator, Sequence

from ..errors import PlanError
from ..placement import Placement, placement
from ..plan import PlanData
from .pins import PinError
from .shortage import TooSmall

_NAMES = ("dp", "tp")


def shapes(devices: int) -> Iterator[tuple[int, ...]]:
    """One axis, and every way to cut ``devices`` into two."""
    yield (devices,)
    for outer in range(2, devices):
        if devices % outer == 0:
            yield (outer, devices // outer)


def candidates(devices: int, type: str, visible: int, cluster: str | None) -> list[Placement]:
    """The placements of that many devices: of those there are, else of ``cluster``, for planning only."""
    if devices < 1:
        raise PlanError(f"placement={devices}: a number of devices, at least 1")
    if devices > visible and cluster is None:
        raise PlanError(
            f"placement={devices}: there are {visible} {type} device(s) here. To plan for hardware that is not, name "
            "it: config=sbp.AutoParallelConfig(cluster='h100')"
        )
    found = []
    for shape in shapes(devices):
        names = _NAMES[: len(shape)]
        if devices > visible:
            found.append(placement.abstract(shape, names, cluster))
        else:
            ranks = list(range(devices))
            nested = ranks if len(shape) == 1 else [ranks[k : k + shape[1]] for k in range(0, devices, shape[1])]
            found.append(placement(type, nested, names))
    return found


def best_of(places: Sequence[Placement], plan: Callable[[Placement], PlanData]) -> PlanData:
    """The plan with the fewest seconds a step, one that fits before one that does not; what the others cost is noted.

    Meshes that the user's pins do not fit, or on which no plan does, are passed over; with none left, the last error.
    """
    plans: list[PlanData] = []
    refused: PinError | TooSmall | None = None
    for where in places:
        try:
            plans.append(plan(where))
        except (PinError, TooSmall) as error:
            refused = error
    if not plans:
        raise refused or PlanError("there is no mesh to plan for")
    best = min(plans, key=lambda p: (any(n.startswith("does not fit") for n in p.notes), p.objective))
    told = ", ".join(f"{'x'.join(map(str, p.placement.shape))} {p.objective * 1e3:.4g} ms" for p in plans)
    best.notes.append(f"mesh {'x'.join(map(str, best.placement.shape))} chosen of: {told}")
    return best
