"""The front door: ``auto_parallel`` and ``plan``. Trace, plan, lower, compile once; then as fast as ``jax.jit``."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from . import capture
from . import cluster as clusters
from ._compat import is_tracer, is_tracing
from .config import AutoParallelConfig
from .errors import PlanError
from .lower import local_function
from .placement import Placement, placement, to_partition_spec
from .plan import PlanData
from .planned import Plan
from .planner import Request, best_of, candidates, fingerprint, make_plan, plan_to_fit
from .progress import Progress
from .signature import Signature
from .trace import Program, recompute

_REPLAN_WARNING = 3
_TIME_LIMIT_SECONDS = 60.0
_RESERVE = 0.1
# XLA for CPUs starts all that can start by default: every gathered parameter is held from the beginning, whatever the
# plan says. It also drops barriers, and with them rematerialisation. Compilers for accelerators do neither.
_COMPILER_OPTIONS: dict[str, dict[str, bool | str]] = {
    "cpu": {
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        "xla_disable_hlo_passes": "cse_barrier_expander",
    }
}


class _OtherShapes(Exception):
    """The jitted step was handed arguments that its plan is not for."""


@dataclass(slots=True)
class _Entry:
    """One planned and lowered instance of the function, for one set of argument shapes."""

    plan: Plan
    jitted: Any
    nested: Any
    """The same for use inside another trace, where JAX takes no compiler's options."""
    constants: Sequence[Any]
    shardings: Sequence[NamedSharding]


