"""The planned step against plain data parallelism, on the devices there are: what ``sbp-jax bench`` does."""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from rich.filesize import decimal

from ..api import AutoParallelConfig
from ..calls import capture
from ..errors import SbpError
from ..lower.count import count_collectives
from ..placement import Placement
from ..step.plan import Plan
from .base import blaming
from .settings import indices, read_config, read_placement, read_target
from .target import Target, parallel

_WARMUP = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """One way to run the step: seconds to plan it, of its first call beyond a step (tracing and compiling), of a step
    (median); collectives and bytes each device sends in one."""

    plan_seconds: float
    compile_seconds: float
    step_seconds: float
    collectives: float
    sent_bytes: float


def bench(args: argparse.Namespace) -> None:
    """Time the step both ways, and print what was found."""
    if args.steps < 1:
        raise SbpError(f"--steps {args.steps}: at least 1")
    if args.args is None:
        raise SbpError("bench runs the step, so it needs arrays: --args module:function, a function that returns them")
    read = read_target(args, real=True)
    data = _data(args.data, read)
    where, config = read_placement(args, read), read_config(args, read.config)
    run = _objects if read.has_objects else _pure
    with blaming(read.name):
        ours, theirs, plan, difference = run(read, data, where, config, args.steps)
    figures = {
        "function": read.name, "placement": str(plan.placement), "steps": args.steps,
        "speedup": theirs.step_seconds / ours.step_seconds,
        "planned": dataclasses.asdict(ours), "data_parallel": dataclasses.asdict(theirs),
        "predicted_seconds": plan.step_seconds, "predicted_over_measured": plan.step_seconds / ours.step_seconds,
        "largest_relative_difference": difference,
    }  # fmt: skip
    print(json.dumps(figures) if args.json else _told(figures, ours, theirs))


def _pure(
    found: Target, data: Sequence[int], where: Any, config: AutoParallelConfig, steps: int
) -> tuple[Timing, Timing, Plan, float | None]:
    """A function of arrays: results are fed back as the arguments that they replace."""
    found, data = _without_statics(found, data)
    step = parallel(found, where, config)
    plan, planned = _timed(lambda: step.plan(*found.args))
    next_args, rest = _feedback(found)
    placed = _put(found.args, plan.partition_specs()[0], plan.placement)
    ours, our_rest = _time(step, placed, next_args, rest, steps, planned)
    placed = _put(found.args, _split_data(found.args, plan.placement, data), plan.placement)
    plain = jax.jit(found.fn, donate_argnums=found.donate)
    theirs, their_rest = _time(plain, placed, next_args, rest, steps, 0.0)
    return ours, theirs, plan, _difference(our_rest, their_rest)


def _objects(
    found: Target, data: Sequence[int], where: Any, config: AutoParallelConfig, steps: int
) -> tuple[Timing, Timing, Plan, float | None]:
    """A function of Flax objects, which it updates in place. Its data begins split, for both ways alike."""
    from flax import nnx

    from ..flax.variables import is_object

    step = parallel(found, where, config)
    plan, planned = _timed(lambda: step.plan(*found.args))

    def copied() -> tuple[Any, ...]:
        leaves, tree = jax.tree.flatten(found.args, is_leaf=is_object)
        graph, state = nnx.split(tuple(x for x in leaves if is_object(x)))
        whole = jax.tree.map(lambda x: PartitionSpec(), state)
        objects = iter(nnx.merge(graph, _put(state, whole, plan.placement)))
        args = jax.tree.unflatten(tree, [next(objects) if is_object(x) else x for x in leaves])
        split = _split_data(tuple(args[i] for i in data), plan.placement, range(len(data)))
        moved = dict(zip(data, _put(tuple(args[i] for i in data), split, plan.placement), strict=True))
        return tuple(moved.get(i, x) for i, x in enumerate(args))

    same, whole = (lambda args, results: args), jax.tree.leaves
    ours, our_result = _time(step, copied(), same, whole, steps, planned)
    theirs, their_result = _time(nnx.jit(found.fn, static_argnums=found.static), copied(), same, whole, steps, 0.0)
    return ours, theirs, plan, _difference(our_result, their_result)


def _timed(run: Callable[[], Plan]) -> tuple[Plan, float]:
    begun = time.perf_counter()
    return run(), time.perf_counter() - begun


def _told(figures: dict[str, Any], ours: Timing, theirs: Timing) -> str:
    rows = [("", "step", "planned in", "compiled in", "collectives", "bytes a device sends")]
    rows += [
        (name, _ms(t.step_seconds), _ms(t.plan_seconds), _ms(t.compile_seconds),
         f"{t.collectives:g}", decimal(round(t.sent_bytes)))
        for name, t in (("planned", ours), ("data parallel", theirs))
    ]  # fmt: skip
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    difference = figures["largest_relative_difference"]
    return "\n".join(
        [
            f"{figures['function']} on {figures['placement']}, median of {figures['steps']} steps",
            *("  " + "  ".join(f"{cell:>{w}}" for cell, w in zip(row, wide, strict=True)) for row in rows),
            f"  the planned step is {figures['speedup']:.2f} times as fast as plain jax.jit",
            f"  predicted {_ms(figures['predicted_seconds'])}, {figures['predicted_over_measured']:.2f} of "
            "what was measured",
            "  nothing that the steps return could be compared" if difference is None
            else f"  what the last steps return differs by {difference:.1e} of its largest number",
        ]
    )  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _data(text: str | None, found: Target) -> tuple[int, ...]:
    """Which arguments are data: those said, else those of arrays that are not donated, else the last."""
    dynamic = [i for i in range(len(found.args)) if i not in found.static]
    if found.has_objects:
        from ..flax.variables import is_object

        dynamic = [i for i in dynamic if not any(map(is_object, jax.tree.leaves(found.args[i], is_leaf=is_object)))]
    if text is None:
        return tuple(i for i in dynamic if i not in found.donate) if found.donate else tuple(dynamic[-1:])
    given = indices(text, "--data")
    if not set(given) <= set(dynamic):
        raise SbpError(f"--data {text!r}: {found.name} takes the arrays {', '.join(map(str, dynamic))}")
    return given


