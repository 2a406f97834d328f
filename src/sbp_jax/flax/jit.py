"""``sbp.flax.jit``: a step on Flax nnx objects, planned on the first call, updating them in place."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import PartitionSpec

from ..api import ParallelFunction, auto_parallel
from ..config import AutoParallelConfig
from ..placement import Placement
from ..plan import PlanData
from ..planned import Plan

# What nnx calls a variable's annotation, today and before 0.12.
_ANNOTATIONS = ("out_sharding", "sharding_names", "sharding")


class ModuleFunction:
    """A function of nnx objects and arrays that runs by a plan. The objects' state is donated and replaced."""

    def __init__(self, fn: Callable[..., Any], make: Callable[[Callable[..., Any], Any], ParallelFunction]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._make = fn, make
        self._functions: dict[Any, ParallelFunction] = {}
        self._results: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        function, state, arrays, _ = self._split(args)
        new_state, result = function(state, *arrays)
        nnx.update(_objects(args), new_state)
        return result

    def plan(self, *args: Any) -> Plan:
        """The plan for these objects and arrays."""
        function, state, arrays, _ = self._split(args)
        return function.plan(state, *arrays)

    def lower(self, *args: Any) -> Any:
        """As ``jax.jit``'s."""
        function, state, arrays, _ = self._split(args)
        return function.lower(state, *arrays)

    def _split(self, args: Sequence[Any]) -> tuple[ParallelFunction, Any, list[Any], Any]:
        """The planned pure function for these objects' structure, their state, and the other arguments."""
        graph, state = nnx.split(_objects(args))
        arrays = [x for x in args if not _is_object(x)]
        positions = tuple(_is_object(x) for x in args)
        key = (graph, positions)
        if key not in self._functions:
            in_sbp = (annotated(state), *[None] * len(arrays))
            self._functions[key] = self._make(self._pure(graph, positions), in_sbp)
        return self._functions[key], state, arrays, graph

    def _pure(self, graph: Any, positions: Sequence[bool]) -> Callable[..., Any]:
        fn = self._fn

        @functools.wraps(fn)
        def step(state: Any, *arrays: Any) -> tuple[Any, Any]:
            objects, others = iter(nnx.merge(graph, state)), iter(arrays)
            args = [next(objects) if is_object else next(others) for is_object in positions]
            result = fn(*args)
            new_state = nnx.split(tuple(x for x, is_object in zip(args, positions, strict=True) if is_object))[1]
            return new_state, result

        return step


def annotated(state: Any) -> Any:
    """By variable of a state the ``PartitionSpec`` that its metadata asks for; None where it asks for none.

    That is how ``nnx.with_partitioning`` and its like annotate parameters; Flax translates logical names, where rules
    for them are given. The optimizer's moments inherit their parameters' annotations.
    """
    is_variable = lambda v: isinstance(v, nnx.Variable)  # noqa: E731

    def spec(variable: Any, asked: Any) -> PartitionSpec | None:
        metadata = variable.get_metadata() if is_variable(variable) else {}
        return asked.get_value() if any(metadata.get(name) is not None for name in _ANNOTATIONS) else None

    return jax.tree.map(spec, state, nnx.get_partition_spec(state), is_leaf=is_variable)


def _is_object(x: Any) -> bool:
    return any(isinstance(leaf, nnx.Pytree) for leaf in jax.tree.leaves(x, is_leaf=lambda v: isinstance(v, nnx.Pytree)))


def _objects(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(x for x in args if _is_object(x))


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    placement: Placement | int | str | None = None,
    config: AutoParallelConfig | None = None,
    plan: PlanData | None = None,
) -> Any:
    """Run a step on nnx modules, optimizers and arrays by a plan; modules and optimizers are updated in place.

    Args:
        fn: positional arguments are nnx objects (``nnx.Module``, ``nnx.Optimizer``, ``nnx.Rngs`` ...) or arrays
            in trees; the result is arrays in trees.
        placement: the devices; every visible one on one axis where left out.
        config: options of the planner.
        plan: run this plan, made elsewhere for the same function.

    Variables that are annotated (``nnx.with_partitioning``, names of mesh axes) are pinned so; ``ignore_user_sbp`` lets
    them free. The objects' state is donated: it stays on the devices, in the plan's signatures, from call to call.
    Raises what ``sbp.auto_parallel`` raises.
    """
    if fn is None:
        return functools.partial(jit, placement=placement, config=config, plan=plan)
    return ModuleFunction(
        fn,
        lambda pure, in_sbp: auto_parallel(
            pure, placement=placement, config=config, donate_argnums=0, in_sbp=in_sbp, plan=plan
        ),
    )
