"""A program planned, run, compared with plain JAX, verified."""

import contextlib
import math
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.planner import Request, make_plan
from sbp_jax.planner.memory.infeasible import TooSmall
from sbp_jax.step.jitted import lowered_step
from sbp_jax.step.plan import Plan
from sbp_jax.trace import Op, recompute

from .effects import Log, in_order
from .generate import Generated, generate

# Compiled as it is: quick, and where it matters without the simplifier, which merges a slice of a slice without the
# clamping in between (JAX 0.10.2: jit of dynamic_slice(dynamic_slice(x, (8,), (2,)), (0,), (1,)) is not what it is
# without jit).
PLAIN: Any = {"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "algsimp"}

_CPU = sbp.cluster.CPU
CLUSTERS: dict[str, Any] = {
    "cpu": _CPU,
    # No op is too small to split here, and moving data costs little: as many signatures as possible are tried.
    "eager to split": sbp.Cluster("eager to split", _CPU.device, (sbp.cluster.Level("fast", None, 1e12, 0.0),)),
    "h100": "h100",
}


class Invalid(Exception):
    """A program that plain JAX refuses, or whose results are not finite: the generator's fault."""


def check(seed: int) -> sbp.Plan:
    """Generate and run one; a failure carries the listing."""
    program = generate(seed)
    try:
        return run(program)
    except Exception as error:
        error.add_note(str(program))
        raise


def run(program: Generated) -> sbp.Plan:
    """Plan, run, compare with plain JAX, verify. Raises at the first difference; gives the plan."""
    with jax.enable_x64(True) if program.x64 else contextlib.nullcontext():
        return _run(program)


def _run(program: Generated) -> sbp.Plan:
    theirs: Log = []
    ours: Log = []
    with _everywhere(program.x64):
        expected = _plainly(program, program.function(theirs))
    function = program.function(ours)
    args = _arguments(program)
    try:
        parallel = _planned(program, function, args)
        with warnings.catch_warnings():  # plans' memory is looked at elsewhere
            warnings.filterwarnings("ignore", message=".* was planned for at most")
            found = jax.tree.leaves(parallel(*args))
    except sbp.PlanError as error:
        if "no argument is known to be" in str(error):  # what it trains, if anything, has no gradient
            raise Invalid(str(error)) from error
        raise
    jax.effects_barrier()
    _compare(program, found, expected)
    assert in_order(ours) == in_order(theirs), f"the host was told {in_order(ours)}, by plain JAX {in_order(theirs)}"
    plan = parallel.plan(*_arguments(program))
    plan.verify()
    return plan


def check_again(seed: int) -> int:
    """Generate one, make most of what its first ops compute again for the others, run, compare with plain JAX.

    How many ops more that is.
    """
    program, some = generate(seed), random.Random(seed)
    try:
        with jax.enable_x64(True) if program.x64 else contextlib.nullcontext():
            with _everywhere(program.x64):
                expected = _plainly(program, program.function([]))
            args = jax.tree.map(jnp.asarray, _arguments(program))
            whole, _, shapes = capture.trace(program.function([]), args, {}, (), ())
            ops = whole.graph.ops
            last = some.randrange(len(ops) // 4, len(ops))
            early = [
                op for op in ops[: last + 1] if isinstance(op, Op) and op.primitive is not None and not op.runs_once
            ]
            again, _ = recompute(whole, ops[last].span[1], {op.index for op in early if some.random() < 0.8})
            where = sbp.placement("cpu", np.arange(math.prod(program.mesh)).reshape(program.mesh))
            plan = Plan.of(make_plan(again, Request(placement=where, cluster=_CPU)))
            step = lowered_step(again, plan, (args, {}), jax.tree.structure(shapes), ())
            _compare(program, jax.tree.leaves(step.jitted(*args, ({}, step.constants))), expected)
            return len(again.nodes) - len(whole.nodes)
    except Exception as error:
        error.add_note(str(program))
        raise


@contextlib.contextmanager
def _everywhere(x64: bool) -> Iterator[None]:
    """64-bit types in all threads: plain JAX calls the host on threads of its own, and rounds there what it passes."""
    jax.config.update("jax_enable_x64", x64)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)  # as it is by default, and in the tests


def _arguments(program: Generated) -> tuple[Any, ...]:
    """Those of the program; where it trains, its state first."""
    if not program.trains:
        return program.args
    (line,) = [x for x in program.source.splitlines() if x.startswith("wanted = ")]
    wanted = {k: np.asarray(program.args[k]) for k in map(int, re.findall(r"\d+", line))}
    rest = [None if k in wanted else x for k, x in enumerate(program.args)]
    return {"w": wanted, "m": jax.tree.map(np.zeros_like, wanted)}, *rest


def _plainly(program: Generated, function: Callable[..., Any]) -> list[Any]:
    args = _arguments(program)
    try:
        with jax.disable_jit(False):
            results = jax.tree.leaves(jax.jit(function, compiler_options=_plain_options(program))(*args))
    except Exception as error:
        raise Invalid(f"plain JAX: {type(error).__name__}: {str(error).strip()[:200]}") from error
    jax.effects_barrier()
    for k, x in enumerate(results):
        if _is_inexact(x) and not np.isfinite(_wide(x)).all():
            raise Invalid(f"result {k} of plain JAX is not finite")
    return results


def _plain_options(program: Generated) -> Any:
    """Without its simplifier XLA (JAX 0.10.2) ends the process on some programs (loops that never run, gradients of
    convolutions in groups and of windows): only what may slice a slice goes without it."""
    slices_twice = len(re.findall(r"dynamic_(?:update_)?slice", program.source)) > 1
    never_runs = "fori_loop(0, 0," in program.source
    in_groups = re.search(r"_group_count=(?!1\b)", program.source)
    crashes = never_runs or in_groups or "reduce_window" in program.source
    return PLAIN if slices_twice and not crashes else {k: v for k, v in PLAIN.items() if k != "xla_disable_hlo_passes"}


def _planned(program: Generated, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    where = sbp.placement("cpu", np.arange(math.prod(program.mesh)).reshape(program.mesh))
    results = jax.tree.leaves(jax.eval_shape(program.function(), *args))
    pins: dict[str, Any] = {}
    if not program.trains:
        outs: Any = program.out_sbp if len(results) > 1 else program.out_sbp[:1]
        out_sbp: Any = tuple(outs) if program.source.rstrip().endswith(")") else list(outs)
        pins = {"in_sbp": tuple(program.in_sbp), "out_sbp": out_sbp}

    def planned(**limit: Any) -> Any:
        config = sbp.AutoParallelConfig(cluster=CLUSTERS[program.cluster], **program.options, **limit)
        donated: dict[str, Any] = {"donate_argnums": 0} if program.trains else {}
        return sbp.auto_parallel(function, placement=where, config=config, **pins, **donated)

    if program.memory is None:
        return planned()
    limited = planned(memory_limit=max(1.0, program.memory * planned().plan(*args).memory_per_device))
    try:
        limited.plan(*args)
    except TooSmall:
        return planned()
    return limited


def _is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _wide(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def _compare(program: Generated, found: list[Any], expected: list[Any]) -> None:
    n = len(expected)
    exact = program.exact if len(program.exact) == n else [False] * n
    rounding = program.rounding if len(program.rounding) == n else [max(program.rounding)] * n
    for k, (ours, plain) in enumerate(zip(found, expected, strict=True)):
        assert ours.shape == plain.shape and ours.dtype == plain.dtype, f"result {k}: {ours.aval}, plain {plain.aval}"
        assert ours.weak_type == plain.weak_type, f"result {k}: {ours.aval}, plain {plain.aval}"
        if not _is_inexact(plain) or exact[k]:
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(plain), f"result {k}")
            continue
        eps = max(rounding[k], float(jnp.finfo(plain.dtype).eps) / 2)
        # Some programs make much of a rounding: what is compared is the whole result's size, at 2**13 roundings of
        # float32, and 16 of bfloat16, where a program has few that are not averaged.
        tolerance = min(max(2**13 * eps, 1e-9), 1e-3) if eps < 1e-6 else 16 * eps
        ours, plain = _wide(ours), _wide(plain)
        scale = np.abs(plain).max(initial=0.0)
        allowed = tolerance * (np.abs(plain) + scale + 1e-2)
        if (np.abs(ours - plain) > allowed).any() and eps > 1e-6:
            allowed = allowed + 8 * np.abs(plain - _rounded_otherwise(program, k))
        worst = np.abs(ours - plain).max(initial=0.0)
        wrong = int((~(np.abs(ours - plain) <= allowed)).sum())
        if wrong and eps > 1e-6 and _is_nearer(program, k, ours, plain, float(allowed.max())):
            continue
        told = f"result {k}: {wrong} of {plain.size} elements differ, by up to {worst:.3g}, scale {scale:.3g}"
        assert not wrong, told


def _rounded_otherwise(program: Generated, k: int) -> np.ndarray:
    """A result of plain JAX that rounds where the program does: how much that matters says how much is noise."""
    options = {**_plain_options(program), "xla_allow_excess_precision": False}
    function = jax.jit(program.function(), compiler_options=options)
    return _wide(jax.tree.leaves(function(*_arguments(program)))[k])


def _is_nearer(program: Generated, k: int, ours: np.ndarray, plain: np.ndarray, allowed: float) -> bool:
    """Whether plain JAX is the one that is off, by the same program in float32.

    A long sum in bfloat16 stops growing at 256 times a term; one that is made of pieces goes on.
    """
    low = (jnp.bfloat16, jnp.float16)
    widened = replace(
        program,
        source=re.sub(r"bfloat16|float16", "float32", program.source),
        args=tuple(np.asarray(x, np.float32) if getattr(x, "dtype", None) in low else x for x in program.args),
    )
    try:
        wide = _wide(jax.tree.leaves(jax.jit(widened.function())(*_arguments(widened)))[k])
    except Exception:  # a program that is none in float32 proves nothing
        return False
    return bool(np.abs(ours - wide).max() <= np.abs(plain - wide).max() + allowed)
