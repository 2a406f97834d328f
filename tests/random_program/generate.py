"""The program of a seed: which types, which options, its body, its arguments."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

import sbp_jax as sbp

from . import effects, moving, nested, pointwise, reducing, types
from .scope import Scope, Shape, Shared, Var, Write, signature

MESHES = (*(((2,), (4,), (8,), (2, 2), (2, 4), (4, 2), (3,), (2, 3)) * 2), (2, 2, 2))
_MORE_MESHES = (*MESHES, (2, 2, 2), (2, 2, 2), (1, 4), (2, 1, 3), (7,))

_WEIGHTED: tuple[tuple[Write, float], ...] = (
    (pointwise.unary, 3), (pointwise.binary, 4), (pointwise.integers, 0.7), (pointwise.compare, 0.5),
    (pointwise.where, 1), (pointwise.booleans, 0.4), (pointwise.cast, 0.7), (reducing.matmul, 3),
    (reducing.einsum, 3), (reducing.reduction, 3), (reducing.integer_reduction, 0.5),
    (reducing.position_of_extreme, 0.6), (reducing.along_axis, 2), (reducing.order, 0.7), (reducing.top_k, 0.4),
    (moving.move, 4), (moving.triangle, 0.7), (moving.slices, 1.5), (moving.pad, 1), (moving.concatenate, 1.2),
    (moving.split_up, 0.5), (moving.lookup, 1.5), (moving.scatter, 1.5), (moving.dynamic_slices, 1),
    (pointwise.one_hot, 0.6), (pointwise.randoms, 0.4), (reducing.convolution, 0.8), (reducing.windows, 0.8),
    (nested.scan, 1), (nested.loop, 1), (nested.conditional, 0.8), (nested.wrapped, 0.8), (nested.mapped, 0.8),
)  # fmt: skip
# Of programs, how many are planned with ``rewrite="taso"``.
_REWRITTEN = 0.06
_NESTED = (nested.scan, nested.loop, nested.conditional, nested.wrapped, nested.mapped)


@dataclass
class Generated:
    """A program: its source, arguments, and how to plan, run and compare it.

    ``options`` are of ``AutoParallelConfig``; ``memory`` is a limit as a share of what the plan without one takes;
    ``exact`` and ``rounding`` are by result: whether no rounding has touched it, and the coarsest that has.
    """

    seed: int
    source: str
    args: tuple[Any, ...]
    mesh: Shape
    cluster: str
    in_sbp: list[str | None]
    out_sbp: list[str | None]
    exact: list[bool] = field(default_factory=list)
    rounding: list[float] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    memory: float | None = None
    x64: bool = False
    trains: bool = False

    def function(self, log: effects.Log | None = None) -> Callable[..., Any]:
        scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "sbp": sbp, "io_callback": io_callback}
        scope.update(effects.host([] if log is None else log))
        exec(compile(self.source, f"random_program_{self.seed}.py", "exec"), scope)
        return scope["program"]

    def __str__(self) -> str:
        lines = [f"# program {self.seed}: mesh {self.mesh}, cluster {self.cluster}", *self.source.splitlines()]
        lines[:0] = [f"# {self.options}, memory {self.memory}, enable_x64 {self.x64}"] * bool(self.options or self.x64)
        lines += [
            f"# a{k}: {getattr(x, 'dtype', type(x).__name__)}{list(np.shape(x))}, pinned {s}"
            for k, (x, s) in enumerate(zip(self.args, self.in_sbp, strict=True))
        ]
        return "\n".join([*lines, f"# results pinned {self.out_sbp}"])


def generate(seed: int, wide: bool = True) -> Generated:
    """The program of a seed. Not ``wide``: float32 and int32, no effects, default options."""
    rng = random.Random(seed)
    mesh = rng.choice(_MORE_MESHES if wide else MESHES)
    gradient = rng.random() < 0.25
    size = rng.randint(10, 40)
    shared = Shared(rng, mesh, gradient, size, *zip(*_WEIGHTED, strict=True), nested=_NESTED)
    x64 = wide and _widen(shared)
    top = Scope(shared)
    for rank in (2, rng.randint(1, 4), rng.randint(0, 3)):
        top.argument(top.shape(rank))
    if rng.random() < 0.5:
        top.argument(top.shape(rng.randint(0, 2)), "i")
    top.steps(size)
    first = len(shared.inputs)
    later = [v for v in top.pool if not v.name.startswith("a")] or top.pool
    results = [v for v in later[:-3] if rng.random() < 0.4] + later[-3:]
    if rng.random() < 0.2:
        results.append(rng.choice(top.pool))
    arguments = ", ".join(f"a{k}" for k in range(first))
    body = [*top.lines, f"return [{', '.join(v.name for v in results)}]"]
    lines = [f"def {'forward' if gradient else 'program'}({arguments}):", *(f"    {line}" for line in body)]
    values: list[Var] = list(results)
    coarsest = max(shared.rounding.values())
    trains = False
    if gradient:
        wanted = [k for k, v in enumerate(shared.inputs) if v.kind == "f" and rng.random() < 0.6] or [0]
        values = [shared.inputs[k] for k in wanted]
        trains = wide and rng.random() < 0.4
        lines += _gradient(wanted, trains)

    def pins(values: Sequence[Var], chance: float) -> list[str | None]:
        return [
            signature(rng, v.shape, mesh, False) if v.kind != "k" and rng.random() < chance else None for v in values
        ]

    few = rng.choice((0.0, 0.3, 0.6))
    cluster = rng.choice(("eager to split", "eager to split", "eager to split", "cpu", "h100"))
    program = Generated(
        seed, "\n".join(lines), tuple(shared.args), mesh, cluster, pins(shared.inputs, few), pins(values, few),
        [v.exact and not gradient for v in values],
        [coarsest if gradient else shared.rounding.get(v.name, coarsest) for v in values], x64=x64, trains=trains,
    )  # fmt: skip
    if wide:
        _choose_options(program, rng, gradient)
    return program


def _widen(shared: Shared) -> bool:
    """Other types, deeper nesting, effects. Whether 64-bit types are on."""
    rng = shared.rng
    kind = rng.choice(("plain", "plain", "plain", "mixed", "mixed", "bfloat16", "float16", "float64"))
    x64 = kind == "float64"
    if kind == "mixed":
        shared.others = ("bfloat16", "float16")
    elif kind != "plain":
        shared.floats, shared.others = kind, ("float32",)
    if rng.random() < 0.4:
        shared.whole = ("int32", "int8", "uint8", "int16", "uint32", *(("int64", "uint64") if x64 else ()))
    shared.depth = 3 if rng.random() < 0.2 else 2
    shared.effects = not shared.differentiable and rng.random() < 0.15
    more: list[tuple[Write, float]] = [(types.weak, 0.5)]
    if shared.others:
        more += [(types.recast, 1.5), (types.accumulated, 0.5)]
    if rng.random() < 0.25:
        more.append((types.complexes, 3))
    if shared.effects:
        more.append((effects.effect, 3))
    shared.ops = (*shared.ops, *(op for op, _ in more))
    shared.weights = (*shared.weights, *(weight for _, weight in more))
    return x64


def _gradient(wanted: list[int], trains: bool) -> list[str]:
    lines = [
        "def loss(*args):",
        "    floats = [y for y in forward(*args) if jnp.issubdtype(jnp.asarray(y).dtype, jnp.floating)]",
        "    return sum(jnp.sin(y).mean() for y in floats)",
    ]
    if not trains:
        return [*lines, f"program = jax.grad(loss, {tuple(wanted)})"]
    return [
        *lines,
        "def program(state, *rest):",
        "    rest = list(rest)",
        "    value = lambda w: loss(*[w[k] if k in w else rest[k] for k in range(len(rest))])",
        "    g = jax.grad(value)(state['w'])",
        "    m = jax.tree.map(lambda m, g: (0.5 * m + g).astype(m.dtype), state['m'], g)",
        "    return {'w': jax.tree.map(lambda w, m: (w - 0.25 * m).astype(w.dtype), state['w'], m), 'm': m}",
        f"wanted = {tuple(wanted)}",
    ]


def _choose_options(program: Generated, rng: random.Random, gradient: bool) -> None:
    options = program.options
    way = rng.random()
    if way < 0.15:
        options["pad"] = True
    elif way < 0.27:
        options["lowering"] = "gspmd"
    if rng.random() < 0.15:
        program.memory = rng.choice((0.5, 0.7, 0.9, 1.0))
    if rng.random() < (0.3 if gradient else 0.05):
        options["remat"] = "auto"
    if rng.random() < 0.1:
        options["solver"] = rng.choice(("dp", "greedy"))
    for name in ("prefer_less_memory", "sbp_collector", "ignore_user_sbp"):
        if rng.random() < 0.04:
            options[name] = True
    if rng.random() < 0.04:
        options["wait_time"] = 1e-5
    if random.Random(f"rewrite {program.seed}").random() < _REWRITTEN:  # the other draws stay as they are
        options.update(rewrite="taso", rewrite_options={"steps": 6, "alpha": 1.5})
    if program.trains:
        if rng.random() < 0.6:
            options["zero_stage"] = rng.randint(0, 3)
        elif rng.random() < 0.5:
            options["solver"] = rng.choice(("data_parallel", "megatron", "zero2", "zero3"))