class ParallelFunction:
    """A function that runs by a plan. Calls like the function; ``plan`` and ``lower`` as well."""

    def __init__(
        self,
        fn: Callable[..., Any],
        where: Placement | int | str | None,
        config: AutoParallelConfig,
        donate_argnums: Sequence[int],
        static_argnums: Sequence[int],
        in_sbp: Any,
        out_sbp: Any,
        given: PlanData | None,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._config = fn, config
        self._name = getattr(fn, "__name__", type(fn).__name__)
        if not (where is None or where == "auto" or isinstance(where, Placement | int)) or isinstance(where, bool):
            raise PlanError(f"placement is a sbp.placement(...), a number of devices, or 'auto'; got {where!r}")
        self._placement = where
        self._donate, self._static = tuple(donate_argnums), tuple(static_argnums)
        self._in_sbp, self._out_sbp, self._given = in_sbp, out_sbp, given
        self._entries: dict[Any, _Entry] = {}
        self._last: _Entry | None = None
        self._out_trees: dict[Any, Any] = {}
        self._misses = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        last, tracing = self._last, is_tracing()
        if last is not None and not kwargs and not self._static and not tracing:
            try:
                return last.jitted(*args, ({}, last.constants))
            except _OtherShapes:
                pass
            except (ValueError, TypeError):
                if self._entries.get(self._key(args, kwargs)) is last and not self._misplaced(last, args, kwargs):
                    raise
        entry = self._entry(args, kwargs)
        args, kwargs = self._place(entry, args, kwargs)
        if tracing:
            return entry.nested(*self._dynamic(args), (kwargs, entry.constants))
        self._last = entry
        return entry.jitted(*self._dynamic(args), (kwargs, entry.constants))

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments (arrays or ``jax.ShapeDtypeStruct``); made once for each set of shapes."""
        return self._entry(args, kwargs).plan

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit``'s: ``.compile()`` gives ``.as_text()``, ``.memory_analysis()``."""
        entry = self._entry(args, kwargs)
        return _lower(entry, self._dynamic(args), kwargs)

    def bare(self) -> tuple[Any, Any]:
        """The jitted function that the last call ran, and the argument that it takes after the function's own."""
        if self._last is None:
            raise PlanError(f"{self._name} has not run yet: call it once")
        return self._last.jitted, ({}, self._last.constants)

    def _dynamic(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(x for i, x in enumerate(args) if i not in self._static)

    def _key(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        leaves, tree = jax.tree.flatten((self._dynamic(args), kwargs))
        statics = tuple(args[i] for i in self._static)
        return tree, statics, tuple(capture.aval(x) for x in leaves)

    def _entry(self, args: Sequence[Any], kwargs: dict[str, Any]) -> _Entry:
        key = self._key(args, kwargs)
        if key not in self._entries:
            if self._entries:
                self._misses += 1
                if self._misses > _REPLAN_WARNING:
                    warnings.warn(
                        f"{self._name} is planned and compiled for the {self._misses + 1}th set of argument shapes; "
                        "each takes a plan of its own. Pad the arguments to few shapes, or plan ahead with .plan(...)",
                        stacklevel=3,
                    )
            self._entries[key] = self._make(args, kwargs, key)
        return self._entries[key]

    def _make(self, args: Sequence[Any], kwargs: dict[str, Any], key: Any) -> _Entry:
        dynamic = self._dynamic(args)
        with Progress(self._name) as progress:
            progress("tracing")
            program, in_tree, out_shape = capture.trace(self._fn, args, kwargs, self._static, self._donate)
            out_tree = jax.tree.structure(out_shape)
            known = self._out_trees.setdefault(key[0], out_tree)
            if known != out_tree:
                raise PlanError(
                    f"{self._name} returned {known} before and returns {out_tree} now, for arguments of the same "
                    "structure: the results' structure must not change between calls"
                )
            traced = program

            def request_on(where: Placement) -> Request:
                pins = {}
                if not self._config.ignore_user_sbp:
                    pins = capture.pins(traced, where, self._in_sbp, self._out_sbp, in_tree, out_shape)
                return _request(where, self._config, pins, progress)

            if self._given is not None:
                data = _check_given(self._given, program, self._name)
            else:

                def plan_on(where: Placement) -> PlanData:
                    return plan_to_fit(program, request_on(where), self._name)

                places = self._places()
                data = plan_on(places[0]) if len(places) == 1 else best_of(places, plan_on)
        origin = range(len(program.nodes))
        if data.recomputed is not None:
            program, origin = recompute(program, data.recomputed.turn, data.recomputed.nodes)
        self._placement = data.placement  # for all shapes of arguments the same
        data.in_tree, data.out_tree = in_tree, out_tree
        plan = Plan.of(data)
        entry = _entry(program, plan, (dynamic, kwargs), out_tree, self._donate_positions())
        shapes = jax.tree.map(capture.aval, (dynamic, kwargs))
        plan.compile = lambda: _lower(entry, *shapes).compile()
        if self._given is None:
            final = program

            def again(forced: Mapping[int, Signature]) -> PlanData:
                request = request_on(data.placement)
                pins = {k: request.pins[o] for k, o in enumerate(origin) if o in request.pins}
                request = replace(request, pins=pins, forced=forced, progress=lambda _: None)
                return make_plan(final, request, self._name)

            plan.again = again
        return entry

    def _places(self) -> list[Placement]:
        """The placements to plan for; the first plan decides among them for good."""
        where = self._placement
        if isinstance(where, Placement):
            return [where]
        kind = jax.default_backend()
        if where is None:
            return [placement.all(kind)]
        visible = jax.device_count(kind)
        cluster = self._config.cluster
        return candidates(
            visible if where == "auto" else int(where), kind, visible, None if cluster is None else str(cluster)
        )

    def _donate_positions(self) -> tuple[int, ...]:
        return tuple(i - sum(s < i for s in self._static) for i in self._donate)

    def _place(self, entry: _Entry, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Move the arguments to where the plan wants them, once.

        A batch that is bound to no device is left to each call: the first one, placed here, would be compiled for on
        its own, for to JAX a program for arguments that lie somewhere is another (0.10.2).
        """
        dynamic = self._dynamic(args)
        leaves, tree = jax.tree.flatten((dynamic, kwargs))
        donated = self._donate_positions()
        kept = [i in donated for i, x in enumerate(dynamic) for _ in jax.tree.leaves(x)]
        kept += [False] * (len(leaves) - len(kept))
        placed = [
            x if _is_there(x, s) or not (keep or _is_bound(x, s)) else _moved(x, s)
            for x, s, keep in zip(leaves, entry.shardings, kept, strict=True)
        ]
        dynamic, kwargs = jax.tree.unflatten(tree, placed)
        supply = iter(dynamic)
        return tuple(x if i in self._static else next(supply) for i, x in enumerate(args)), kwargs

    def _misplaced(self, entry: _Entry, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        leaves = jax.tree.leaves((self._dynamic(args), kwargs))
        return any(not _is_there(x, s) for x, s in zip(leaves, entry.shardings, strict=True))


def auto_parallel(
    fn: Callable[..., Any] | None = None,
    *,
    placement: Placement | int | str | None = None,
    config: AutoParallelConfig | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    in_sbp: Any = None,
    out_sbp: Any = None,
    plan: PlanData | None = None,
) -> Any:
    """Run ``fn`` (a training step, say) in parallel by a plan made from its shapes. Use as a decorator or a call.

    The first call traces, plans, compiles and runs; later calls cost what ``jax.jit``'s do.

    Args:
        fn: a function of arrays in trees, as for ``jax.jit``.
        placement: the devices as a named mesh; every visible device on one axis where left out. A number of devices,
            or "auto" for all: the planner also chooses the mesh's shape, of one axis or two. More devices than there
            are can be planned for where ``config.cluster`` names their hardware.
        config: options of the planner.
        donate_argnums: arguments whose memory the results may take over. A donated argument and the result that
            replaces it share one signature, so a training loop never moves its state.
        static_argnums: arguments that are Python values, as for ``jax.jit``.
        in_sbp, out_sbp: pins: signatures, or ``PartitionSpec``s, for the arguments (a tuple, one entry for each; trees
            and prefixes of trees are accepted, None leaves free) and for the results.
        plan: run this plan, made elsewhere for the same function.

    Returns:
        A callable with ``.plan(*args)`` and ``.lower(*args)``.

    Raises:
        SbpError: pins that cannot be or contradict each other, placements whose devices do not exist.
        PlanError: a plan for another function, memory that no plan meets.
    """
    if fn is None:
        return functools.partial(
            auto_parallel, placement=placement, config=config, donate_argnums=donate_argnums,
            static_argnums=static_argnums, in_sbp=in_sbp, out_sbp=out_sbp, plan=plan,
        )  # fmt: skip
    if not callable(fn):
        raise PlanError(f"auto_parallel takes a function, got {type(fn).__name__}")
    return ParallelFunction(
        fn, placement, config or AutoParallelConfig(), _indices(donate_argnums), _indices(static_argnums), in_sbp,
        out_sbp, plan,
    )  # fmt: skip


def plan(
    fn: Callable[..., Any],
    *args: Any,
    placement: Placement | int | str | None = None,
    config: AutoParallelConfig | None = None,
    donate_argnums: int | Sequence[int] = (),
    in_sbp: Any = None,
    out_sbp: Any = None,
    **kwargs: Any,
) -> Plan:
    """The plan for ``fn(*args)`` on ``placement``, from shapes alone: no device is touched.

    ``args`` are arrays or ``jax.ShapeDtypeStruct``. Options as ``auto_parallel``'s, which see.
    """
    if isinstance(fn, ParallelFunction):
        fn = fn._fn
    parallel = auto_parallel(
        fn, placement=placement, config=config, donate_argnums=donate_argnums, in_sbp=in_sbp, out_sbp=out_sbp
    )
    return parallel.plan(*args, **kwargs)


def _indices(x: int | Sequence[int]) -> tuple[int, ...]:
    return (x,) if isinstance(x, int) else tuple(x)


def _is_there(x: Any, sharding: NamedSharding) -> bool:
    return isinstance(x, jax.Array) and not is_tracer(x) and x.sharding.is_equivalent_to(sharding, x.ndim)


def _is_bound(x: Any, sharding: NamedSharding) -> bool:
    """Whether a call would refuse an argument, or move it anew, as it is."""
    return not sharding.is_fully_addressable or (
        isinstance(x, jax.Array) and (is_tracer(x) or getattr(x, "committed", True))
    )


def _moved(x: Any, sharding: NamedSharding) -> Any:
    """``x`` in ``sharding``. ``device_put`` cannot take random keys to devices of other processes (JAX 0.10.2)."""
    if not sharding.is_fully_addressable and jnp.issubdtype(capture.aval(x).dtype, jax.dtypes.prng_key):
        return jax.jit(lambda key: key, out_shardings=sharding)(x)
    return jax.device_put(x, sharding)


def _request(where: Placement, config: AutoParallelConfig, pins: Any, progress: Callable[[str], None]) -> Request:
    hardware = clusters.resolve(config.cluster or where.cluster, where.type, where.is_abstract)
    return Request(
        placement=where,
        cluster=hardware,
        pins=pins,
        memory_limit_bytes=_memory(hardware) if config.memory_limit is None else config.memory_limit,
        limit_is_firm=config.memory_limit is not None,
        computation_ratio=config.computation_cost_ratio,
        solver=config.solver,
        gap=config.gap,
        time_limit=_TIME_LIMIT_SECONDS if config.time_limit is None else config.time_limit,
        thorough=config.time_limit is not None,
        narrow_partial=config.narrow_partial,
        remat=config.remat == "auto",
        zero_stage=config.zero_stage,
        prefer_less_memory=config.prefer_less_memory,
        wait_seconds=config.wait_time or 0.0,
        trunk_algo=config.trunk_algo,
        sbp_collector=config.sbp_collector,
        progress=progress,
    )  # fmt: skip


def _memory(hardware: clusters.Cluster) -> float:
    """What a plan may use of a device: the rest is for the runtime, communication buffers and fragmentation."""
    return hardware.device.memory_bytes * (1 - _RESERVE)


def _check_given(given: PlanData, program: Program, name: str) -> PlanData:
    found = fingerprint(program)
    if given.fingerprint != found:
        raise PlanError(
            f"the plan was made for another function or other shapes: it is for {given.function!r} "
            f"({given.fingerprint}), {name!r} with these arguments is {found}. Plan again for these arguments"
        )
    return given


def _entry(program: Program, plan: Plan, dynamic: Any, out_tree: Any, donate: tuple[int, ...]) -> _Entry:
    """The jitted step of a plan. On an abstract placement it can be planned only."""
    where = plan.placement
    n = len(plan.inputs) - len(program.constants)
    in_specs = [to_partition_spec(leaf.signature, where, len(leaf.shape)) for leaf in plan.inputs]
    out_specs = [to_partition_spec(leaf.signature, where, len(leaf.shape)) for leaf in plan.outputs]
    if where.is_abstract:
        return _Entry(plan, None, None, (), ())
    mesh = where.mesh
    body = jax.shard_map(
        local_function(program, plan), mesh=mesh, in_specs=tuple(in_specs), out_specs=list(out_specs), check_vma=False
    )
    shardings = [NamedSharding(mesh, spec) for spec in in_specs]
    # A compiled function does not cut results without elements, whatever it was asked (measured, JAX 0.10.2).
    made = [NamedSharding(mesh, spec if math.prod(leaf.shape) else PartitionSpec())
            for leaf, spec in zip(plan.outputs, out_specs, strict=True)]  # fmt: skip
    constants = tuple(jax.device_put(c, s) for c, s in zip(program.constants, shardings[n:], strict=True))
    expected = [(leaf.shape, leaf.dtype) for leaf in plan.inputs]

    def step(*arguments: Any) -> Any:
        *args, (kwargs, consts) = arguments
        leaves = [*jax.tree.leaves((tuple(args), kwargs)), *consts]
        if [(x.shape, str(x.dtype)) for x in leaves] != expected:
            raise _OtherShapes
        return jax.tree.unflatten(out_tree, body(*leaves))

    step.__name__ = step.__qualname__ = plan.function
    tree = jax.tree.structure(dynamic)
    args_shardings, kwargs_shardings = jax.tree.unflatten(tree, shardings[:n])
    jit = functools.partial(
        jax.jit,
        step,
        in_shardings=(*args_shardings, (kwargs_shardings, tuple(shardings[n:]))),
        out_shardings=jax.tree.unflatten(out_tree, made),
        donate_argnums=donate,
    )
    options = _COMPILER_OPTIONS.get(mesh.devices.flat[0].platform)
    return _Entry(plan, jit(compiler_options=options), jit(), constants, shardings[:n])


def _lower(entry: _Entry, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if entry.jitted is None:
        raise PlanError(
            f"{entry.plan.placement} is abstract: a plan for it can be read and saved, but not compiled here"
        )
    args, kwargs = jax.tree.map(capture.aval, (tuple(args), kwargs))
    return entry.jitted.lower(*args, (kwargs, entry.constants))
