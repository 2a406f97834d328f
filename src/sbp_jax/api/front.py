"""The front door: ``auto_parallel`` and ``plan``."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from ..calls.path_pins import PinDict
from ..calls.roles import ArgumentRoles
from ..errors import PlanError
from ..placement import Placement
from ..plan import PlanData
from ..shardings import PlacementLike
from ..step.plan import Plan
from .config import AutoParallelConfig
from .function import ParallelFunction
from .pipelined import PipelinedFunction


def auto_parallel(
    fn: Callable[..., Any] | None = None,
    *,
    placement: PlacementLike | int | str | None = None,
    config: AutoParallelConfig | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    in_sbp: Any = None,
    out_sbp: Any = None,
    pins: PinDict | None = None,
    plan: PlanData | None = None,
) -> Any:
    """Run ``fn`` (a training step, say) in parallel by a plan made from its shapes. Use as a decorator or a call.

    The first call traces, plans, compiles and runs; later calls cost what ``jax.jit``'s do.

    Args:
        fn: a function of arrays in trees, as for ``jax.jit``.
        placement: the devices as a named mesh, a ``sbp.placement`` or a ``jax.sharding.Mesh``; every visible device on
            one axis where left out. A number of devices, or "auto" for all: the planner also chooses the mesh's shape,
            of one axis or two. More devices than there are can be planned for where ``config.cluster`` names their
            hardware.
        config: options of the planner.
        donate_argnums, donate_argnames: arguments whose memory the results may take over, by number or by name (one
            follows from the other, as for ``jax.jit``). A donated argument and the result that replaces it share one
            signature, so a training loop never moves its state.
        static_argnums, static_argnames: arguments that are Python values, as for ``jax.jit``.
        in_sbp, out_sbp: pins: signatures, ``PartitionSpec``s or ``NamedSharding``s, for the arguments (a tuple, one
            entry for each; trees and prefixes of trees are accepted, None leaves free) and for the results.
        pins: signatures of arguments by path, ``{"head/kernel": "B, S(1)", "blocks/*/mlp/**": P("dp")}``: paths as
            plans print them or with the argument's name, which may be left out; ``*``, ``**`` and ranges as for
            ``sbp.flax.jit``. They count before ``in_sbp``; None leaves a value to the planner. What lies in an
            ``opt_state`` at the path and of the shape of a pinned parameter follows it.
        plan: run this plan, made elsewhere for the same function. Options beside it that say something else than the
            plan are errors; those left at their defaults say nothing.

    Returns:
        A callable with ``.plan(*args)`` and ``.lower(*args)``.

    Raises:
        SbpError: pins that cannot be or contradict each other, placements whose devices do not exist.
        PlanError: a plan for another function, or that disagrees with other options; memory that no plan meets.
    """
    if fn is None:
        return functools.partial(
            auto_parallel, placement=placement, config=config, donate_argnums=donate_argnums,
            donate_argnames=donate_argnames, static_argnums=static_argnums, static_argnames=static_argnames,
            in_sbp=in_sbp, out_sbp=out_sbp, pins=pins, plan=plan,
        )  # fmt: skip
    if not callable(fn):
        raise PlanError(f"auto_parallel takes a function, got {type(fn).__name__}")
    config = config or AutoParallelConfig(lowering="manual" if plan is None else plan.lowering)
    roles = ArgumentRoles.of(fn, donate_argnums, donate_argnames, static_argnums, static_argnames)
    if config.pipeline is not None:
        return PipelinedFunction(fn, placement, config, roles, in_sbp, out_sbp, pins, plan)
    return ParallelFunction(fn, placement, config, roles, in_sbp, out_sbp, pins, plan)


def plan(
    fn: Callable[..., Any],
    *args: Any,
    placement: PlacementLike | int | str | None = None,
    config: AutoParallelConfig | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    in_sbp: Any = None,
    out_sbp: Any = None,
    pins: PinDict | None = None,
    **kwargs: Any,
) -> Plan:
    """The plan for ``fn(*args)`` on ``placement``, from shapes alone: no device is touched.

    ``args`` are arrays or ``jax.ShapeDtypeStruct``. See ``auto_parallel`` for the options; of a function that it made,
    those left out here are the function's own. With ``AutoParallelConfig(pipeline=...)`` the answer is a
    ``PipelinePlan``, with a plan for each stage.
    """
    misplaced = next((x for x in args if isinstance(x, Placement | Mesh | AbstractMesh | AutoParallelConfig)), None)
    if misplaced is not None:
        name = "config" if isinstance(misplaced, AutoParallelConfig) else "placement"
        raise PlanError(
            f"sbp.plan takes {name}= by name, got {misplaced!s} among the arguments of the function: "
            f"sbp.plan(fn, *args, {name}=...)"
        )
    if isinstance(fn, ParallelFunction):
        return fn.with_options(
            placement, config, donate_argnums, donate_argnames, static_argnums, static_argnames, in_sbp, out_sbp, pins
        ).plan(*args, **kwargs)
    parallel = auto_parallel(
        fn, placement=placement, config=config, donate_argnums=donate_argnums, donate_argnames=donate_argnames,
        static_argnums=static_argnums, static_argnames=static_argnames, in_sbp=in_sbp, out_sbp=out_sbp, pins=pins,
    )  # fmt: skip
    return parallel.plan(*args, **kwargs)
