"""A function that runs by a plan. Trace, plan, lower, compile once; then as fast as ``jax.jit``."""

import copy
import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from .. import processes
from .._compat import is_staging, is_tracing, looks_for_nans, trace_context
from ..calls import capture, values
from ..calls.path_pins import PinDict
from ..calls.roles import ArgumentRoles, Call
from ..calls.values import as_arrays, has_tensors
from ..differences import differences, some
from ..errors import PlanError
from ..pipeline.cuts.marks import check_unmarked
from ..placement import Placement, placement
from ..plan import PlanData
from ..planner import (
    Request,
    as_rewritten,
    best_of,
    candidates,
    compare_with_padding,
    follow,
    hide_boxing,
    make_plan,
    plan_or_rewrite,
    plan_to_fit,
)
from ..shardings import PlacementLike
from ..signature import Signature
from ..step.compiler_options import check_options
from ..step.fits import account, fit, tell
from ..step.jitted import LoweredStep, NamedStep, OtherCall, check_devices, lower_step, lowered_step
from ..step.plan import Plan
from ..trace import fingerprint, is_planned_here, recompute, without_collecting
from . import agreed
from .config import AutoParallelConfig
from .given_plan import check_given
from .placed import is_placed, placed
from .plan_cache import read_or_make
from .progress import Progress
from .request import asked_placement, request_for, requests_on

_REPLAN_WARNING = 4


