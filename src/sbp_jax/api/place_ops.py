"""``sbp.place_ops``: the ops of a function on unlike devices, found by a search, shown, and run there."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from .. import drawing
from .._compat import is_tracing
from ..actors import Record
from ..calls import values
from ..calls.capture import trace
from ..drawing import Box, Drawing
from ..errors import PlanError
from ..planner.amounts import bytes_text, seconds_text
from ..planner.catalogue import lookup
from ..planner.placing import Devices, OpGraph, Placeable, PlacingTask, Policy, Timeline, placeable
from ..step.jitted import weakened
from ..trace import Program
from .segment_actors import SegmentRun, jax_devices

_FILL, _SENT = "#9ecae1", "#fdae6b"


@dataclass(frozen=True, eq=False)
class Placed:
    """The ops of a function on devices.

    Attributes:
        function: its name.
        solver: the method that placed them.
        devices: where.
        graph: the ops, in an order they can run in.
        timeline: the simulated run: when each op and transfer begins and ends, and each device's peak of bytes.
        bound: no placement of these ops takes less, in seconds; 0 where the method proves nothing.
        notes: what the method says.
    """

    function: str
    solver: str
    devices: Devices
    graph: OpGraph
    timeline: Timeline
    bound: float
    notes: tuple[str, ...]
    _call: tuple[Program, Placeable, Any, Any, Callable[[list[Any]], list[Any]]]

    @property
    def device_of(self) -> dict[str, str]:
        """By name of an op the name of its device."""
        return {op: self.devices.names[d] for op, d in zip(self.graph.names, self.timeline.device, strict=True)}

    @property
    def seconds(self) -> float:
        """What the simulated run takes."""
        return self.timeline.seconds

    @functools.cached_property
    def _run(self) -> SegmentRun:
        program, parts, _, _, _ = self._call
        on = jax_devices(self.devices.names, self.devices.jax_devices)
        return SegmentRun(program, parts, self.timeline.device, self.timeline.order, self.devices.names, on)

    def run(self, *args: Any) -> Any:
        """The function's results, each op computed on its device; results stay where they were made.

        Devices and links are lanes of actors (``sbp_jax.actors``), which work at the same time, each in the order of
        the simulated run; ``record`` says what they did. Returns when all is done.

        ``PlanError`` for arguments of other shapes or types than the ops were placed for, for too few JAX devices, and
        where it is traced (``jax.jit``, ``jax.grad``): place the transformed function instead.
        """
        if is_tracing():
            raise PlanError(
                f"{self.function} runs on several devices, by actors: it cannot be traced by jax.jit, jax.grad or "
                "jax.vmap. Place the transformed function, sbp.place_ops(jax.grad(fn), ...)"
            )
        _, _, expected, out_tree, pieces = self._call
        flat, tree = jax.tree.flatten((args, {}))
        shapes, in_tree = expected
        given = list(map(values.look, flat))
        if tree != in_tree or given != shapes:
            raise PlanError(
                f"{self.function} was placed for arguments {_shown(shapes)}, and is run with {_shown(given)}: place it "
                "again for these"
            )
        weak = self._call[0].weak_results
        return jax.tree.unflatten(out_tree, map(weakened, self._run(pieces(flat)), weak))

    def record(self) -> Record:
        """What devices and links did in the last run, with measured times: a picture, a trace.

        ``PlanError`` before the first run.
        """
        found = self._run.record if "_run" in self.__dict__ else None
        if found is None:
            raise PlanError(f"{self.function} has not run yet: call .run(...) once")
        return found

    def close(self) -> None:
        """End the threads of its actors; ``run`` starts others."""
        if "_run" in self.__dict__:
            self._run.close()
            del self.__dict__["_run"]

    def to_svg(self, width: float = 960.0) -> str:
        """The simulated run as a picture: a row for each device, low boxes for what is sent to it."""
        return drawing.to_svg(self._drawing(), width)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _drawing(self) -> Drawing:
        t, names, g = self.timeline, self.devices.names, self.graph
        rows = []
        for d, name in enumerate(names):
            boxes = [Box(float(t.start_seconds[v]), float(t.finish_seconds[v]), _FILL,
                         f"{g.names[v]}: {seconds_text(float(g.seconds[v, d]))}", g.names[v])
                     for v in t.order if t.device[v] == d]  # fmt: skip
            boxes += [Box(x.start_seconds, x.finish_seconds, _SENT,
                          f"{bytes_text(g.tensors[x.tensor].size_bytes)} of {g.names[g.tensors[x.tensor].maker]} "
                          f"from {names[x.source]}", is_low=True)
                      for x in t.transfers if x.target == d]  # fmt: skip
            rows.append((name, tuple(boxes)))
        return Drawing(f"{self.function} placed by {self.solver}", self.seconds, tuple(rows))

    def __str__(self) -> str:
        t, n = self.timeline, len(self.graph)
        proven = f"; no placement takes less than {seconds_text(self.bound)}" if self.bound else ""
        took = f"{seconds_text(self.seconds)} simulated{proven}"
        lines = [f"{self.function}: {n} ops on {len(self.devices)} devices by {self.solver!r}, {took}"]
        wide = max(map(len, self.devices.names))
        for d, name in enumerate(self.devices.names):
            own = [v for v in t.order if t.device[v] == d]
            busy = sum(float(self.graph.seconds[v, d]) for v in own)
            some = ", ".join(self.graph.names[v] for v in own[:4]) + (", ..." if len(own) > 4 else "")
            lines.append(f"{name:<{wide}}  {len(own):>3} ops, busy {seconds_text(busy)}, at most "
                         f"{bytes_text(float(t.peak_bytes[d]))} of {bytes_text(float(self.devices.limits[d]))}"
                         + (f": {some}" if own else ""))  # fmt: skip
        sent = sum(self.graph.tensors[x.tensor].size_bytes for x in t.transfers)
        lines.append(f"{len(t.transfers)} transfers of {bytes_text(sent)} in all")
        return "\n".join([*lines, *self.notes])


def place_ops(
    fn: Callable[..., Any], *args: Any, devices: Devices, solver: str | Policy = "heft",
    solver_options: Mapping[str, Any] | None = None, ops: int = 50,
) -> Placed:  # fmt: skip
    """Give every op of a function a device, among devices that may be unlike, so that one run of it is short.

    Each op runs whole on one device; solver ``"accpar_ratios"`` cuts ops into pieces first, larger ones for faster
    devices. (Devices that are alike are what ``auto_parallel`` splits ops over.) Seconds come from the library's cost
    model for each kind of device; arguments lie where they are read before the run begins.

    Args:
        fn: a function of arrays and trees of arrays.
        args: what it is called with; shapes (``jax.ShapeDtypeStruct``) do.
        devices: where ops may run.
        solver: a method of the family "placing" (``sbp.planner.solvers().of("placing")`` lists them), or a policy that
            was trained on other graphs (``sbp_jax.planner.placing.gdp.train``, ``placeto.train``, ``regal.train``).
        solver_options: its options by name.
        ops: small ops are merged with their neighbours until at most so many are left; pieces stay alone.

    Returns:
        a ``Placed``: which device has which op, the simulated run, ``run`` to run it.

    Raises:
        PlanError: the solver or an option is not known; no placement was found that fits in memory; the graph is too
            large for the method; the function has ops with effects.
    """
    named: Any = solver.name if isinstance(solver, Policy) else solver
    options = lookup(named, "placing").checked(solver_options)
    if not isinstance(devices, Devices):
        raise PlanError(f"devices={devices!r}: give sbp.Devices, such as sbp.Devices.of('a100-80', 'v100', 'host')")
    if isinstance(ops, bool) or not isinstance(ops, int) or ops < 1:
        raise PlanError(f"ops={ops!r}: give a whole number of at least 1, how many ops are left to place")
    name = getattr(fn, "__name__", type(fn).__name__)
    program, in_tree, out_shape = trace(fn, args, {}, (), ())
    parts = placeable(program, devices, ops)
    if isinstance(solver, Policy):
        if solver_options:
            raise PlanError(f"solver_options={dict(solver_options)!r}: a policy that is trained takes none")
        if len(devices) != len(solver.devices):
            raise PlanError(f"the policy was trained for {len(solver.devices)} devices, and there are {len(devices)}")
        found = replace(solver, devices=devices).place(parts.graph)
    else:
        found = lookup(solver, "placing").run(PlacingTask(parts.graph, devices, options, program))
    pieces: Callable[[list[Any]], list[Any]] = list
    if found.cut is not None:
        program, parts, pieces = found.cut.program, found.cut.parts, found.cut.arguments
    timeline = PlacingTask(parts.graph, devices).simulator.timeline(found.device, found.order)
    shapes = list(map(values.look, jax.tree.leaves(args)))
    call = program, parts, (shapes, in_tree), jax.tree.structure(out_shape), pieces
    return Placed(name, named, devices, parts.graph, timeline, found.bound_seconds, found.notes, call)


def _shown(shapes: list[Any]) -> str:
    return ", ".join(f"{t}{list(shape)}{' (weakly typed)' if weak else ''}" for shape, t, weak in shapes) or "none"
