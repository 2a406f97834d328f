"""Why nothing is split, where nothing is: said with the plan, so that nobody has to guess."""

import math
from collections.abc import Sequence

from ...plan import PlanData
from ...signature import Split
from ...trace import Program
from ..request import Request
from .repeated import Repeated, given, notes

# Arrays that a note names.
_NAMED = 4
# Of a device's compute: what is left is not worth a word.
_NEARLY_ALL = 0.95


def unsplit(program: Program, plan: PlanData, whole: Sequence[Repeated], request: Request) -> list[str]:
    """A note for a plan on several devices in which every signature is whole, then what is large and whole.

    ``whole``: the large ops that every device computes whole. Where rules or sizes allow no split of them, they are the
    reason that nothing is split, not the price.
    """
    sizes = [(name, n) for name, n in zip(plan.placement.axis_names, plan.placement.shape, strict=True) if n > 1]
    if not sizes or any(isinstance(c, Split) for ways in plan.strategies for side in ways for s in side for c in s):
        return notes(whole, request)
    every = f"nothing is split: every one of the {math.prod(n for _, n in sizes)} devices computes the whole step. "
    shapes = {v.shape for op in program.nodes for v in op.outs}
    axes = ", ".join(f"{name} ({k})" for name, k in sizes)
    arrays = [leaf for leaf in plan.inputs if leaf.shape]
    if not arrays and all(not shape for shape in shapes):
        return [every + "All values are scalars"]
    if not any(d and d % k == 0 for shape in shapes for d in shape for _, k in sizes):
        some = ", ".join(f"{plan.called(leaf.path)} {'x'.join(map(str, leaf.shape))}" for leaf in arrays[:_NAMED])
        more = f" and {len(arrays) - _NAMED} more" if len(arrays) > _NAMED else ""
        why = (
            f"No dimension is a multiple of a mesh axis: axes {axes}; arguments {some}{more}. "
            "Pad a dimension, or use axes of other sizes"
        )
        return [every + why, *notes((r for r in whole if r.cause == "rule"), request)]
    hindered = [r for r in whole if r.cause != "price"]
    if hindered:
        names = ", ".join(dict.fromkeys(r.primitive for r in hindered))
        cause = "rules are" if any(r.cause == "rule" for r in hindered) else "sizes of dimensions are"
        rest = "" if sum(r.share for r in hindered) >= _NEARLY_ALL else ". The other ops are cheapest whole"
        why = f"The {cause} the reason, not the price: {names} cannot be split here{rest}"
        return [every + why, *notes(hindered, request)]
    why = "cutting what could be cut would cost more in moving data and in starting ops than it saves"
    return [every + f"That is the cheapest{given(request)}: {why} on axes {axes}"]
