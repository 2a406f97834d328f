"""The step of a plan as a jitted function: one ``shard_map`` with the plan's shardings and the compiler's options."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from . import capture
from ._compat import within_mesh
from .errors import PlanError
from .lower import global_function, local_function
from .placement import to_partition_spec
from .planned import Plan
from .trace import Program

# XLA for CPUs starts all that can start by default: every gathered parameter is held from the beginning, whatever the
# plan says. It also drops barriers, and with them rematerialisation. Compilers for accelerators do neither.
_COMPILER_OPTIONS: dict[str, dict[str, bool | str]] = {
    "cpu": {
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        "xla_disable_hlo_passes": "cse_barrier_expander",
    }
}


class OtherShapes(Exception):
    """The jitted step was handed arguments that its plan is not for."""


@dataclass(slots=True)
class LoweredStep:
    """One planned and lowered instance of the function, for one set of argument shapes."""

    plan: Plan
    jitted: Any
    nested: Any
    """The same for use inside another trace, where JAX takes no compiler's options."""
    constants: Sequence[Any]
    shardings: Sequence[NamedSharding]


def lowered_step(program: Program, plan: Plan, dynamic: Any, out_tree: Any, donate: tuple[int, ...]) -> LoweredStep:
    """The jitted step of a plan. On an abstract placement it can be planned only."""
    where = plan.placement
    n = len(plan.inputs) - len(program.constants)
    in_specs = [to_partition_spec(leaf.signature, where, len(leaf.shape)) for leaf in plan.inputs]
    out_specs = [to_partition_spec(leaf.signature, where, len(leaf.shape)) for leaf in plan.outputs]
    if where.is_abstract:
        return LoweredStep(plan, None, None, (), ())
    mesh = where.mesh
    if plan.lowering == "gspmd":
        body = global_function(program, plan)
    else:
        body = jax.shard_map(
            local_function(program, plan), mesh=mesh, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=False
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
            raise OtherShapes
        with within_mesh(mesh):
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
    return LoweredStep(plan, jit(compiler_options=options), jit(), constants, shardings[:n])


def lower_step(entry: LoweredStep, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """As ``jax.jit(...).lower``, for arguments of the shapes that it was planned for."""
    if entry.jitted is None:
        raise PlanError(
            f"{entry.plan.placement} is abstract: a plan for it can be read and saved, but not compiled here"
        )
    args, kwargs = jax.tree.map(capture.aval, (tuple(args), kwargs))
    return entry.jitted.lower(*args, (kwargs, entry.constants))
