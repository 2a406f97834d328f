"""``sbp.flax.jit``: a step on Flax nnx objects, planned on the first call, updating them in place."""

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from .._compat import is_tracing
from ..api import AutoParallelConfig, ParallelFunction, auto_parallel
from ..api.request import asked_placement
from ..errors import PlanError
from ..placement import Placement
from ..plan import PlanData
from ..shardings import PlacementLike
from ..step.plan import Plan
from .calls import Recipe, Signature
from .changes import Structure, changes, plan_differences
from .pins import Asked, PinDict, resolve
from .variables import dtype_of, entries, is_object, path_of
from .where import common_placement, decorated, dictionaries


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class _ResultTree:
    """The structure of a result that has nnx objects in it, and which of its leaves are such."""

    tree: Any
    is_object: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A call, ready to run: its planned function, the objects' state and the arrays, by path."""

    function: ParallelFunction
    state: Any
    arrays: dict[str, Any]


class ModuleFunction:
    """A function of nnx objects and arrays that runs by a plan. The objects' state is donated and replaced."""

    def __init__(
        self,
        fn: Callable[..., Any],
        placement: PlacementLike | int | str | None,
        config: AutoParallelConfig | None,
        plan: PlanData | None,
        sbp: PinDict | None,
        static_argnums: int | Sequence[int],
        static_argnames: str | Iterable[str],
    ) -> None:
        if isinstance(fn, ModuleFunction | ParallelFunction) or not callable(fn) or is_object(fn):
            raise PlanError(
                f"sbp.flax.jit takes a plain function of nnx objects and arrays, got {type(fn).__name__}; write "
                "sbp.flax.jit(lambda model, x: model(x)) for a module's call"
            )
        if plan is not None and sbp:
            raise PlanError("sbp.flax.jit takes plan= or sbp=: a plan says where every variable lies")
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._signature = fn, Signature.of(fn, static_argnums, static_argnames)
        self._placement, self._config = asked_placement(placement), config
        self._plan, self._pins = plan, sbp
        self._functions: dict[Any, ParallelFunction] = {}
        self._structure: tuple[Any, Structure] | None = None
        self._last: ParallelFunction | None = None

    def __repr__(self) -> str:
        where = "the modules' placement" if self._placement is None else self._placement
        return f"<{self._signature.name} run by plans on {where}: {len(self._functions)} structure(s) of objects seen>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance is the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():  # the outer trace decides where things lie
            return self._fn(*args, **kwargs)
        with nnx.update_context(self):
            call = self._prepare(args, kwargs)
            state, result, graph = self._try(call, call.function, *_distinct(call.state, call.arrays))
            self._settle(call)
            with nnx.merge_context(self, False) as context:
                context.merge(graph, state)
                return _with_objects(result, context)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these objects and arrays. Shapes do as well: ``nnx.eval_shape(lambda: Model(...))`` for a model,
        ``jax.ShapeDtypeStruct`` for arrays."""
        if not args and not kwargs and self._signature.inspected.parameters:
            raise PlanError(
                f"{self._signature.name}.plan takes the arguments of a call, {self._signature.inspected}: arrays or "
                "jax.ShapeDtypeStructs, and nnx objects or what nnx.eval_shape(lambda: Model(...)) makes"
            )
        with nnx.update_context(self):
            call = self._prepare(args, kwargs)
            made = self._try(call, call.function.plan, call.state, call.arrays)
            self._settle(call)
            made.prepare = self._pure_arguments
            return made

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As ``jax.jit``'s: ``.compile()`` gives ``.as_text()``, ``.memory_analysis()``."""
        with nnx.update_context(self):
            call = self._prepare(args, kwargs)
            return self._try(call, call.function.lower, call.state, call.arrays)

    def _pure_arguments(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """What the planned pure function takes for a call: the objects' state and the arrays."""
        with nnx.update_context(self):
            call = self._prepare(args, kwargs)
            return _distinct(call.state, call.arrays)

    def bare(self) -> tuple[Any, Any]:
        """The jitted pure function of the last call, and its last argument. Before that it takes the objects' state
        and the arrays, by path: ``jitted(state, arrays, last)`` gives (new state, result, graph)."""
        if self._last is None:
            raise PlanError(f"{self._signature.name} has not run yet: call it once")
        return self._last.bare()

    def _prepare(self, args: Sequence[Any], kwargs: dict[str, Any]) -> _Prepared:
        recipe, objects, arrays = self._signature.take_apart(args, kwargs)
        with nnx.split_context(self) as context:
            graph, state = context.split(objects)
        # A shape may change without the graph: ``model.head.kernel = nnx.Param(...)``.
        structure = graph, tuple((np.shape(x), dtype_of(x)) for x in jax.tree.leaves(state))
        function = self._functions.get((structure, recipe))
        if function is None:
            self._note_changes(structure, Structure.of(objects, entries(state)[0]))
            function = self._make(graph, recipe, objects, state, arrays)
            self._functions[structure, recipe] = function
        return _Prepared(function, state, arrays)

    def _make(self, graph: Any, recipe: Recipe, objects: Any, state: Any, arrays: Any) -> ParallelFunction:
        """The planned pure function for objects of this structure."""
        of_state, state_tree = entries(state)
        of_arrays, arrays_tree = entries(arrays)
        theirs = [pair for name, x in objects.items() for pair in decorated(x, name)]
        where = [w for _, w in theirs]
        config = self._config or next((w.config for w in where if w.config), None)
        placement = self._placement
        if placement is None and self._plan is None:
            placement = common_placement(where, self._signature.name)
        in_sbp = None
        if self._plan is None and not (config and config.ignore_user_sbp):
            asked = dictionaries(theirs)
            asked += [Asked(self._pins, "", f"sbp of {self._signature.name}")] if self._pins else []
            pinned = resolve(
                [*of_state, *of_arrays], asked, placement if isinstance(placement, Placement) else None,
                is_rooted=True, with_moments=config is None or not config.zero_stage,
            )  # fmt: skip
            n = len(of_state)
            in_sbp = jax.tree.unflatten(state_tree, pinned[:n]), jax.tree.unflatten(arrays_tree, pinned[n:])
        made = auto_parallel(
            self._pure(graph, recipe), placement=placement, config=config, donate_argnums=0, in_sbp=in_sbp,
            plan=self._plan,
        )  # fmt: skip
        made.argument_names = ("", "")  # state and arrays are by the user's names
        return made

    def _pure(self, graph: Any, recipe: Recipe) -> Callable[..., Any]:
        @functools.wraps(self._fn)
        def step(state: Any, arrays: dict[str, Any]) -> tuple[Any, Any, Any]:
            with nnx.merge_context(self, True) as context:
                objects = context.merge(graph, state)
            result = self._signature.call(self._fn, recipe.arguments(objects, arrays))
            with nnx.split_context(self) as context:
                new_graph, new_state = context.split(objects)
                return new_state, _without_objects(result, context), new_graph

        return step

    def _note_changes(self, key: Any, structure: Structure) -> None:
        """Warn where the objects are not as they were when the function was planned."""
        if self._structure is not None and self._structure[0] != key and self._plan is None:
            warnings.warn(
                f"{self._signature.name} is planned again: its objects are not as they were when it was planned: "
                f"{changes(self._structure[1], structure)}. A plan is kept for each structure",
                stacklevel=4,
            )
        self._structure = key, structure

    def _try(self, call: _Prepared, run: Callable[..., Any], *args: Any) -> Any:
        """Run; where the plan given is for other variables, say for which."""
        try:
            return run(*args)
        except PlanError as error:
            if self._plan is None:
                raise
            leaves = jax.tree_util.tree_flatten_with_path((call.state, call.arrays))[0]
            told = plan_differences(self._plan, {path_of(path): x for path, x in leaves})
            if not told:
                raise
            raise PlanError(
                f"the plan given to {self._signature.name} is for other variables: {told}. Plan again for these "
                "objects, or leave plan= out"
            ) from error

    def _settle(self, call: _Prepared) -> None:
        """After the first plan: where the planner chose the mesh, objects of another structure stay on it."""
        self._last = call.function
        if not isinstance(self._placement, Placement | None):
            self._placement = call.function.plan(call.state, call.arrays).placement


def _distinct(state: Any, arrays: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """State and arrays of which no two share their memory, for it is donated: a clone's are copied."""
    leaves, tree = jax.tree.flatten((state, arrays))
    if len({id(x) for x in leaves}) == len(leaves):
        return state, arrays
    seen: set[int] = set()
    copied = []
    for x in leaves:
        copied.append(x.copy() if id(x) in seen and isinstance(x, jax.Array) else x)
        seen.add(id(x))
    return jax.tree.unflatten(tree, copied)


def _without_objects(result: Any, context: Any) -> Any:
    """A result as arrays: nnx objects in it as their graph and state."""
    leaves, tree = jax.tree.flatten(result, is_leaf=is_object)
    kinds = tuple(map(is_object, leaves))
    if not any(kinds):
        return result
    objects = context.split([x for x, there in zip(leaves, kinds, strict=True) if there])
    return objects, [x for x, there in zip(leaves, kinds, strict=True) if not there], _ResultTree(tree, kinds)


def _with_objects(result: Any, context: Any) -> Any:
    """The inverse; objects that the function was given are those themselves."""
    if not (isinstance(result, tuple) and len(result) == 3 and isinstance(result[2], _ResultTree)):
        return result
    objects, arrays, shape = iter(context.merge(*result[0])), iter(result[1]), result[2]
    return jax.tree.unflatten(shape.tree, [next(objects if there else arrays) for there in shape.is_object])


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    placement: PlacementLike | int | str | None = None,
    config: AutoParallelConfig | None = None,
    plan: PlanData | None = None,
    sbp: PinDict | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> Any:
    """Run a step on nnx modules, optimizers and arrays by a plan; modules and optimizers are updated in place.

    Args:
        fn: its arguments are nnx objects (``nnx.Module``, ``nnx.Optimizer``, ``nnx.Rngs``, ``nnx.Metric`` ...) and
            arrays, in trees; so is its result. An object that is returned is the one that was passed.
        placement: the devices. Left out: the placement of the ``sbp.flax.parallel`` modules among the arguments, else
            every visible device on one axis. A number of devices or "auto": as for ``sbp.auto_parallel``.
        config: options of the planner.
        plan: run this plan, made elsewhere for the same function.
        sbp: pins by variable path, ``{"head/kernel": sbp.split(1)}`` (``pins.py`` has the rules); with several models
            the argument's name comes first, ``"teacher/head/kernel"``. Array arguments may be named too. What an
            optimizer keeps for a pinned parameter follows it, unless ``config.zero_stage`` says where that lies.
        static_argnums, static_argnames: arguments that are Python values, as ``nnx.jit``'s.

    Pins are, the first counting: ``sbp``; the dictionaries of ``sbp.flax.parallel`` modules; annotations
    (``nnx.with_partitioning``, names of mesh axes). ``ignore_user_sbp`` lets all of them free. The objects' state is
    donated: it stays on the devices, in the plan's signatures, from call to call, and arrays of theirs that were read
    before a call cannot be used after it. Objects whose structure has changed (``model.eval()``, another layer) are
    planned again, with a ``UserWarning`` that says what changed. Inside another trace it is ``fn`` itself.

    Raises what ``sbp.auto_parallel`` raises, and ``PlanError``: a pin that matches nothing; an argument that is neither
    an nnx object nor an array; a plan for other variables, which it names.
    """
    if fn is None:
        return functools.partial(
            jit, placement=placement, config=config, plan=plan, sbp=sbp, static_argnums=static_argnums,
            static_argnames=static_argnames,
        )  # fmt: skip
    return ModuleFunction(fn, placement, config, plan, sbp, static_argnums, static_argnames)
