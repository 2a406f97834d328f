"""What users can ask of the planner."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from ..cluster import Cluster, get
from ..errors import PlanError, SbpError
from ..pipeline.options import Pipeline
from ..plan import Lowering
from ..planner.catalogue import lookup
from ..planner.effort import EFFORTS

# How long to search, on which hardware, and how to run: a plan does not hold them, or holds what came of them.
_NOT_OF_THE_PLAN = {"time_limit", "gap", "effort", "cache", "lowering", "compiler_options", "cluster", "memory_limit"}

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{middle}b": base**power
    for power, letter in enumerate("kmgtp", 1)
    for middle, base in (("", 1000), ("i", 1024))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoParallelConfig:
    """Options of ``auto_parallel``; OneFlow's names where it has them.

    Attributes:
        solver: the search method, a name from ``sbp.planner.solvers()``: "ilp" (exact), "dp" (elimination), "greedy"
            (OneFlow's), "exhaustive" (small graphs); "data_parallel", "megatron", "zero2", "zero3": the best plan of
            that fixed strategy. Those split the batch of every argument and activation over all axes ("megatron": over
            those before the last, and features over the last); which dimension is the batch is found by following it
            through the step (``planner/graph/batch.py``). They need the training state donated, to know what is a
            parameter. Further names are published searches, to compare with: ``print(sbp.planner.solvers())``.
        solver_options: the options of that method, by name, as ``print(sbp.planner.solvers()[name])`` lists them.
        time_limit: seconds by the clock that planning may take; then the best plan found, with its proven gap: the one
            option with which the plan may hang on how busy the machine is. Used to prove more, until proven optimal,
            unless effort is "quick". Too short for any search, it gives the best of the fixed strategies, with a
            ``UserWarning`` and a note that say so. None: no clock is read, ``effort`` alone counts.
        effort: how much work the search may do, counted and not timed: the same program, options and versions give the
            same plan and the same proven gap on a busy machine as on an idle one. "quick": within 1 % is enough, a few
            seconds. "default": within 0.1 % is enough, after the work of about half a second within 1 %, and after
            that of 8 seconds within 2 %; where memory is short it may leave more open (``plan.optimality_gap``).
            "thorough": until proven optimal (to ``gap``), however long that takes; give ``time_limit`` with it.
        gap: stop when the proven relative gap is at most this.
        memory_limit: bytes per device, a number or text such as "40GB" (10^9) or "40GiB" (2^30), firm: where no plan
            meets it, that is an error. ``plan`` holds it by the planner's account; when the step is compiled (first
            run, ``lower``) and XLA needs more, it is planned again for less, up to three times; it warns where that is
            no help. None: the device's less a tenth; where no plan meets that, the cheapest plan is given with a note.
        prefer_less_memory: of the plans found within 5 % of the least seconds the one with the smallest peak (OneFlow's
            ``enable_auto_memory``, its mildest mode: less memory, throughput maintained).
        ignore_user_sbp: do not obey pins: ``to_global`` and JAX's sharding constraints in the function, ``in_sbp``,
            ``out_sbp`` (OneFlow's
            ``enable_auto_parallel_ignore_user_sbp_config``).
        computation_cost_ratio: weight of compute seconds against boxing seconds (OneFlow's
            ``set_auto_parallel_computation_cost_ratio``, there 0.05 of its own unit). None: 1, physical seconds.
            Below 1 moving data counts for more. ``plan.objective`` is the weighted sum, ``plan.step_seconds`` stays
            physical.
        wait_time: seconds added to the objective for every boxing in which devices talk, however few its bytes
            (OneFlow's ``set_auto_parallel_wait_time``): larger, fewer transfers. None: 0, for the cluster's latencies
            are in the costs already.
        trunk_algo: take from that wait what compute on the trunk, the longest path through the program, covers: a
            branch off the trunk may wait while the trunk computes (OneFlow's ``enable_auto_parallel_trunk_algo``).
            Without ``wait_time`` it does nothing.
        sbp_collector: let a value with several readers be held in two signatures at once while searching, each boxed
            once (OneFlow's ``enable_auto_parallel_sbp_collector``). False: one shared signature, what readers need
            beyond it priced for each alone. A larger search for a better plan, rarely by much.
        zero_stage: ZeRO's stages as pins, with any solver. None: the planner's choice. 0: optimizer state has its
            parameter's signature. 1: optimizer state is split along every mesh axis that divides some dim of it. 2:
            gradients as well, where the update reads them (reduce-scattered, never whole). 3: parameters as well,
            gathered where they are used. Leaves too short to be split are as nearly split as can be, and noted; a
            user's pin on a leaf wins. Needs the training state donated.
        cluster: a preset's name, a ``Cluster``, or a path to its TOML; None: detected.
        narrow_partial: allow a partial sum to be converted to a narrower float before it is reduced (float32 gradients
            reduced as bfloat16, say): fewer bytes, but every term is rounded, so results change.
        pad: let the planner split dimensions that do not divide (a batch of 30 over 8 devices, a vocabulary of 50,257):
            devices hold pieces padded to the longest one, and what lies in the padding reaches no result. Only inside
            the function: arguments and results are arrays of their own shapes, split evenly or whole (a ``jax.Array``
            has no uneven pieces). False: where that may cost much of the step, a note says what padding would give.
        overlap: on hardware that runs collectives beside compute (GPUs), also search at prices of what sticks out of
            compute, and take the plan whose simulated step (``plan.simulate()``) is the shortest; the plans of the
            fixed strategies are compared too. ``plan.priced`` says what ``plan.objective`` is then. False: the plan of
            the least sum of compute and boxing, in less time. Only with ``solver="ilp"`` and without OneFlow's weights.
        remat: "auto": where memory is short, the planner also chooses what of the forward part to make again in the
            backward part. None: what the function itself says (``jax.checkpoint``).
        rewrite: a search for a program that computes the same and takes less, one of
            ``sbp.planner.solvers().of("rewriting")``. "taso" puts parallel products and convolutions together, changes
            the order of products, removes transposes and concatenations. Each substitution is tested on random programs
            before it is used; results are equal but for rounding. The plan's notes say what was done and what it saves;
            where nothing saves, the program stays. Not with ``pipeline``. None: the program as it was written.
        rewrite_options: the options of that search, by name, as ``print(sbp.planner.solvers()[name])`` lists them.
        lowering: what the plan becomes. "manual": one ``shard_map`` with every collective written out; XLA decides
            nothing, and ``plan.verify`` checks it. "gspmd": the plan's signatures as sharding constraints, and XLA's
            partitioner chooses the collectives between them; partial values stay explicit. There ``plan.verify``
            reports what XLA added and left out.
        cache: a folder (made for you alone, if it is not there) in which plans are kept, and found again by any process
            that asks the same: the same program by its fingerprint, placement, hardware, pins and options, the same
            versions. A plan that was found says so in its notes and in ``statistics["from_cache"]``; a damaged entry is
            made anew, with a note. None: no plan is kept.
        compiler_options: options for XLA, as ``jax.jit(compiler_options=...)`` takes them: a mapping from names to
            values, ``{"xla_gpu_enable_latency_hiding_scheduler": True}``. They win over the defaults by name; None as a
            value removes a default. Defaults on GPUs: the latency-hiding scheduler and the pipelining of collectives,
            unless ``XLA_FLAGS`` names them; on CPUs: what keeps XLA to the plan's memory. A name or value that XLA
            refuses is an ``SbpError`` before planning starts. They are no part of the plan.
        pipeline: ``sbp.Pipeline(stages=, microbatches=, schedule=)``: the step is cut into stages on groups of devices,
            each planned on its own, and the batch into micro-batches. None: one program on all devices.
        grad_accumulation: see the architecture; not built yet.
    """

    solver: str = "ilp"
    solver_options: Mapping[str, Any] | None = field(default=None, hash=False)
    time_limit: float | None = None
    effort: str = "default"
    gap: float = 0.0
    memory_limit: float | str | None = None
    prefer_less_memory: bool = False
    ignore_user_sbp: bool = False
    computation_cost_ratio: float | None = None
    wait_time: float | None = None
    trunk_algo: bool = True
    sbp_collector: bool = False
    zero_stage: int | None = None
    cluster: str | Path | Cluster | None = None
    narrow_partial: bool = False
    pad: bool = False
    overlap: bool = True
    grad_accumulation: int = 1
    remat: Literal["auto"] | None = None
    rewrite: str | None = None
    rewrite_options: Mapping[str, bool | int | float | str] | None = field(default=None, hash=False)
    lowering: Lowering = "manual"
    cache: str | Path | None = None
    compiler_options: Mapping[str, bool | int | float | str | None] | None = field(default=None, hash=False)
    pipeline: Pipeline | None = None

    def plan_options(self) -> dict[str, Any]:
        """What is asked of the plan itself: options with other values than their defaults, by name."""
        asked = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_OF_THE_PLAN}
        return {f.name: asked[f.name] for f in fields(self) if f.name in asked and asked[f.name] != f.default}

    def __post_init__(self) -> None:
        method = lookup(self.solver)  # raises for names that are not known
        if self.solver_options is not None:
            if not isinstance(self.solver_options, Mapping):
                raise PlanError(f"solver_options is a dict of options by name, got {self.solver_options!r}")
            checked = method.checked(self.solver_options)
            object.__setattr__(self, "solver_options", {name: checked[name] for name in self.solver_options})
        self._check_rewrite()
        defaults = {f.name: f.default for f in fields(AutoParallelConfig)}
        unbuilt = [name for name in ("grad_accumulation",) if getattr(self, name) != defaults[name]]
        if unbuilt:
            raise PlanError(f"not built yet: {', '.join(unbuilt)}; leave them at their defaults")
        if self.pipeline is not None and not isinstance(self.pipeline, Pipeline):
            raise PlanError(f"pipeline is a sbp.Pipeline(stages=..., microbatches=...), got {self.pipeline!r}")
        if self.pipeline is not None and self.lowering != "manual":
            raise PlanError('a pipeline is cut out of the manual lowering: leave lowering="manual" with pipeline=')
        if self.remat not in (None, "auto"):
            raise PlanError(
                f"remat is None or 'auto', got {self.remat!r}; to choose yourself what is made again, wrap parts of "
                "the function in jax.checkpoint"
            )
        if self.lowering not in ("manual", "gspmd"):
            raise PlanError(
                f"lowering is 'manual' (explicit collectives) or 'gspmd' (sharding constraints for XLA's partitioner); "
                f"got {self.lowering!r}"
            )
        if self.cache is not None and not (isinstance(self.cache, str | Path) and str(self.cache)):
            raise PlanError(f"cache is a folder, a str or a pathlib.Path; got {self.cache!r}")
        if self.compiler_options is not None:
            object.__setattr__(self, "compiler_options", _checked_options(self.compiler_options))
        if self.pad and self.lowering == "gspmd":
            raise PlanError(
                "pad=True makes pieces of different lengths, which sharding constraints cannot say: use "
                'lowering="manual" with it, or pad the arrays yourself'
            )
        if not (isinstance(self.effort, str) and self.effort in EFFORTS):
            possible = ", ".join(map(repr, EFFORTS))
            raise PlanError(f"effort is one of {possible} (how much work the search may do); got {self.effort!r}")
        for name in ("time_limit", "wait_time", "computation_cost_ratio", "gap"):
            value: Any = getattr(self, name)
            if value is not None and not isinstance(value, Real):
                unit = " of seconds" if "time" in name else ""
                raise PlanError(f"{name} is a number{unit}, 0 or more, or None; got {value!r}")
            if value is not None and not float(value) >= 0:
                raise PlanError(f"{name} must be 0 or more; got {value!r}")
        if self.zero_stage is not None and (isinstance(self.zero_stage, bool) or self.zero_stage not in (0, 1, 2, 3)):
            raise PlanError(f"zero_stage is None (the planner's choice), 0, 1, 2 or 3; got {self.zero_stage!r}")
        if isinstance(self.memory_limit, str):
            object.__setattr__(self, "memory_limit", parse_bytes(self.memory_limit, "memory_limit"))
        limit = self.memory_limit_bytes
        if limit is not None and not (isinstance(limit, Real) and float(limit) > 0):
            raise PlanError(f"memory_limit is bytes per device, more than 0; got {self.memory_limit!r}")
        if self.cluster is not None:
            get(self.cluster)  # raises for names that are not known

    def _check_rewrite(self) -> None:
        if self.rewrite_options is not None and not isinstance(self.rewrite_options, Mapping):
            raise PlanError(f"rewrite_options is a dict of options by name, got {self.rewrite_options!r}")
        if self.rewrite is None:
            if self.rewrite_options:
                raise PlanError(
                    f"rewrite_options={dict(self.rewrite_options)!r} without a search that they are of: name it with "
                    "rewrite='taso'"
                )
            return
        lookup(self.rewrite, "rewriting").checked(self.rewrite_options)
        if self.rewrite_options is not None:
            object.__setattr__(self, "rewrite_options", dict(self.rewrite_options))
        if self.pipeline is not None:
            raise PlanError(
                f"rewrite={self.rewrite!r} rewrites one program for all devices, and a pipeline cuts the step into "
                "several: leave rewrite out with pipeline="
            )

    @property
    def memory_limit_bytes(self) -> float | None:
        """The limit as a number."""
        limit: Any = self.memory_limit
        return limit


def _checked_options(given: Any) -> dict[str, bool | int | float | str | None]:
    """Options for XLA as a dict of our own, in the order of their names. Whether XLA knows them, only XLA can say."""
    if not isinstance(given, Mapping):
        raise SbpError(
            f"compiler_options is a mapping from XLA's names to values, {{'xla_gpu_enable_latency_hiding_scheduler': "
            f"True}}; got {given!r}"
        )
    for name, value in given.items():
        if not isinstance(name, str):
            raise SbpError(f"compiler_options: names are text, XLA's flags without the dashes; got {name!r}")
        if name.startswith("-") or "=" in name:
            bare, _, text = name.lstrip("-").partition("=")
            raise SbpError(
                f"compiler_options: names are XLA's flags without dashes and without a value; got {name!r}. "
                f"Write {{{bare!r}: {text or value!r}}}"
            )
        if value is not None and not isinstance(value, bool | int | float | str):
            raise SbpError(
                f"compiler_options[{name!r}] is True, False, a number, text, or None (to remove a default); "
                f"got {value!r}"
            )
    return dict(sorted(given.items()))


def parse_bytes(text: str, what: str) -> float:
    """``40GiB``, ``16 GB``, ``1.5e9``. Raises ``SbpError`` naming ``what``, an option."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match.group(2) not in _UNITS:
        raise SbpError(f"{what} {text!r}: write bytes with a unit or without: 40GiB (2^30), 40GB (10^9), 16e9")
    return float(match.group(1)) * _UNITS[match.group(2)]
