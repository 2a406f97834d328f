"""Segments of a placed program as actors: a lane for each device and each link, a register for what a segment makes.

As in pipelines (``pipeline/run``): a device is a lane, which runs its segments in their order; between devices an actor
receives what one has made and another reads. Devices and links work at the same time. What was made is let go of as
soon as the last segment that reads it has it.
"""

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..actors import Actor, ActorGraph, Record, Runtime
from ..errors import PlanError
from ..lower.plain import PlainEmitter
from ..planner.placing import Placeable, results_of, sources
from ..trace import Lit, Program, Value
from .segments import Segment, result_values, segments


class _Made:
    """What a segment made, or what was received of it: by value what it is, and how often it is yet to be read.

    ``pending`` is what must be there before it counts as made.
    """

    __slots__ = ("_left", "_lock", "_values", "pending")

    def __init__(self, values: Mapping[int, Any], readers: Mapping[int, int], pending: Any) -> None:
        self._values = {i: x for i, x in values.items() if readers.get(i)}
        self._left = dict(readers)
        self._lock = threading.Lock()
        self.pending = pending

    def take(self, i: int) -> Any:
        """A value, for one of its readers."""
        with self._lock:
            self._left[i] -= 1
            return self._values[i] if self._left[i] else self._values.pop(i)


def _wait(made: _Made) -> None:
    jax.block_until_ready(made.pending)
    made.pending = None


