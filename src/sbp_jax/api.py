"""The front door: ``auto_parallel`` and ``plan``. Trace, plan, lower, compile once; then as fast as ``jax.jit``."""

import copy
import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from . import capture
from ._compat import is_tracing, trace_context
from .arguments import is_bound, is_there, moved
from .config import AutoParallelConfig
from .errors import PlanError
from .given_plan import check_given
from .lowered import LoweredStep, OtherCall, lower_step, lowered_step
from .placement import Placement, placement
from .plan import PlanData
from .planned import Plan
from .planner import Request, best_of, candidates, make_plan, plan_to_fit
from .planning import asked_placement, request_for
from .progress import Progress
from .shardings import PlacementLike
from .signature import Signature
from .trace import fingerprint, recompute

_REPLAN_WARNING = 4


class ParallelFunction:
    """A function that runs by a plan. Calls like the function; ``plan`` and ``lower`` as well."""

    def __init__(
        self,
        fn: Callable[..., Any],
        where: PlacementLike | int | str | None,
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
        self._placement = asked_placement(where)
        self._donate, self._static = tuple(donate_argnums), tuple(static_argnums)
        self._in_sbp, self._out_sbp, self._given = in_sbp, out_sbp, given
        self._entries: dict[Any, LoweredStep] = {}
        self._plans: dict[Any, PlanData] = {}
        # The last entry that ran, and the one to try without looking, after two calls of the same.
        self._previous: LoweredStep | None = None
        self._last: LoweredStep | None = None
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        last, tracing = self._last, is_tracing()
        if last is not None and not kwargs and not self._static and not tracing:
            try:
                return last.jitted(*args, ({}, last.constants))
            except OtherCall:
                pass
            except (ValueError, TypeError):
                if self._entries.get(self._key(args, kwargs)) is last and not self._misplaced(last, args, kwargs):
                    raise
        entry = self._entry(args, kwargs)
        args, kwargs = self._place(entry, args, kwargs)
        if tracing:
            return entry.nested(*self._dynamic(args), (kwargs, entry.constants))
        self._last = entry if self._previous in (None, entry) else None
        self._previous = entry
        return entry.jitted(*self._dynamic(args), (kwargs, entry.constants))

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments (arrays or ``jax.ShapeDtypeStruct``); made once for each set of shapes."""
        return self._entry(args, kwargs).plan

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit``'s: ``.compile()`` gives ``.as_text()``, ``.memory_analysis()``."""
        entry = self._entry(args, kwargs)
        return lower_step(entry, self._dynamic(args), kwargs)

    def bare(self) -> tuple[Any, Any]:
        """The jitted function that the last call ran, and the argument that it takes after the function's own."""
        if self._previous is None:
            raise PlanError(f"{self._name} has not run yet: call it once")
        return self._previous.jitted, ({}, self._previous.constants)

    def _dynamic(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(x for i, x in enumerate(args) if i not in self._static)

    def _key(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        leaves, tree = jax.tree.flatten((self._dynamic(args), kwargs))
        statics = tuple([capture.typed(args[i]) for i in self._static])
        return tree, statics, tuple(map(capture.look, leaves)), trace_context()

    def _entry(self, args: Sequence[Any], kwargs: dict[str, Any]) -> LoweredStep:
        key = self._key(args, kwargs)
        entry = self._entries.get(key)
        if entry is None:
            with self._lock:  # one plan for each, and one mesh for all
                entry = self._entries.get(key)
                if entry is None:
                    known = len(self._plans)
                    entry = self._entries[key] = self._make(args, kwargs)
                    if len(self._plans) > max(known, _REPLAN_WARNING):
                        warnings.warn(
                            f"{self._name} is planned and compiled for the {len(self._plans)}th set of argument "
                            "shapes; each takes a plan of its own. Pad the arguments to few shapes, or plan ahead "
                            "with .plan(...)",
                            stacklevel=3,
                        )
        return entry

    def _make(self, args: Sequence[Any], kwargs: dict[str, Any]) -> LoweredStep:
        dynamic = self._dynamic(args)
        with Progress(self._name) as progress:
            progress("tracing")
            program, in_tree, out_shape = capture.trace(self._fn, args, kwargs, self._static, self._donate)
            out_tree = jax.tree.structure(out_shape)
            traced = program
            # Another static argument, another setting of JAX: often the same program.
            same = fingerprint(program), in_tree, out_tree

            def request_on(where: Placement) -> Request:
                pins = {}
                if not self._config.ignore_user_sbp:
                    pins = capture.pins(
                        traced, where, self._in_sbp, self._out_sbp, in_tree, out_shape, self._config.pad
                    )
                return request_for(where, self._config, pins, progress)

            if same in self._plans:
                data = copy.copy(self._plans[same])
            elif self._given is not None:
                given = check_given(
                    self._given, program, self._name, self._placement, self._config, lambda x: request_on(x).pins
                )
                data = copy.copy(given)
            else:

                def plan_on(where: Placement) -> PlanData:
                    return plan_to_fit(program, request_on(where), self._name)

                places = self._places()
                data = plan_on(places[0]) if len(places) == 1 else best_of(places, plan_on)
                data.options = self._config.plan_options()
            self._plans[same] = data
        origin = range(len(program.nodes))
        if data.recomputed is not None:
            program, origin = recompute(program, data.recomputed.turn, data.recomputed.nodes)
        self._placement = data.placement  # for all shapes of arguments the same
        data.in_tree, data.out_tree = in_tree, out_tree
        plan = Plan.of(replace(data, lowering=self._config.lowering))
        entry = lowered_step(program, plan, (dynamic, kwargs), out_tree, self._donate_positions())
        shapes = jax.tree.map(capture.aval, (dynamic, kwargs))
        plan.compile = lambda: lower_step(entry, *shapes).compile()
        if self._given is None:
            final = program

            def again(forced: Mapping[int, Signature]) -> PlanData:
                request = request_on(data.placement)
                pins = {k: request.pins[o] for k, o in enumerate(origin) if o in request.pins}
                request = replace(request, pins=pins, forced=forced, progress=lambda _: None)
                return replace(make_plan(final, request, self._name), lowering=plan.lowering)

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

    def _place(self, entry: LoweredStep, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
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
            x if is_there(x, s) or not (keep or is_bound(x, s)) else moved(x, s)
            for x, s, keep in zip(leaves, entry.shardings, kept, strict=True)
        ]
        dynamic, kwargs = jax.tree.unflatten(tree, placed)
        supply = iter(dynamic)
        return tuple(x if i in self._static else next(supply) for i, x in enumerate(args)), kwargs

    def _misplaced(self, entry: LoweredStep, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        leaves = jax.tree.leaves((self._dynamic(args), kwargs))
        return any(not is_there(x, s) for x, s in zip(leaves, entry.shardings, strict=True))


def auto_parallel(
    fn: Callable[..., Any] | None = None,
    *,
    placement: PlacementLike | int | str | None = None,
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
        placement: the devices as a named mesh, a ``sbp.placement`` or a ``jax.sharding.Mesh``; every visible device on
            one axis where left out. A number of devices, or "auto" for all: the planner also chooses the mesh's shape,
            of one axis or two. More devices than there are can be planned for where ``config.cluster`` names their
            hardware.
        config: options of the planner.
        donate_argnums: arguments whose memory the results may take over. A donated argument and the result that
            replaces it share one signature, so a training loop never moves its state.
        static_argnums: arguments that are Python values, as for ``jax.jit``.
        in_sbp, out_sbp: pins: signatures, ``PartitionSpec``s or ``NamedSharding``s, for the arguments (a tuple, one
            entry for each; trees and prefixes of trees are accepted, None leaves free) and for the results.
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
            static_argnums=static_argnums, in_sbp=in_sbp, out_sbp=out_sbp, plan=plan,
        )  # fmt: skip
    if not callable(fn):
        raise PlanError(f"auto_parallel takes a function, got {type(fn).__name__}")
    config = config or AutoParallelConfig(lowering="manual" if plan is None else plan.lowering)
    return ParallelFunction(
        fn, placement, config, _indices(donate_argnums), _indices(static_argnums), in_sbp,
        out_sbp, plan,
    )  # fmt: skip


def plan(
    fn: Callable[..., Any],
    *args: Any,
    placement: PlacementLike | int | str | None = None,
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
