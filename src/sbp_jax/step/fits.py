"""Whether a compiled step keeps within the memory limit that its plan was made for, by XLA's own account."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

from ..report.units import brief_bytes
from .jitted import LoweredStep

# So many bytes more are not worth a word: XLA rounds every buffer up.
_LITTLE = 2**16


def needed_bytes(compiled: Any) -> int:
    """Bytes that a device needs for a compiled step: arguments, results that replace none of them, temporaries."""
    m = compiled.memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes


def warn_if_over(entry: LoweredStep, arguments: Sequence[Any], limit: float, stacklevel: int) -> None:
    """Compile a step, which a run then finds compiled; a ``UserWarning`` where XLA needs more than ``limit`` bytes.

    The planner's account of memory is a model: near a limit XLA may need some per cent more than it says.
    """
    plan, compiled = entry.plan, entry.jitted.lower(*arguments).compile()
    if compiled.memory_analysis() is None:  # a backend that keeps no account
        return
    needed = needed_bytes(compiled)
    if needed > limit + _LITTLE:
        less = math.floor(limit * limit / needed)
        warnings.warn(
            f"{plan.function} was planned for at most {brief_bytes(limit)} per device, and holds "
            f"{brief_bytes(plan.memory_per_device)} by the planner's account; as XLA compiled it, it needs "
            f"{brief_bytes(needed)}, {needed / limit:.3f} times the limit. AutoParallelConfig(memory_limit={less}) "
            "leaves room for what the planner does not see",
            stacklevel=stacklevel + 1,
        )
