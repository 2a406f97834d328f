"""What a method for placing gets and gives, and the same end for all: orders compared, memory kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ...errors import PlanError
from ...trace import Program
from ..amounts import bytes_text
from ..catalogue import Option
from .devices import Devices
from .from_program import Placeable
from .graph import OpGraph
from .simulate import Simulator

SEED = Option("seed", 0, "of its random numbers")


@dataclass(frozen=True, eq=False)
class PlacingTask:
    """A graph, the devices, the method's options.

    ``program`` is what the graph is of, where there is one: for methods that place another one, which computes the
    same.
    """

    graph: OpGraph
    devices: Devices
    options: Mapping[str, Any] = field(default_factory=dict)
    program: Program | None = None
    simulator: Simulator = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "simulator", Simulator(self.graph, self.devices))


@dataclass(frozen=True, eq=False)
class Cut:
    """Another program that computes the same in pieces, and its graph.

    ``arguments`` makes its arguments of those of the first program.
    """

    program: Program
    parts: Placeable
    arguments: Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Placing:
    """A placement: by op its device, the order of the ops, its simulated seconds, and a bound or 0.

    ``bound_seconds``: no placement and order takes less. ``cut``: whose ops are placed, if not those that were given.
    """

    device: tuple[int, ...]
    order: tuple[int, ...]
    seconds: float
    bound_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    cut: Cut | None = None


PlacingMethod: TypeAlias = Callable[[PlacingTask], Placing]


def finished(
    task: PlacingTask, device: Sequence[int], order: Sequence[int] | None = None, notes: tuple[str, ...] = ()
) -> Placing:
    """A method's placement with the best of a few orders; ops move where memory is exceeded, and that is noted."""
    s = task.simulator
    device = tuple(int(d) for d in device)
    orders = [] if order is None else [tuple(order)]
    found = best_order(s, device, orders)
    if s.over_bytes(device, found):
        device, moved = within_memory(s, device)
        notes = (*notes, f"{moved} ops moved to fit in memory")
        found = best_order(s, device, [])
    return Placing(device, tuple(found), s.seconds(device, found), 0.0, notes)


def best_order(s: Simulator, device: Sequence[int], known: Sequence[Sequence[int]]) -> Sequence[int]:
    """The order with the best score: of those known, and a few rules'."""
    return min([*known, s.order(device), s.earliest_order(device), s.mean_order, list(range(len(device)))],
               key=lambda o: s.score(device, o))  # fmt: skip


def within_memory(s: Simulator, device: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """A placement that fits, made by moving one op at a time to where the score is best; how many were moved.

    ``PlanError`` where no such move brings it nearer.
    """
    now, moved = list(device), 0
    over = s.over_bytes(now)
    while over:
        best = (over, 0.0, -1, -1)
        for v in range(len(now)):
            for d in np.flatnonzero(s.possible[v]):
                if d != now[v]:
                    tried = [*now[:v], int(d), *now[v + 1 :]]
                    best = min(best, (s.over_bytes(tried), s.seconds(tried), v, int(d)))
        if best[2] < 0:
            peaks = s.timeline(now).peak_bytes
            words = [f"{n} needs {bytes_text(p)} of {bytes_text(m)}"
                     for n, p, m in zip(s.devices.names, peaks, s.limits, strict=True) if p > m]  # fmt: skip
            raise PlanError(
                f"no placement was found that fits in memory: {'; '.join(words)}. Add devices or memory_bytes, place "
                "smaller ops (ops=...), or try solver 'pesto' where there are few ops"
            )
        over, moved = best[0], moved + 1
        now[best[2]] = best[3]
    return tuple(now), moved
