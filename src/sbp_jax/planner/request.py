"""What the planner is asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..cluster import Cluster
from ..placement import Placement
from ..plan import PlanData
from ..signature import Signature
from .budget import Budget
from .pins import Pins


@dataclass(frozen=True, slots=True)
class Request:
    """What the planner is asked: the mesh, its hardware, and what the user has fixed already.

    ``pins`` maps a node's index to the signature its result (an output's operand) must have, with the words to
    name the pin by in an error. ``uneven``: whether dims may be split that do not divide, into pieces
    padded to the longest (global tensors, ``AutoParallelConfig(pad=True)``).
    ``narrow_partial``: whether floats may be narrowed while partial. ``budget``: what the search may spend;
    ``thorough``: whether to spend all of it where that proves more. ``forced``: by node, the signature that its result
    (an output's operand) must have, whatever it costs. ``shorter_than``: a plan for the same, which is to be given back
    unless one is found whose simulated step is shorter. ``tell_smallest``: whether the error of a limit that
    is too small says the smallest that is not. ``names_limit``: whether the user named the limit: the smallest that
    works is looked for as long as it takes then. ``prepared``: programs that are ready to be searched (``prepare.py``),
    shared by requests that are made of each other. ``find_start``: what a search begins with where memory is
    short (``Start``), given the cost graph, its decisions, the footprint and a budget; ``start_gap``: no prices
    are searched for where that leaves a gap of no more than this. The others as in ``AutoParallelConfig``.
    """

    placement: Placement
    cluster: Cluster
    pins: Pins = field(default_factory=dict)
    forced: Mapping[int, Signature] = field(default_factory=dict)
    memory_limit_bytes: float | None = None
    limit_is_firm: bool = True
    computation_ratio: float | None = None
    solver: str = "ilp"
    solver_options: Mapping[str, Any] = field(default_factory=dict)
    gap: float = 0.0
    time_limit: float | None = None
    budget: Budget = field(default_factory=Budget, compare=False)
    thorough: bool = False
    share_layers: bool = True
    uneven: bool = False
    narrow_partial: bool = False
    zero_stage: int | None = None
    prefer_less_memory: bool = False
    wait_seconds: float = 0.0
    trunk_algo: bool = True
    sbp_collector: bool = False
    remat: bool = False
    rewrite: str | None = None
    rewrite_options: Mapping[str, Any] = field(default_factory=dict)
    overlap: bool = False
    shorter_than: PlanData | None = None
    tell_smallest: bool = True
    names_limit: bool = True
    prepared: list[Any] | None = field(default=None, compare=False, repr=False)
    find_start: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    start_gap: float = 0.0
    progress: Callable[[str], None] = lambda _: None

    @property
    def hides(self) -> bool:
        """Whether the plan of the least sum is only a start: plans whose boxing hides are searched after it
        (``overlap.py``)."""
        asked_otherwise = (
            self.solver != "ilp" or self.prefer_less_memory or self.computation_ratio is not None
            or self.wait_seconds or self.forced or not self.share_layers
        )  # fmt: skip
        return self.overlap and not asked_otherwise and bool(self.cluster.overlaps) and self.placement.size > 1
