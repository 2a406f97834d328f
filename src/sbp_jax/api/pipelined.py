"""``auto_parallel`` with ``pipeline=``: a function that runs on stages."""

from dataclasses import dataclass
from typing import Any

import jax

from .._compat import is_tracing
from ..calls import capture, values
from ..calls.roles import Call
from ..errors import PlanError
from ..pipeline import PipelinePlan, PipelineStep, make_pipeline, make_step
from ..pipeline.make import Made
from ..pipeline.spmd import SpmdStep
from ..placement import Placement
from ..planner import Request
from ..step.jitted import weakened
from ..trace import Program
from .function import ParallelFunction
from .progress import Progress
from .request import request_for


@dataclass(slots=True)
class _Entry:
    """A planned instance of the function; its step is made when it is first to run."""

    made: Made
    program: Program
    out_tree: Any
    step: PipelineStep | SpmdStep | None = None


class PipelinedFunction(ParallelFunction):
    """A function that runs as a pipeline. Calls like the function; ``plan`` and ``close`` as well.

    A call returns when the step has ended. It cannot be traced (``jax.jit``, ``jax.grad``). With ``execution="actors"``
    every stage is a program of its own, so that it cannot be lowered as one; with "spmd" it can.
    """

    _kept: Any = None
    """What the last run before ``close`` did."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            raise PlanError(
                f"{self._name} runs as a pipeline, on several groups of devices: it cannot be traced by jax.jit, "
                "jax.grad or jax.vmap. Call it by itself, or take pipeline=None"
            )
        call = self._call(args, kwargs)
        entry: Any = self._entry(call)
        step = self._step(entry)
        leaves = jax.tree.leaves((call.dynamic, call.kwargs))
        stacked = entry.made.stacked
        values = [*leaves, *entry.program.constants]
        results = step(values) if stacked is None else stacked.joined(step(stacked.split(values)))
        if not step.is_shared:  # an array that is in other processes alone cannot be changed here
            results = list(map(weakened, results, entry.program.weak_results))
        return jax.tree.unflatten(entry.out_tree, results)

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """The pipeline's plan for these arguments (arrays or ``jax.ShapeDtypeStruct``), a ``sbp.PipelinePlan``."""
        entry: Any = self._entry(self._call(args, kwargs))
        plan: PipelinePlan = entry.made.plan
        return plan

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """With ``execution="spmd"``, as ``jax.jit``'s: ``.compile()`` gives ``.as_text()``, ``.memory_analysis()``.

        Raises:
            PlanError: the pipeline is run by actors.
        """
        if self._execution != "spmd":
            raise PlanError(
                f"{self._name} runs as a pipeline of several programs: there is no one program to lower; see "
                '.plan(...).stages, or take sbp.Pipeline(..., execution="spmd")'
            )
        entry: Any = self._entry(self._call(args, kwargs))
        return self._step(entry).lower()  # pyright: ignore[reportAttributeAccessIssue]

    def record(self) -> Any:
        """What the stages did in the last run, a ``sbp_jax.actors.Record``: spans, bubbles, a trace for Perfetto."""
        if self._execution == "spmd":
            raise PlanError(
                f'{self._name} runs with execution="spmd" as one program, in which nobody takes the times of stages: '
                'take jax.profiler.trace, or sbp.Pipeline(..., execution="actors"), whose .record() has them; '
                ".plan(...).timing has the predicted ones"
            )
        runs = [e.step.record for e in self._entries.values() if isinstance(e, _Entry) and e.step is not None]
        found = [r for r in (self._kept, *runs) if r is not None]
        if not found:
            raise PlanError(f"{self._name} has not run yet: call it once")
        return found[-1]

    def close(self) -> None:
        """End the threads of its actors. It starts them again when it is called."""
        for entry in self._entries.values():
            if isinstance(entry, _Entry) and entry.step is not None:
                self._kept = entry.step.record or self._kept
                entry.step.close()
                entry.step = None

    @property
    def _execution(self) -> str:
        options = self._config.pipeline
        return "actors" if options is None else options.execution

    def _step(self, entry: _Entry) -> PipelineStep | SpmdStep:
        with self._lock:
            if entry.step is None:
                places = entry.made.places
                if places[0].is_abstract:
                    raise PlanError(
                        f"{places[0]} is abstract: the pipeline of {self._name} is planned, and cannot run here. "
                        "Give it devices: placement=sbp.placement(type, ranks)"
                    )
                entry.step = make_step(entry.made, self._config.compiler_options, self._execution)
            return entry.step

    def _make(self, call: Call) -> Any:
        if self._given is not None:
            raise PlanError("plan= is for one program on all devices; a pipeline is planned anew: leave plan= out")
        places = self._places()
        if len(places) > 1:
            raise PlanError(
                'placement="auto" and a number of devices choose a mesh for one program; with pipeline= name the '
                "devices: sbp.placement(type, ranks) or sbp.placement.all(type)"
            )
        with Progress(self._name, True) as progress:
            progress("tracing")
            program, in_tree, out_shape = capture.trace(
                self._fn, call.args, call.kwargs, call.static, call.donated, call.fixed, call.donated_names,
                self._names(call),
            )  # fmt: skip

            def request_on(where: Placement, pinned: bool = True) -> Request:
                pins: Any = {}
                if pinned and not self._config.ignore_user_sbp:
                    pins = capture.pins(
                        program, where, self._in_sbp, self._out_sbp, in_tree, out_shape, self._config.pad, self._pins,
                        self._names(call), not self._config.zero_stage,
                    )  # fmt: skip
                return request_for(where, self._config, pins, progress)

            options = self._config.pipeline
            assert options is not None
            dynamic = jax.tree.map(values.aval, (*call.dynamic, *(call.kwargs[k] for k in sorted(call.kwargs))))
            returned = capture.returned_alike(dynamic, out_shape)
            made = make_pipeline(program, options, places[0], request_on, self._name, returned)
        self._placement = places[0]
        self._plans[len(self._plans)] = made.plan.stages[0]
        return _Entry(made, program, jax.tree.structure(out_shape))
