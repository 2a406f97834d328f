"""Why nothing is split, where nothing is: said with the plan, so that nobody has to guess."""

import math

from ..plan import PlanData
from ..signature import Split
from ..trace import Program

_NAMED = 4


def unsplit(program: Program, plan: PlanData) -> list[str]:
    """A note for a plan on several devices in which every signature is whole."""
    sizes = [(name, n) for name, n in zip(plan.placement.axis_names, plan.placement.shape, strict=True) if n > 1]
    if not sizes or any(isinstance(c, Split) for ways in plan.strategies for side in ways for s in side for c in s):
        return []
    n = math.prod(n for _, n in sizes)
    every = f"nothing is split: every one of the {n} devices computes the whole step. "
    shapes = {v.shape for op in program.nodes for v in op.outs}
    fits = [(name, k) for name, k in sizes if any(d and d % k == 0 for shape in shapes for d in shape)]
    axes = ", ".join(f"{name} ({k})" for name, k in sizes)
    arrays = [leaf for leaf in plan.inputs if leaf.shape]
    if not arrays and all(not shape for shape in shapes):
        return [every + "All values are scalars"]
    if not fits:
        named = ", ".join(f"{leaf.path} {'x'.join(map(str, leaf.shape))}" for leaf in arrays[:_NAMED])
        more = f" and {len(arrays) - _NAMED} more" if len(arrays) > _NAMED else ""
        return [every + f"No dimension is a multiple of a mesh axis: axes {axes}; arguments {named}{more}. "
                "Pad a dimension, or use axes of other sizes"]  # fmt: skip
    return [every + "That is the cheapest: cutting what could be cut would cost more in moving data and in starting "
            f"ops than it saves on axes {axes}"]  # fmt: skip