class SegmentRun:
    """Runs a placed program on JAX's devices, one for each of the devices that ops are placed on.

    One call at a time: a second thread waits for the first. ``record`` is what the last run's actors did.
    """

    def __init__(
        self, program: Program, parts: Placeable, device: Sequence[int], order: Sequence[int],
        names: Sequence[str], on: Sequence[Any],
    ) -> None:  # fmt: skip
        self.program, self.names, self.on = program, names, on
        self.segments = segments(program, parts, device, order)
        self.record: Record | None = None
        self._makers = parts.makers
        self._values = {v.id: v for step in program.graph.ops for v in results_of(step)}
        self._functions = [self._function(s) for s in self.segments]
        self._inputs = [op.outs[0].id for op in program.input_ops]
        self._results = set(result_values(program, parts))
        self._there: dict[tuple[int, int], Any] = {}  # arguments by value and device
        self._constants: dict[tuple[int, int], Any] = {}
        self._found: dict[int, Any] = {}
        self._lock, self._is_wide = threading.Lock(), False
        self._runtime = Runtime(self._graph(), _wait)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Flat arguments to flat results, each on the device that made it."""
        with self._lock:
            # A setting of the calling thread, which the threads of the lanes do not have by themselves.
            self._is_wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
            try:
                self._place(arguments)
                self.record = self._runtime.run()
                known = {**dict(zip(self._inputs, [*arguments, *self.program.constants], strict=True)), **self._found}
                return [self._result(op.ins[0], known) for op in self.program.output_ops]
            finally:
                self._there.clear()
                self._found.clear()

    def close(self) -> None:
        """End the threads of its actors."""
        self._runtime.close()

    def _function(self, segment: Segment) -> Any:
        emitter, wanted = PlainEmitter(self._makers), [self._values[i] for i in segment.gives]

        def run(*values: Any) -> list[Any]:
            return emitter.steps_on(segment.steps, dict(zip(segment.takes, values, strict=True)), wanted)

        return jax.jit(run)

    def _graph(self) -> ActorGraph:
        maker = {i: k for k, s in enumerate(self.segments) for i in s.gives}
        at = [s.device for s in self.segments]
        # By segment and device that reads of it, how often each value is read there.
        read: list[dict[int, dict[int, int]]] = [{} for _ in self.segments]
        for s in self.segments:
            for i in s.takes:
                if i in maker:
                    there = read[maker[i]].setdefault(s.device, {})
                    there[i] = there.get(i, 0) + 1
        actors: list[Actor] = []
        orders: dict[str, list[tuple[str, int]]] = {}

        def add(name: str, act: Any, inputs: Sequence[str], lane: str, kind: str) -> None:
            actors.append(Actor(name, act, tuple(inputs), 1, lane, kind, indices=(0,)))
            orders.setdefault(lane, []).append((name, 0))

        def sent(k: int, d: int) -> str:
            return f"segment {k}" if at[k] == d else f"segment {k} to {self.names[d]}"

        for k, s in enumerate(self.segments):
            givers = {i: maker[i] for i in s.takes if i in maker}
            inputs = list(dict.fromkeys(givers.values()))
            places = {i: inputs.index(k) for i, k in givers.items()}
            mine = dict(read[k].get(s.device, {}))
            for d in read[k]:
                if d != s.device:
                    for i in read[k][d]:
                        mine[i] = mine.get(i, 0) + 1
            add(f"segment {k}", functools.partial(self._compute, k, places, mine), [sent(u, s.device) for u in inputs],
                self.names[s.device], "compute")  # fmt: skip
            for d, readers in sorted(read[k].items()):
                if d != s.device:
                    add(sent(k, d), functools.partial(self._receive, d, readers), [f"segment {k}"],
                        f"{self.names[s.device]} to {self.names[d]}", "receive")  # fmt: skip
        return ActorGraph(tuple(actors), {lane: tuple(order) for lane, order in orders.items()})

    def _place(self, arguments: Sequence[Any]) -> None:
        """Arguments on the devices that read them; constants are moved once."""
        given = dict(zip(self._inputs, [*arguments, *self.program.constants], strict=True))
        constants = set(self._inputs[len(arguments) :])
        for s in self.segments:
            for i in s.takes:
                kept = self._constants if i in constants else self._there
                if i in given and (i, s.device) not in kept:
                    kept[i, s.device] = jax.device_put(given[i], self.on[s.device])

    def _compute(self, k: int, places: Mapping[int, int], readers: Mapping[int, int], _: int, *given: _Made) -> _Made:
        """One segment. ``places``: by value the input that has it."""
        s = self.segments[k]
        operands = []
        for i in s.takes:
            if i in places:
                operands.append(given[places[i]].take(i))
            else:
                operands.append(self._there[i, s.device] if (i, s.device) in self._there else
                                self._constants[i, s.device])  # fmt: skip
        with jax.enable_x64(self._is_wide), jax.default_device(self.on[s.device]):
            results = self._functions[k](*operands)
        found = dict(zip(s.gives, results, strict=True))
        self._found |= {i: x for i, x in found.items() if i in self._results}
        return _Made(found, readers, results)

    def _receive(self, d: int, readers: Mapping[int, int], _: int, made: _Made) -> _Made:
        """What another device made, on this one."""
        with jax.enable_x64(self._is_wide):
            found = {i: jax.device_put(made.take(i), self.on[d]) for i in readers}
        return _Made(found, readers, list(found.values()))

    def _result(self, x: Value | Lit, known: Mapping[int, Any]) -> Any:
        if isinstance(x, Value) and x.id in known:
            return jax.numpy.asarray(known[x.id])
        with jax.default_device(self.on[0]):
            if isinstance(x, Lit):
                return jax.numpy.asarray(np.asarray(x.literal, x.dtype))
            operands = {i: jax.device_put(known[i], self.on[0]) for i in sources([x], self._makers)}
            return jax.numpy.asarray(PlainEmitter(self._makers).steps_on((), operands, [x])[0])


def jax_devices(names: Sequence[str], given: Sequence[Any] | None) -> Sequence[Any]:
    """The device of JAX for each; ``PlanError`` where there are too few."""
    if given is not None:
        return given
    there = jax.devices()
    if len(there) < len(names):
        raise PlanError(
            f"the ops are placed on {len(names)} devices ({', '.join(names)}), and JAX has {len(there)} of "
            f"{there[0].platform}: pass Devices(..., jax_devices=[...]), which may name one several times"
        )
    return there[: len(names)]
