"""The plan of one stage: the planner's own, with what a part of a pipeline asks besides."""

from dataclasses import replace
from typing import Protocol

from ..placement import Placement
from ..plan import PlanData
from ..planner import Request, plan_to_fit
from ..planner.constraints import Among
from ..planner.pins import Pins
from ..rules.widen import B
from .stage_program import StageProgram

_WITH_EVERY_PART = ("part", "number")


class RequestOn(Protocol):
    """What is asked of a plan on a placement; ``pinned``: with the signatures that the user fixed there."""

    def __call__(self, where: Placement, pinned: bool = True) -> Request: ...


def stage_pins(source: StageProgram, where: Placement, pins: Pins) -> Pins:
    """Pins of a stage's program: the step's own, by node of the step, and the order of the micro-batches.

    What comes and goes with every micro-batch is one after the other in time, never split over devices.
    """
    found = {k: pins[o] for k, o in enumerate(source.origin) if o in pins}
    program = source.program
    for ops, ports in ((program.input_ops, source.takes), (program.output_ops, source.gives)):
        for op, port in zip(ops, ports, strict=True):
            if port.kind in _WITH_EVERY_PART:
                n = len((op.outs or op.ins)[0].shape)
                axes = (frozenset((B, *range(1, n))),) * len(where.shape)
                found[op.index] = (Among(axes, "not split over micro-batches"), op.label)
    return found


def plan_stage(source: StageProgram, where: Placement, request: Request, pins: Pins, name: str) -> PlanData:
    """Plan a stage for its devices. ``pins`` are the step's, by node of the step."""
    asked = replace(request, placement=where, pins=stage_pins(source, where, pins), prepared=[])
    return plan_to_fit(source.program, asked, name)
