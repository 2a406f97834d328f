"""Whether a compiled step keeps within the user's memory limit, by XLA's own account; if not, a smaller plan's step.

The planner's account of memory is a model: it cannot know the order that XLA runs ops in, nor the holes of its heap.
Near a limit XLA may need some per cent more than it says.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..planner.memory.infeasible import TooSmall
from ..report.units import brief_bytes
from .jitted import LoweredStep

# So many times the limit is within it: XLA rounds every buffer up.
_NOT_OVER = 1.001
# So many plans are made for less memory than was asked for, before the one that needs least is run as it is.
_PLANS = 3


@dataclass(frozen=True, slots=True)
class Fitted:
    """The step to run, and the bytes that it and those before it need on a device, by XLA's account."""

    step: LoweredStep
    needed: int
    tried: tuple[int, ...]
    within: float | None = None
    """What the step's plan was made for, if that is less than the limit."""
    is_least: bool = False
    """Whether the planner found no smaller plan."""
    advice: str = "A larger limit, more devices, a smaller batch or remat='auto' give it more room"


def needed_bytes(compiled: Any) -> int:
    """Bytes that a device needs for a compiled step: arguments, results that replace none of them, temporaries."""
    m = compiled.memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes


def account(compiled: Any) -> int | None:
    """The same; None where the backend keeps no account."""
    return None if compiled.memory_analysis() is None else needed_bytes(compiled)


def fit(
    step: LoweredStep, limit: float, needs: Callable[[LoweredStep], int | None],
    again: Callable[[float], LoweredStep] | None,
) -> Fitted:  # fmt: skip
    """The step, or that of a plan for less memory, where XLA needs more than ``limit`` bytes for it: the first that
    keeps within them, of some; where none does, the one that needs least.

    ``needs`` compiles a step and says what it needs; ``again`` plans for so many bytes, and raises ``TooSmall`` where
    no plan fits. None: the plan is not ours to change. What XLA needs over what the plan says is taken to stay.
    """
    needed = needs(step)
    if needed is None:
        return Fitted(step, 0, ())
    if again is None:
        less = math.floor(step.plan.memory_per_device * limit / max(needed, 1))
        return Fitted(step, needed, (needed,), advice=f"Planned with memory_limit={less} it would have room")
    least, plan, tried = Fitted(step, needed, ()), step.plan, [needed]
    while tried[-1] > limit * _NOT_OVER and len(tried) <= _PLANS:
        less = math.floor(plan.memory_per_device * limit / tried[-1])
        try:
            other = again(less)
        except TooSmall:
            return replace(least, tried=tuple(tried), is_least=True)
        plan, needed = other.plan, needs(other) or 0
        tried.append(needed)
        if needed < least.needed:
            least = Fitted(other, needed, (), less)
    return replace(least, tried=tuple(tried))


def tell(fitted: Fitted, limit: float, stacklevel: int) -> None:
    """A note in the plan that was made for less memory; a ``UserWarning`` where the step needs more than the limit."""
    plan, needed = fitted.step.plan, fitted.needed
    if fitted.within is not None:
        plan.notes = [
            *plan.notes,
            f"the plan within {brief_bytes(limit)} needed {brief_bytes(fitted.tried[0])} as XLA compiled it: this one "
            f"was searched for within {brief_bytes(fitted.within)}, and XLA needs {brief_bytes(needed)} for it",
        ]
    if needed > limit * _NOT_OVER:
        tried = f"the least of {len(fitted.tried)} plans" if len(fitted.tried) > 1 else ""
        found = "no smaller plan was found" if fitted.is_least else ""
        aside = "; ".join(filter(None, (tried, found)))
        warnings.warn(
            f"{plan.function} was planned for at most {brief_bytes(limit)} per device, and holds "
            f"{brief_bytes(plan.memory_per_device)} by the planner's account; as XLA compiled it, it needs "
            f"{brief_bytes(needed)}, {needed / limit:.3f} times the limit{f' ({aside})' if aside else ''}"
            + f". {fitted.advice}",
            stacklevel=stacklevel + 1,
        )