class ParallelFunction:
    """A function that runs by a plan. Calls like the function; ``plan`` and ``lower`` as well."""

    def __init__(
        self,
        fn: Callable[..., Any],
        where: PlacementLike | int | str | None,
        config: AutoParallelConfig,
        roles: ArgumentRoles,
        in_sbp: Any,
        out_sbp: Any,
        pins: PinDict | None,
        given: PlanData | None,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._config, self._roles = fn, config, roles
        self._name = roles.name
        self._placement = self._asked = asked_placement(where)
        self._in_sbp, self._out_sbp, self._pins, self._given = in_sbp, out_sbp, pins, given
        self.argument_names: tuple[str, ...] | None = None
        """What reports call the arguments given by position, where the function's own names say nothing."""
        self._entries: dict[Any, LoweredStep] = {}
        self._plans: dict[Any, PlanData] = {}
        self._n_again = 0
        self._looks: list[dict[str, Any]] = []
        # The last entry that ran, and the one to try without looking, after two calls of the same.
        self._previous: LoweredStep | None = None
        self._last: LoweredStep | None = None
        self._lock = threading.RLock()
        # Whether this process plans for itself, though others may have devices of the placement; whether it warns.
        self._is_alone, self._is_first = False, True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        last, tracing = self._last, is_tracing()
        if last is not None and not kwargs and not self._roles.has_static and not tracing and last.takes(args):
            try:
                return last.run(*args, ({}, last.constants))
            except OtherCall:
                pass
            except (ValueError, TypeError):
                if not has_tensors((args, kwargs)):
                    call = self._call(args, kwargs)
                    if self._entries.get(self._key(call)) is last and is_placed(last, call):
                        raise
        elif tracing and is_planned_here():
            return self._fn(*args, **kwargs)
        call = self._call(args, kwargs)
        entry = self._entry(call)
        check_devices(entry.plan)
        if not (tracing or entry.is_checked):
            entry = self._fitted(call, entry, self._is_alone, lambda x: x.jitted.lower(*placed(x, call, self._name)))
        arguments = placed(entry, call, self._name)
        if tracing:
            # Below jax.grad and jax.vmap JAX can name the op that made a nan only if it sees the ops.
            is_debugged = looks_for_nans() and not is_staging()
            return (entry.unplanned if is_debugged else entry.nested)(*arguments)
        self._last = entry if self._previous in (None, entry) else None
        self._previous = entry
        return entry.run(*arguments)

    def __repr__(self) -> str:
        where = "every visible device" if self._placement is None else self._placement
        return f"<{self._name} run by a plan on {where}: {len(self._plans)} plan(s) made>"

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments (arrays or ``jax.ShapeDtypeStruct``); made once for each set of shapes. With a
        memory limit a run, or ``lower``, may replace it: see ``AutoParallelConfig.memory_limit``."""
        return self._entry(self._call(args, kwargs)).plan

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit``'s: ``.compile()`` gives ``.as_text()``, ``.memory_analysis()``."""
        call = self._call(args, kwargs)
        entry = self._entry(call)
        if not (entry.is_checked or entry.is_shared):  # what others run, too, is looked at when all run it
            entry = self._fitted(call, entry, True, lambda x: lower_step(x, call.dynamic, call.kwargs))
        return lower_step(entry, call.dynamic, call.kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The results' shapes and dtypes, as ``jax.eval_shape``: nothing is planned. Static arguments stay Python's."""
        call = self._call(args, kwargs)
        return capture.results_of(self._fn, call.args, call.kwargs, call.static, call.fixed)

    def with_options(
        self, placement: Any, config: AutoParallelConfig | None, donate_argnums: Any, donate_argnames: Any,
        static_argnums: Any, static_argnames: Any, in_sbp: Any, out_sbp: Any, pins: Any,
    ) -> "ParallelFunction":  # fmt: skip
        """The same function with other options; those that are None stay. Itself where all are."""
        marked = donate_argnums, donate_argnames, static_argnums, static_argnames
        if all(x is None for x in (placement, config, *marked, in_sbp, out_sbp, pins)):
            return self
        other = ArgumentRoles.of(self._fn, *marked)
        roles = replace(
            self._roles,
            static=self._roles.static if static_argnums is None and static_argnames is None else other.static,
            donated=self._roles.donated if donate_argnums is None and donate_argnames is None else other.donated,
        )
        return ParallelFunction(
            self._fn, self._asked if placement is None else placement, config or self._config, roles,
            self._in_sbp if in_sbp is None else in_sbp, self._out_sbp if out_sbp is None else out_sbp,
            self._pins if pins is None else pins, None,
        )  # fmt: skip

    def bare(self) -> tuple[Any, Any]:
        """The jitted function that the last call ran, and the argument that it takes after the function's own."""
        if self._previous is None:
            raise PlanError(f"{self._name} has not run yet: call it once")
        return self._previous.jitted, ({}, self._previous.constants)

    def _call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        """A call taken apart; global tensors among its values as their logical arrays."""
        call = self._roles.call(args, kwargs)
        if has_tensors((call.dynamic, call.kwargs)):
            some = tuple(x if i in call.static else as_arrays(x) for i, x in enumerate(call.args))
            call = replace(call, args=some, kwargs=as_arrays(call.kwargs))
        return call

    @property
    def _n_planned(self) -> int:
        """How many plans were made, but for those that were made again for less memory."""
        return len(self._plans) - self._n_again

    def _names(self, call: Call) -> tuple[str, ...]:
        return self._roles.names(call) if self.argument_names is None else self.argument_names

    def _taken_apart(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = self._call(args, kwargs)
        return call.dynamic, call.kwargs

    def _key(self, call: Call) -> Any:
        leaves, tree = jax.tree.flatten((call.dynamic, call.kwargs))
        try:
            looks = tuple(map(values.look, leaves))
        except (TypeError, ValueError) as error:
            values.check_arrays(self._name, call.dynamic, call.kwargs, self._names(call), error)
            raise
        statics = tuple([values.typed(call.args[i]) for i in call.static])
        fixed = tuple(sorted((k, values.typed(x)) for k, x in call.fixed.items())) if call.fixed else ()
        return tree, call.static, statics, fixed, looks, trace_context()

    def _entry(self, call: Call) -> LoweredStep:
        key = self._key(call)
        entry = self._entries.get(key)
        if entry is None:
            with self._lock:  # one plan for each, and one mesh for all
                entry = self._entries.get(key)
                if entry is None:
                    known, look = self._n_planned, values.described(call)
                    entry = self._entries[key] = self._make(call)
                    if self._is_first and self._n_planned > max(known, _REPLAN_WARNING):
                        told = some(min((differences(x, look) for x in reversed(self._looks)), key=len))
                        warnings.warn(
                            f"{self._name} is planned and compiled for the {self._n_planned}th set of argument "
                            f"shapes ({told or 'the program is another'}); each takes a plan of its own. Pad the "
                            "arguments to few shapes, or plan ahead with .plan(...)",
                            stacklevel=3,
                        )
                    self._looks.append(look)
        return entry

    def _fitted(
        self, call: Call, entry: LoweredStep, is_alone: bool, lowered: Callable[[LoweredStep], Any]
    ) -> LoweredStep:
        """The entry that keeps within the user's memory limit as XLA compiles it, if one is found, from now on.
        ``is_alone``: other processes do not ask with this one."""
        config, limit = self._config, self._config.memory_limit_bytes
        if limit is None or not entry.plan.placement.can_compile:
            return entry

        def needs(step: LoweredStep) -> int | None:
            asked = None if is_alone else processes.request(agreed.members(self._asked_places))
            return agreed.first_says(asked, self._name, lambda: account(lowered(step).compile()))

        def again(less: float) -> LoweredStep:
            known = len(self._plans)
            step = self._planned(call, replace(config, memory_limit=less), tells_smallest=False)
            self._n_again += len(self._plans) - known
            return step

        with self._lock:
            if entry.is_checked:  # by another thread
                return self._entries[self._key(call)]
            fitted = fit(entry, limit, needs, None if self._given is not None else again)
            entry.is_checked = fitted.step.is_checked = True
            self._entries[self._key(call)] = fitted.step
            if self._is_first:
                tell(fitted, limit, stacklevel=3)
        return fitted.step

    def _make(self, call: Call) -> LoweredStep:
        return self._planned(call, self._config)

    @without_collecting()
    def _planned(self, call: Call, config: AutoParallelConfig, tells_smallest: bool = True) -> LoweredStep:
        """A plan for a call, lowered. ``tells_smallest``: whether an error names the smallest limit."""
        dynamic, kwargs = call.dynamic, call.kwargs
        asked = None if self._is_alone else processes.request(agreed.members(self._asked_places))
        self._is_first = asked is None or asked.is_first
        with Progress(self._name, self._is_first) as progress:
            progress("tracing")
            with agreed.telling(asked):
                self._check_compiler_options()
                program, in_tree, out_shape = capture.trace(
                    self._fn, call.args, kwargs, call.static, call.donated, call.fixed, call.donated_names,
                    self._names(call),
                )  # fmt: skip
            check_unmarked(program, self._name)
            out_tree = jax.tree.structure(out_shape)
            traced = program
            # Another static argument, another setting of JAX: often the same program.
            same = fingerprint(program), in_tree, out_tree, config.memory_limit_bytes

            def request_on(where: Placement) -> Request:
                pins = {}
                if not config.ignore_user_sbp:
                    padded = config.pad or (self._given is not None and bool(self._given.options.get("pad")))
                    pins = capture.pins(
                        traced, where, self._in_sbp, self._out_sbp, in_tree, out_shape, padded, self._pins,
                        self._names(call), not config.zero_stage,
                    )  # fmt: skip
                return replace(request_for(where, config, pins, progress), tell_smallest=tells_smallest)

            def facts(plan: str) -> dict[str, str]:
                pins = self._in_sbp, self._out_sbp, self._pins
                return agreed.facts_of(self._name, self._asked_places(), config, program, pins, plan)

            if same in self._plans:
                agreed.agree_on_same(asked, self._name, lambda: facts("made before"), program)
                data = copy.copy(self._plans[same])
            elif self._given is not None:
                with agreed.telling(asked):
                    given = check_given(
                        self._given, program, self._name, self._placement, config, lambda x: request_on(x).pins
                    )
                agreed.agree_on_same(asked, self._name, lambda: facts(f"given, {agreed.digest(given)}"), program)
                data = copy.copy(given)
            else:
                prepared: list[Any] = []

                def request_to_search(where: Placement) -> Request:
                    return replace(request_on(where), prepared=prepared)

                def plan_on(where: Placement) -> PlanData:
                    return plan_or_rewrite(program, request_to_search(where), self._name)

                def search() -> PlanData:
                    found = plan_on(places[0]) if len(places) == 1 else best_of(places, plan_on)
                    compare_with_padding(
                        *as_rewritten(program, request_on(found.placement), found), found,
                        lambda p, asked: plan_to_fit(p, asked, self._name),
                    )  # fmt: skip
                    found = hide_boxing(program, found, request_to_search(found.placement), self._name)
                    found.options = config.plan_options()
                    return found

                def make() -> PlanData:
                    if config.cache is None:
                        return search()
                    return read_or_make(program, requests_on(places, request_on), config, self._name, search)

                places = self._places()
                data = agreed.agree(asked, self._name, lambda: facts("to be made"), program, make)
            self._plans[same] = data
        origin = range(len(program.nodes))
        if data.rewritten is not None:
            program, origin = follow(program, data.rewritten)
        if data.recomputed is not None:
            program, of = recompute(program, data.recomputed.turn, data.recomputed.nodes)
            origin = [origin[o] if o >= 0 else -1 for o in of]
        self._placement = data.placement  # for all shapes of arguments the same
        data.in_tree, data.out_tree = in_tree, out_tree
        plan = Plan.of(replace(data, lowering=config.lowering))
        entry = lowered_step(
            program, plan, (dynamic, kwargs), out_tree, call.donated_positions, call.donated_names,
            plain=capture.of_dynamic(self._fn, call.args, call.static, call.fixed),
            compiler_options=config.compiler_options,
        )  # fmt: skip
        shapes = jax.tree.map(values.aval, (dynamic, kwargs))
        plan.compile = lambda: lower_step(entry, *shapes).compile()

        donated = call.donated_positions, call.donated_names

        def named() -> NamedStep:
            step = lowered_step(
                program, plan, shapes, out_tree, *donated, is_named=True,
                compiler_options=config.compiler_options,
            )  # fmt: skip
            return NamedStep(step, shapes, *donated)

        plan.named_step = functools.cache(named)
        plan.taken_apart = self._taken_apart
        if self._given is None:
            final = program

            def again(forced: Mapping[int, Signature]) -> PlanData:
                request = request_on(data.placement)
                pins = {k: request.pins[o] for k, o in enumerate(origin) if o in request.pins}
                request = replace(request, pins=pins, forced=forced, progress=lambda _: None)
                return replace(make_plan(final, request, self._name), lowering=plan.lowering)

            plan.again = again
            if "from_cache" in data.statistics or not self._is_first:
                same_call = self._of_shapes(call)
                plan.anew = lambda: self._by_itself(data.placement)._entry(same_call).plan
        return entry

    def _by_itself(self, where: Placement) -> "ParallelFunction":
        """The same, planned in this process for this process: no cache, no others to agree with."""
        config = replace(self._config, cache=None)
        made = ParallelFunction(
            self._fn, where, config, self._roles, self._in_sbp, self._out_sbp, self._pins, self._given
        )
        made._is_alone = True
        return made

    def _asked_places(self) -> list[Placement]:
        """What the processes must agree on: where to plan for."""
        return [self._given.placement] if self._given is not None else self._places()

    def _check_compiler_options(self) -> None:
        """Raises ``SbpError`` where XLA refuses some: before a plan is searched for, not when it is first run."""
        if not self._config.compiler_options:
            return
        for where in self._asked_places():
            if not where.is_abstract:
                check_options(self._config.compiler_options, where.mesh.devices.flat[0].platform)

    def _of_shapes(self, call: Call) -> Call:
        """A call that keeps no arrays alive."""
        args = [x if i in call.static else jax.tree.map(values.aval, x) for i, x in enumerate(call.args)]
        return replace(call, args=tuple(args), kwargs=jax.tree.map(values.aval, call.kwargs))

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
