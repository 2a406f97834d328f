"""A placed program as segments: ops of one device that run as one jitted function, values moved between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..errors import PlanError
from ..lower.plain import PlainEmitter
from ..planner.placing import Placeable, results_of
from ..trace import Lit, Op, Program, Structured, Value


@dataclass(frozen=True, slots=True)
class Segment:
    """Parts of a program that run together on one device: the ids of the values they take of others and give them."""

    device: int
    steps: tuple[Op | Structured, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]


def segments(program: Program, parts: Placeable, device: Sequence[int]) -> list[Segment]:
    """The segments in an order they can run in.

    An op's level is the number of changes of device on the longest way to it; the ops of one device and level are one
    segment, so a segment needs only earlier levels. What costs nothing to make is made in each that reads it.
    """
    graph = parts.graph
    level = [0] * len(graph)
    for v, before in enumerate(graph.before):
        level[v] = max((level[u] + (device[u] != device[v]) for u in before), default=0)
    members: dict[tuple[int, int], list[int]] = {}
    for v in range(len(graph)):
        members.setdefault((level[v], device[v]), []).append(v)
    order = {id(step): k for k, step in enumerate(program.graph.ops)}
    makers = {v.id: op for op in parts.free for v in op.outs}
    results = {x.id for op in program.output_ops for x in op.ins if isinstance(x, Value)}
    found = []
    for (_, d), ops in sorted(members.items()):
        steps = sorted((step for v in ops for step in parts.steps[v]), key=lambda x: order[id(x)])
        made = {v.id for step in steps for v in results_of(step)}
        takes, seen, queue = dict[int, None](), set[int](), [x for step in steps for x in step.reads]
        while queue:
            x = queue.pop()
            if x.id in seen or x.id in made:
                continue
            seen.add(x.id)
            if x.id in makers:
                queue += makers[x.id].reads
            else:
                takes[x.id] = None
        found.append((d, tuple(steps), tuple(sorted(takes)), made))
    read = [set(takes) for _, _, takes, _ in found]
    return [
        Segment(d, steps, takes, tuple(sorted(made & results.union(*read[:k], *read[k + 1 :]))))
        for k, (d, steps, takes, made) in enumerate(found)
    ]


class SegmentRun:
    """Runs a placed program on JAX's devices, one for each of the devices that ops are placed on."""

    def __init__(self, program: Program, parts: Placeable, device: Sequence[int], on: Sequence[Any]) -> None:
        self.program, self.on = program, on
        self.segments = segments(program, parts, device)
        self.makers = {v.id: op for op in parts.free for v in op.outs}
        self._values = {v.id: v for step in program.graph.ops for v in results_of(step)}
        self._functions = [self._function(s) for s in self.segments]
        self._constants: dict[tuple[int, int], Any] = {}

    def _function(self, segment: Segment) -> Any:
        emitter, wanted = PlainEmitter(self.makers), [self._values[i] for i in segment.gives]

        def run(*values: Any) -> list[Any]:
            return emitter.steps_on(segment.steps, dict(zip(segment.takes, values, strict=True)), wanted)

        return jax.jit(run)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Flat arguments to flat results, each on the device that made it; devices work beside each other."""
        program = self.program
        inputs = [op.outs[0].id for op in program.input_ops]
        values = dict(zip(inputs, [*arguments, *program.constants], strict=True))
        constants = set(inputs[len(arguments) :])
        there: dict[tuple[int, int], Any] = self._constants
        moved: dict[tuple[int, int], Any] = {}
        for segment, function in zip(self.segments, self._functions, strict=True):
            operands = []
            for i in segment.takes:
                kept = there if i in constants else moved
                if (i, segment.device) not in kept:
                    kept[i, segment.device] = jax.device_put(values[i], self.on[segment.device])
                operands.append(kept[i, segment.device])
            with jax.default_device(self.on[segment.device]):
                results = function(*operands)
            for i, y in zip(segment.gives, results, strict=True):
                values[i] = moved[i, segment.device] = y
        return [self._result(op.ins[0], values) for op in program.output_ops]

    def _result(self, x: Value | Lit, values: dict[int, Any]) -> Any:
        if isinstance(x, Value) and x.id in values:
            return jax.numpy.asarray(values[x.id])
        with jax.default_device(self.on[0]):
            if isinstance(x, Lit):
                return jax.numpy.asarray(np.asarray(x.literal, x.dtype))
            return jax.numpy.asarray(PlainEmitter(self.makers).steps_on((), values, [x])[0])


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
