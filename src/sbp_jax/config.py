"""What users can ask of the planner."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from .cluster import Cluster
from .errors import PlanError
from .planner.solvers import lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoParallelConfig:
    """Options of ``auto_parallel``; OneFlow's names where it has them.

    Attributes:
        solver: the search method, a name from ``sbp.planner.solvers()``.
        time_limit: seconds branch-and-bound may take; then the best plan found, with its proven gap.
            None: 30 s, which is rarely reached; ``float("inf")``: until proven optimal.
        gap: stop when the proven relative gap is at most this.
        memory_limit: bytes per device, firm: where no plan meets it, that is an error. None: the device's less a
            tenth; where no plan meets that, the cheapest plan is given with a note.
        prefer_less_memory: OneFlow's ``enable_auto_memory``.
        ignore_user_sbp: do not obey pins (OneFlow's ``enable_auto_parallel_ignore_user_sbp_config``).
        computation_cost_ratio: weight of compute seconds against boxing seconds; None: 1, physical seconds.
        wait_time, trunk_algo, sbp_collector: OneFlow's, for its own search.
        zero_stage: None: the planner's choice; 0..3 pins optimizer state, gradients, parameters.
        cluster: a preset's name, a ``Cluster``, or a path to its TOML; None: detected.
        narrow_partial: allow a partial sum to be converted to a narrower float before it is reduced (float32 gradients
            reduced as bfloat16, say): fewer bytes, but every term is rounded, so results change.
        remat: "auto": where memory is short, the planner also chooses what of the forward part to make again in the
            backward part. None: what the function itself says (``jax.checkpoint``).
        grad_accumulation, pipeline: see the architecture; not built yet.
    """

    solver: str = "ilp"
    time_limit: float | None = None
    gap: float = 0.0
    memory_limit: float | None = None
    prefer_less_memory: bool = False
    ignore_user_sbp: bool = False
    computation_cost_ratio: float | None = None
    wait_time: float | None = None
    trunk_algo: bool = True
    sbp_collector: bool = False
    zero_stage: int | None = None
    cluster: str | Path | Cluster | None = None
    narrow_partial: bool = False
    grad_accumulation: int = 1
    remat: Literal["auto"] | None = None
    pipeline: Any = None

    def __post_init__(self) -> None:
        lookup(self.solver)  # raises for names that are not known
        defaults = {f.name: f.default for f in fields(AutoParallelConfig)}
        unbuilt = [
            name
            for name in ("prefer_less_memory", "wait_time", "trunk_algo", "sbp_collector", "zero_stage",
                         "grad_accumulation", "pipeline")
            if getattr(self, name) != defaults[name]
        ]  # fmt: skip
        if unbuilt:
            raise PlanError(f"not built yet: {', '.join(unbuilt)}; leave them at their defaults")
        if self.remat not in (None, "auto"):
            raise PlanError(
                f"remat is None or 'auto', got {self.remat!r}; to choose yourself what is made again, wrap parts of "
                "the function in jax.checkpoint"
            )
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise PlanError(f"memory_limit is bytes per device, more than 0; got {self.memory_limit!r}")
        if self.computation_cost_ratio is not None and self.computation_cost_ratio < 0:
            raise PlanError(f"computation_cost_ratio must be 0 or more; got {self.computation_cost_ratio!r}")