def _without_statics(found: Target, data: Sequence[int]) -> tuple[Target, tuple[int, ...]]:
    """The same function of its arrays only, and where its data is then."""
    dynamic = [i for i in range(len(found.args)) if i not in found.static]
    renumbered = {i: k for k, i in enumerate(dynamic)}

    def fn(*arrays: Any) -> Any:
        whole = list(found.args)
        for i, x in zip(dynamic, arrays, strict=True):
            whole[i] = x
        return found.fn(*whole)

    fn.__name__ = found.name
    return (
        dataclasses.replace(
            found, fn=fn, args=tuple(found.args[i] for i in dynamic), static=(),
            donate=tuple(renumbered[i] for i in found.donate),
        ),
        tuple(renumbered[i] for i in data),
    )  # fmt: skip


def _feedback(found: Target) -> tuple[Callable[[Any, Any], Any], Callable[[Any], list[Any]]]:
    """(arguments, results) -> the next step's arguments; results -> those that replace nothing, as the loss."""
    program, _, _ = capture.trace(found.fn, found.args, {}, (), found.donate)
    pairs = dict(program.donated)
    tree = jax.tree.structure(found.args)
    starts = np.cumsum([0, *(len(jax.tree.leaves(x)) for x in found.args)])
    lost = [k for i in found.donate for k in range(starts[i], starts[i + 1]) if k not in pairs]
    if lost:
        names = ", ".join(program.input_ops[k].label for k in lost[:3])
        raise SbpError(
            f"bench runs {found.name} step after step: what it donates must be replaced by its results, and nothing "
            f"replaces {names}{' ...' if len(lost) > 3 else ''}. Donate only the training state"
        )

    def next_args(args: Any, results: Any) -> Any:
        out = jax.tree.leaves(results)
        return jax.tree.unflatten(
            tree, [out[pairs[k]] if k in pairs else x for k, x in enumerate(jax.tree.leaves(args))]
        )

    fed = set(pairs.values())
    return next_args, lambda results: [x for k, x in enumerate(jax.tree.leaves(results)) if k not in fed]


def _put(args: Any, specs: Any, where: Placement) -> Any:
    """Copies of the arguments in their places: the steps use up those they are given."""
    mesh = where.mesh

    def put(x: Any, spec: PartitionSpec) -> Any:
        # may_alias=False would not do: where a device holds the array already, that copy is taken (jax 0.10.2).
        return jax.device_put(x.copy(), NamedSharding(mesh, spec)) if hasattr(x, "dtype") else x

    return jax.tree.map(put, args, specs)


def _split_data(args: Sequence[Any], where: Placement, data: Sequence[int]) -> Any:
    """Data along its first dimension over all devices, where that divides it; the rest whole."""
    every = PartitionSpec(tuple(where.axis_names))

    def spec(x: Any, is_data: bool) -> PartitionSpec:
        shape = np.shape(x)
        return every if is_data and shape and shape[0] and shape[0] % where.size == 0 else PartitionSpec()

    return tuple(jax.tree.map(lambda x, i=i: spec(x, i in data), arg) for i, arg in enumerate(args))


def _time(
    step: Any, args: Any, next_args: Callable[[Any, Any], Any], rest: Callable[[Any], list[Any]], steps: int,
    plan_seconds: float,
) -> tuple[Timing, list[Any]]:  # fmt: skip
    """The step's timing, and what its last run returned besides the state. Each step is waited for."""
    seconds = []
    with count_collectives() as count:
        begun = time.perf_counter()
        results = jax.block_until_ready(step(*args))
        first = time.perf_counter() - begun
    for _ in range(_WARMUP + steps):
        args = next_args(args, results)
        begun = time.perf_counter()
        results = jax.block_until_ready(step(*args))
        seconds.append(time.perf_counter() - begun)
    median = statistics.median(seconds[_WARMUP:])
    total = count.total
    return Timing(plan_seconds, max(first - median, 0.0), median, total.count, total.bytes), rest(results)


def _difference(a: Sequence[Any], b: Sequence[Any]) -> float | None:
    """The largest difference between numbers, relative to the largest of their array; None where there are none."""
    found = [
        float(jnp.max(jnp.abs(x - y)) / jnp.maximum(jnp.max(jnp.abs(y)), jnp.finfo(y.dtype).tiny))
        for x, y in zip(a, b, strict=True)
        if jnp.issubdtype(y.dtype, jnp.floating) and y.size
    ]
    return max(found) if found else None
