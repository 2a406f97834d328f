"""What a call asks of the planner: its configuration on one placement."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .. import cluster as clusters
from ..errors import PlanError
from ..placement import Placement
from ..planner import PinError, Request
from ..planner.effort import budget_for, is_thorough
from ..shardings import as_placement
from .config import AutoParallelConfig

_RESERVE = 0.1


def asked_placement(given: Any) -> Placement | int | str | None:
    """What a user gives as ``placement=``: a placement or a mesh, how many devices, "auto", or nothing."""
    if given is None or (isinstance(given, int | np.integer) and not isinstance(given, bool)):
        return None if given is None else int(given)
    if isinstance(given, str) and given == "auto":
        return given
    if isinstance(given, Placement | Mesh | AbstractMesh):
        return as_placement(given)
    raise PlanError(
        f"placement is a sbp.placement(...), a jax.sharding.Mesh, a number of devices, or 'auto'; got {given!r}"
    )


def request_for(where: Placement, config: AutoParallelConfig, pins: Any, progress: Callable[[str], None]) -> Request:
    """The configuration as a request, for one placement."""
    hardware = clusters.resolve(config.cluster or where.cluster, where.type, where.is_abstract)
    return Request(
        placement=where,
        cluster=hardware,
        pins=pins,
        memory_limit_bytes=_memory(hardware) if config.memory_limit is None else config.memory_limit_bytes,
        limit_is_firm=config.memory_limit is not None,
        computation_ratio=config.computation_cost_ratio,
        solver=config.solver,
        solver_options=config.solver_options or {},
        gap=config.gap,
        time_limit=config.time_limit,
        budget=budget_for(config.effort, config.time_limit),
        thorough=is_thorough(config.effort, config.time_limit),
        narrow_partial=config.narrow_partial,
        uneven=config.pad,
        remat=config.remat == "auto",
        rewrite=config.rewrite,
        rewrite_options=config.rewrite_options or {},
        zero_stage=config.zero_stage,
        prefer_less_memory=config.prefer_less_memory,
        wait_seconds=config.wait_time or 0.0,
        trunk_algo=config.trunk_algo,
        sbp_collector=config.sbp_collector,
        overlap=config.overlap and config.effort != "quick",
        progress=progress,
    )  # fmt: skip


def requests_on(places: Sequence[Placement], request_on: Callable[[Placement], Request]) -> list[Request]:
    """The request for each placement. Of several, those that the pins do not fit are passed over."""
    requests = []
    for where in places:
        try:
            requests.append(request_on(where))
        except PinError:
            if len(places) == 1:
                raise
    return requests


def _memory(hardware: clusters.Cluster) -> float:
    """What a plan may use of a device: the rest is for the runtime, communication buffers and fragmentation."""
    return hardware.device.memory_bytes * (1 - _RESERVE)
