"""The step of a plan as a jitted function: one ``shard_map`` with the plan's shardings and the compiler's options."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from .._compat import is_staging, looks_for_nans, trace_context
from ..ahead import cannot_run_ahead, to_its_end
from ..calls import values
from ..errors import PlanError
from ..lower import global_function, local_function, named_function, on_mesh
from ..shardings import to_partition_spec
from ..tensor.incoming import on_devices
from ..trace import Program
from .compiler_options import options_for
from .plan import Plan

_WIDE = {"float64", "int64", "uint64", "complex128"}


class OtherCall(Exception):
    """The jitted step was handed arguments, or runs under settings of JAX, that it was not made for."""


@dataclass(slots=True)
class LoweredStep:
    """One planned and lowered instance of the function, for one set of argument types under one set of settings."""

    plan: Plan
    jitted: Any
    nested: Any
    """The same for use inside another trace, where JAX takes no compiler's options."""
    unplanned: Any
    """The function itself, jitted: what ``jax_debug_nans`` runs below ``jax.grad`` and ``jax.vmap``."""
    constants: Sequence[Any]
    shardings: Sequence[NamedSharding]
    context: Any = None
    """JAX's settings that it was traced under. ``jitted`` runs under no others."""
    elsewhere: Any = None
    """As ``jitted``, to be lowered under any settings."""
    donated: tuple[int, ...] = ()
    """The positions of the arguments that are donated."""
    donated_names: tuple[str, ...] = ()
    """The arguments given by name that are donated: to JAX an argument of their own."""
    waits: bool = False
    """Whether a run must end before the next may start."""

    is_shared: bool = False
    """Whether other processes run it too."""
    is_checked: bool = False
    """Whether it was compared with the user's memory limit, as compiled."""

    def takes(self, args: Sequence[Any]) -> bool:
        """Whether it may be tried with arguments as they are: all processes must come to the same answer.

        Of an array in one process's devices JAX would take there what it refuses elsewhere. And what is donated, if it
        is no earlier result, JAX would compile anew for, were it not placed first (the first array tells).
        """
        if not self.is_shared:
            donated = jax.tree.leaves([args[i : i + 1] for i in self.donated[:1]])
            return not donated or values.is_on_mesh(donated[0])
        leaves = jax.tree.leaves(args)
        return len(leaves) == len(self.shardings) and all(map(values.is_there, leaves, self.shardings))

    def run(self, *arguments: Any) -> Any:
        """One run of ``jitted``."""
        return to_its_end(self.jitted, *arguments) if self.waits else self.jitted(*arguments)

    def arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """What the jitted functions take."""
        if not self.donated_names:
            return *args, (kwargs, self.constants)
        kept, taken = _parted(kwargs, self.donated_names)
        return *args, taken, (kept, self.constants)


