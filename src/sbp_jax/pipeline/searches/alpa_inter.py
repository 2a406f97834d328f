"""Alpa's inter-operator pass: ranges of layers and their sub-meshes by dynamic programming, here to the proven best.

Zheng et al., "Alpa", OSDI 2022, arXiv:2201.12023, section 5.1.
"""

from ...planner.catalogue import Option, register
from ..stages.dp import Stages, plan_stages
from .task import StageTask


@register(
    "alpa_inter", family="stages", promises="exact",
    paper="Zheng et al.: Alpa, OSDI 2022, arXiv:2201.12023, section 5.1",
    options=(Option("epsilon", 0.0, "the best may be better by this part of a step", most=0.99),),
)  # fmt: skip
def alpa_inter(task: StageTask) -> Stages:
    """The least seconds of a step."""
    return plan_stages(
        task.costs, task.meshes, task.devices, task.microbatches, limit_bytes=task.limit_bytes,
        in_flight=task.in_flight, overlaps=task.overlaps, window=task.window, epsilon=task.options["epsilon"],
    )  # fmt: skip
