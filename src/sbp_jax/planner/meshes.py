"""Which mesh? The shapes that some devices can be arranged in, and the plan that is best on any of them.

Ranks are row-major, so the innermost axis holds neighbours: which axis lies inside a node is a matter of the shape's
order, and both orders are tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..errors import PlanError
from ..placement import Placement, placement
from ..plan import PlanData
from .memory.infeasible import TooSmall
from .pins import PinError

# Of the axes of a mesh whose shape is looked for.
_NAMES = ("dp", "tp")
# What is minimised are the step's seconds, up to this part: the bytes held are priced beside them.
_WEIGHED = 0.01


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
            found.append(replace(placement.abstract(shape, names), cluster=cluster))
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
    refused: dict[str, PinError | TooSmall] = {}
    for where in places:
        try:
            plans.append(plan(where))
        except (PinError, TooSmall) as error:
            refused[_shape(where)] = error
    if not plans:
        raise list(refused.values())[-1] if refused else PlanError("there is no mesh to plan for")
    best = min(plans, key=lambda p: (_overflows(p), p.objective))
    told = ", ".join(f"{_shape(p.placement)} {_cost(p)}{' (does not fit)' if _overflows(p) else ''}" for p in plans)
    why = {PinError: "pins that it does not fit", TooSmall: "no plan was found that fits into memory"}
    passed = "".join(
        f"; {shape} passed over: {next(words for kind, words in why.items() if isinstance(error, kind))}"
        for shape, error in refused.items()
    )
    best.notes.append(f"mesh {_shape(best.placement)} chosen of: {told}{passed}")
    return best


def _shape(where: Placement) -> str:
    return "x".join(map(str, where.shape))


def _overflows(plan: PlanData) -> bool:
    return any(n.startswith("does not fit") for n in plan.notes)


def _cost(plan: PlanData) -> str:
    """The predicted step; what was minimised beside it, where OneFlow's weights make that another number."""
    weighed = abs(plan.objective - plan.step_seconds) > _WEIGHED * plan.step_seconds
    objective = f" (weighed: {plan.objective * 1e3:.4g})" if weighed else ""
    return f"{plan.step_seconds * 1e3:.4g} ms{objective}"