def _parted(named: dict[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {k: x for k, x in named.items() if k not in names}, {k: x for k, x in named.items() if k in names}


def lowered_step(
    program: Program, plan: Plan, dynamic: Any, out_tree: Any, donate: tuple[int, ...],
    donated_names: tuple[str, ...] = (), is_named: bool = False, plain: Callable[..., Any] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> LoweredStep:  # fmt: skip
    """The jitted step of a plan. On an abstract placement it can be planned only, or, where that stands for devices
    that are described, compiled.

    ``dynamic`` are the arguments by position and by name, ``donate`` and ``donated_names`` the donated among them.
    ``is_named``: its ops say in their metadata which nodes they are. ``plain`` is the function itself, of the same
    arguments: what ``jax_debug_nans`` runs op by op to say which of the user's lines made the nan. ``compiler_options``
    are the user's, for XLA.
    """
    where = plan.placement
    n = len(plan.inputs) - len(program.constants)
    in_specs = [to_partition_spec(leaf.signature, where, len(leaf.shape)) for leaf in plan.inputs]
    out_specs = [to_partition_spec(leaf.signature, where, len(leaf.shape)) for leaf in plan.outputs]
    if not where.can_compile:
        return LoweredStep(plan, None, None, None, (), ())
    mesh = where.mesh
    if plan.lowering == "gspmd":
        body = named_function(program, plan) if is_named else global_function(program, plan)
    else:
        pieces = named_function(program, plan) if is_named else local_function(program, plan)
        body = jax.shard_map(pieces, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=False)
    shardings = [NamedSharding(mesh, spec) for spec in in_specs]
    # A compiled function does not cut results without elements, whatever it was asked (measured, JAX 0.10.2).
    made = [NamedSharding(mesh, spec if math.prod(leaf.shape) else PartitionSpec())
            for leaf, spec in zip(plan.outputs, out_specs, strict=True)]  # fmt: skip
    held = [
        (f"constant {k}, an array that the function closes over,", c, s)
        for k, (c, s) in enumerate(zip(program.constants, shardings[n:], strict=True))
    ]
    if where.is_abstract:
        constants = tuple(jax.ShapeDtypeStruct(c.shape, c.dtype, sharding=s) for _, c, s in held)
    else:
        constants = tuple(on_devices(held, plan.function))
    expected = [(leaf.shape, leaf.dtype, op.outs[0].weak)
                for leaf, op in zip(plan.inputs, program.input_ops, strict=True)]  # fmt: skip
    context = trace_context()

    def parted(arguments: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any], Sequence[Any]]:
        *args, (kwargs, consts) = arguments
        if donated_names:
            *args, taken = args
            kwargs = {**kwargs, **taken}
        return tuple(args), kwargs, consts

    def unplanned(*arguments: Any) -> Any:
        args, kwargs, _ = parted(arguments)
        assert plain is not None
        return plain(args, kwargs)

    def step(*arguments: Any) -> Any:
        args, kwargs, consts = parted(arguments)
        if plain is not None and looks_for_nans() and not is_staging():
            return plain(args, kwargs)
        leaves = [*jax.tree.leaves((args, kwargs)), *consts]
        if [(x.shape, str(x.dtype), jax.typeof(x).weak_type) for x in leaves] != expected:
            raise OtherCall
        with on_mesh(where, plan.function):
            results = body(*leaves)
        return jax.tree.unflatten(out_tree, map(weakened, results, program.weak_results))

    def step_here(*arguments: Any) -> Any:
        if trace_context() != context:
            raise OtherCall
        return step(*arguments)

    for f in (step, step_here, unplanned):
        f.__name__ = f.__qualname__ = plan.function
    tree = jax.tree.structure(dynamic)
    args_shardings, kwargs_shardings = jax.tree.unflatten(tree, shardings[:n])
    all_donated = donate
    if donated_names:
        kwargs_shardings, taken_shardings = _parted(kwargs_shardings, donated_names)
        all_donated = (*donate, len(args_shardings))
        args_shardings = (*args_shardings, taken_shardings)
    jit = functools.partial(
        jax.jit,
        in_shardings=(*args_shardings, (kwargs_shardings, tuple(shardings[n:]))),
        out_shardings=jax.tree.unflatten(out_tree, made),
        donate_argnums=all_donated,
    )
    owners = {d.process_index for d in mesh.devices.flat}
    options = options_for(mesh.devices.flat[0].platform, compiler_options)
    return LoweredStep(
        plan, jit(step_here, compiler_options=options), jit(step), jax.jit(unplanned), constants, shardings[:n],
        context, jit(step, compiler_options=options), donate, donated_names,
        cannot_run_ahead(mesh.devices.flat), len(owners) > 1,
    )  # fmt: skip


def weakened(x: Any, weak: bool) -> Any:
    """A result as weakly typed as the function's own: ops on pieces, and constants, may have lost that."""
    if jax.typeof(x).weak_type == weak:
        return x
    return jax.lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=weak, sharding=None)


def check_devices(plan: Plan, to_run: bool = True) -> None:
    """Raises ``PlanError`` where a plan cannot be compiled, or run, for its placement has no devices."""
    where = plan.placement
    possible = not where.is_abstract if to_run else where.can_compile
    if possible:
        return
    refused = "run here, only compiled" if where.can_compile else "compiled or run here"
    hint = "" if where.can_compile else ". To compile it without any: a mesh of devices of jax.experimental.topologies"
    raise PlanError(
        f"{where} is abstract: a plan for it can be read and saved, but not {refused}. To run {plan.function}, give it "
        "devices: placement=sbp.placement(type, ranks), or a saved plan with dataclasses.replace(plan, placement=...)"
        + hint
    )


def lower_step(entry: LoweredStep, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """As ``jax.jit(...).lower``, for arguments of the shapes that it was planned for."""
    check_devices(entry.plan, to_run=False)
    same = trace_context() == entry.context
    lowerable = entry.jitted if same else entry.elsewhere
    try:
        narrow = str(jax.dtypes.canonicalize_dtype("float64")) != "float64"
        if not same and narrow and any(str(leaf.dtype) in _WIDE for leaf in entry.plan.inputs):
            raise OtherCall
        args, kwargs = jax.tree.map(values.aval, (tuple(args), kwargs))
        return lowerable.lower(*entry.arguments(args, kwargs))
    except OtherCall:
        raise PlanError(
            f"the plan of {entry.plan.function} was made under other settings of JAX, which change its arguments' "
            "types (jax.enable_x64?): lower and compile it under those"
        ) from None


class NamedStep:
    """A plan's step, compiled with names in its metadata, to be profiled: the same ops, in the same order."""

    def __init__(
        self, entry: LoweredStep, shapes: tuple[Any, Any], donated: Sequence[int], donated_names: Sequence[str]
    ) -> None:
        self._entry, self._shapes = entry, shapes
        args, kwargs = shapes
        self._donated = jax.tree.leaves((
            tuple(jax.tree.map(lambda _, k=k: k in donated, x) for k, x in enumerate(args)),
            {k: jax.tree.map(lambda _, k=k: k in donated_names, x) for k, x in kwargs.items()},
        ))  # fmt: skip

    @functools.cached_property
    def _compiled(self) -> Any:
        return lower_step(self._entry, *self._shapes).compile()

    @property
    def text(self) -> str:
        """The compiled HLO."""
        return self._compiled.as_text()

    def placed(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments where the plan wants them. ``PlanError`` for others than it was made for."""
        leaves, tree = jax.tree.flatten((tuple(args), kwargs))
        planned, planned_tree = jax.tree.flatten(self._shapes)
        if any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves):
            raise PlanError("plan.profile runs the step: it takes arrays, not shapes")
        given = [(x.shape, x.dtype) for x in map(values.aval, leaves)]
        if tree != planned_tree or given != [(x.shape, x.dtype) for x in planned]:
            wanted = ", ".join(f"{x.path} {x.dtype}{list(x.shape)}" for x in self._entry.plan.inputs[:3])
            raise PlanError(
                f"plan.profile takes arguments like those that {self._entry.plan.function} was planned for ({wanted}, "
                f"...; {len(planned)} arrays), got {len(leaves)} arrays of other shapes, types or structure"
            )
        paths = [x.path for x in self._entry.plan.inputs]
        return values.moved(list(zip(paths, leaves, self._entry.shardings, strict=False)), self._entry.plan.function)

    def fresh(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments for one run, copies where the step donates them."""
        copies = [x.copy() if donated else x for x, donated in zip(leaves, self._donated, strict=True)]
        args, kwargs = jax.tree.unflatten(jax.tree.structure(self._shapes), copies)
        return jax.block_until_ready(self._entry.arguments(args, kwargs))

    def run(self, arguments: tuple[Any, ...]) -> None:
        """One step, to its end."""
        jax.block_until_ready(self._compiled(*arguments))
