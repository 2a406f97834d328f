"""``DistributedDataParallel``: a function, a loss or a Flax model on every device, each with its part of the batch.

Nothing here reduces a gradient: the parameters are pinned whole, the batch split, and the planner's data-parallel
strategy puts one all-reduce where a gradient leaves the step.
"""

import functools
import inspect
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from ..api import AutoParallelConfig, auto_parallel
from ..errors import PlanError
from ..placement import Placement, placement
from ..processes import store
from ..shardings import PlacementLike, as_placement, to_sharding
from ..signature import Signature, Split, broadcast
from ..tensor import GlobalTensor
from .accumulation import counts, gradient, nnx_gradient


class DistributedDataParallel:
    """``fn`` run data-parallel: the results are those of ``fn`` on the whole batch, on one device.

    ``fn`` may be

    * a loss, ``loss(params, *batch)``: ``ddp.value_and_grad(params, *batch)`` gives the loss and the gradients of
      ``params``, reduced once and whole on every device; ``ddp(params, *batch)`` the loss;
    * a step, ``step(state, *batch)``: ``ddp(state, *batch)`` is ``step``'s result. Flax nnx objects among its arguments
      are updated in place, as by ``sbp.flax.jit``;
    * a Flax model. nnx: ``ddp(x)`` is the model's output, ``ddp.value_and_grad(loss, *batch)`` takes
      ``loss(model, *batch)``; its variables become those of process 0 in every process. linen: ``ddp(variables, x)``.

    The first argument, nnx objects, and whatever ``fn`` gives back in the same shapes are state, whole on every device.
    The others are the batch: what in them has the batch's leading dimension is split along it, over all axes of the
    mesh. ``batch_argnums`` says instead which positions are the batch.

    The loss is that of the whole batch. A mean over examples is so the mean over all processes' examples, as PyTorch's
    averaged gradients are; a sum is the sum over all of them, which PyTorch divides by the number of processes.

    Args:
        placement: the devices; None: all of the default kind.
        local_batch: in a run of several processes, whether each process passes its own part of the batch, as PyTorch's
            users do (all parts equally long; the batch is theirs in the order of the placement's devices). False: all
            pass the same, whole batch. Arrays of several processes (from ``sbp.data``) are whole in both cases.
        grad_accumulation: ``value_and_grad`` runs so many equal parts of the batch one after the other, and reduces the
            sum of their gradients once. For a loss that is a mean over examples.
        has_aux: ``loss`` gives (loss, other results).
        donate_argnums: arguments that may be overwritten, as for ``jax.jit``.
        config: ``AutoParallelConfig``; its solver is "data_parallel" unless it names another than the default.

    Raises ``PlanError`` where the batch does not divide by the devices, for a function that it cannot run, and in every
    process where they pass parts of different shapes.
    """

    def __init__(
        self, fn: Any, *, placement: PlacementLike | None = None, batch_argnums: int | Sequence[int] | None = None,
        local_batch: bool = False, grad_accumulation: int = 1, has_aux: bool = False,
        donate_argnums: int | Sequence[int] = (), config: AutoParallelConfig | None = None,
    ) -> None:  # fmt: skip
        if not callable(fn):
            raise PlanError(f"DistributedDataParallel takes a function or a Flax model, got a {type(fn).__name__}")
        if isinstance(grad_accumulation, bool) or not isinstance(grad_accumulation, int) or grad_accumulation < 1:
            raise PlanError(f"grad_accumulation is a number of parts, 1 or more; got {grad_accumulation!r}")
        if has_aux and grad_accumulation > 1:
            raise PlanError(
                "grad_accumulation adds up losses and gradients; it cannot join has_aux=True's other results"
            )
        self.module = fn
        """What was passed."""
        self.placement = _all_devices() if placement is None else as_placement(placement)
        """Where it runs."""
        self._batch = (batch_argnums,) if isinstance(batch_argnums, int) else batch_argnums
        self._local, self._parts, self._has_aux, self._donate = local_batch, grad_accumulation, has_aux, donate_argnums
        config = config or AutoParallelConfig()
        self._config = replace(config, solver="data_parallel") if config.solver == "ilp" else config
        self._made: dict[Any, _Made] = {}
        self._agreed: set[str] = set()
        self._is_model = _is_nnx(fn)
        if self._is_model:
            _take_from_process_0(fn)
        self._fn = _applied(fn)
        functools.update_wrapper(self, self._fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``fn``'s result."""
        function, given = self._prepared("call", args, kwargs)
        return function(*given)

    def value_and_grad(self, *args: Any, **kwargs: Any) -> Any:
        """The loss and its gradients by the first argument; for an nnx model, by the model: see the class."""
        function, given = self._prepared("value_and_grad", args, kwargs)
        return function(*given)

    def grad(self, *args: Any, **kwargs: Any) -> Any:
        """The gradients alone; with ``has_aux`` and the other results."""
        value, grads = self.value_and_grad(*args, **kwargs)
        return (grads, value[1]) if self._has_aux else grads

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """The plan of ``ddp(*args)``."""
        function, given = self._prepared("call", args, kwargs)
        return function.plan(*given)

    def gradient_plan(self, *args: Any, **kwargs: Any) -> Any:
        """The plan of ``ddp.value_and_grad(*args)``."""
        function, given = self._prepared("value_and_grad", args, kwargs)
        return function.plan(*given)

    def __repr__(self) -> str:
        return f"<DistributedDataParallel of {getattr(self._fn, '__name__', self._fn)} on {self.placement}>"

    def _prepared(self, what: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """The planned function for arguments of these shapes, and the arguments as it takes them."""
        fn = self._fn
        if self._is_model:
            if what == "value_and_grad":
                if not args or not callable(args[0]) or _is_nnx(args[0]):
                    raise PlanError("of a model, value_and_grad takes a loss and its batch: loss(model, *batch)")
                fn, args = args[0], args[1:]
            args = (self.module, *args)
        args = tuple(map(_as_arrays, _positional(fn, args, kwargs)))
        if not args:
            raise PlanError(
                f"{getattr(fn, '__name__', 'the function')} takes the state or the model first, got nothing"
            )
        key = what, fn, _look(args)
        made = self._made.get(key)
        if made is None:
            whole = self._state(fn, what, args)
            made = self._made[key] = _Made(whole, batch_size([x for i, x in enumerate(args) if i not in whole]))
        args = tuple(x if i in made.whole else self._of_all(x, made.size) for i, x in enumerate(args))
        if made.function is None:
            size = batch_size([x for i, x in enumerate(args) if i not in made.whole])
            self._check_size(size)
            made.function = self._make(fn, what, args, made.whole, size)
        return made.function, args

    def _state(self, fn: Callable[..., Any], what: str, args: Sequence[Any]) -> set[int]:
        """The positions of what is no batch."""
        if self._batch is not None:
            strange = [i for i in self._batch if not 0 <= i < len(args)]
            if strange:
                raise PlanError(f"batch_argnums names positions {strange}, the call has {len(args)} argument(s)")
            return set(range(len(args))) - set(self._batch)
        found = {0} | {i for i, x in enumerate(args) if _has_nnx(x)}
        if what == "call" and not any(_has_nnx(x) for x in args):
            shapes = jax.tree.map(_shape, tuple(args))
            results = set(_subtrees(jax.eval_shape(fn, *shapes)))
            found |= {i for i, x in enumerate(shapes) if _described(x) in results}
        return found

    def _of_all(self, tree: Any, size: int | None) -> Any:
        """A process's own part of the batch as the whole one."""
        if not self._local or jax.process_count() == 1 or size is None:
            return tree
        spread = to_sharding(_split(self.placement), self.placement, 1)

        def whole(x: Any) -> Any:
            if not counts(x, size) or (isinstance(x, jax.Array) and not x.is_fully_addressable):
                return x
            sharding = NamedSharding(spread.mesh, spread.spec)
            return jax.make_array_from_process_local_data(sharding, np.asarray(x))

        self._agree(tree)
        return jax.tree.map(whole, tree)

    def _agree(self, tree: Any) -> None:
        """That all processes pass parts of the same shapes; asked where a shape is new."""
        mine = json.dumps([[jax.tree_util.keystr(p), list(np.shape(x))] for p, x in
                           jax.tree_util.tree_flatten_with_path(tree)[0]])  # fmt: skip
        if mine in self._agreed:
            return
        texts = store().gather("local batches of DistributedDataParallel", mine)
        other = [rank for rank, text in enumerate(texts) if text != mine]
        if other:
            raise PlanError(
                f"local_batch=True: this process (rank {jax.process_index()}) passes {mine}, rank {other[0]} passes "
                f"{texts[other[0]]}: every process must pass a part of the same shapes"
            )
        self._agreed.add(mine)

    def _check_size(self, size: int | None) -> None:
        if size is None:
            raise PlanError(
                "no argument is a batch: the first one is the state, the others are split along their leading "
                "dimension. Say which positions are the batch: batch_argnums=..."
            )
        if size % self.placement.size:
            more = -(-size // self.placement.size) * self.placement.size
            raise PlanError(
                f"a batch of {size} does not divide by the {self.placement.size} devices of {self.placement}: each "
                f"takes an equal part. Use a batch of {more}, or fewer devices (sbp.data's drop_remainder=True leaves "
                "out what an epoch has over)"
            )
        if size % (self._parts * self.placement.size):
            raise PlanError(
                f"a batch of {size} cannot be cut into grad_accumulation={self._parts} parts for "
                f"{self.placement.size} devices each: use a multiple of {self._parts * self.placement.size}"
            )

    def _make(self, fn: Any, what: str, args: Sequence[Any], whole: set[int], size: int | None) -> Any:
        has_objects = any(map(_has_nnx, args))
        if what == "value_and_grad":
            graded = nnx_gradient if has_objects else gradient
            run = graded(fn, self._parts, self._has_aux, size, whole)
        else:
            run = fn
        if has_objects:
            from ..flax import jit

            return jit(run, placement=self.placement, config=self._config, sbp=self._pins(run, args, whole, size))
        in_sbp = tuple(
            jax.tree.map(lambda x, i=i: _split(self.placement) if i not in whole and counts(x, size) else
                         _whole(self.placement), x) for i, x in enumerate(args)
        )  # fmt: skip
        results = jax.eval_shape(run, *jax.tree.map(_shape, tuple(args)))
        # What a model gives for each example stays where it is made.
        out_sbp = jax.tree.map(
            lambda x: None if counts(x, size) and what == "call" else _whole(self.placement), results
        )
        if all(s is None for s in jax.tree.leaves(out_sbp, is_leaf=lambda s: s is None)):
            out_sbp = None
        return auto_parallel(
            run, placement=self.placement, config=self._config, donate_argnums=self._donate, in_sbp=in_sbp,
            out_sbp=out_sbp,
        )  # fmt: skip

    def _pins(self, run: Any, args: Sequence[Any], whole: set[int], size: int | None) -> dict[str, Any]:
        """Pins of the batch by path, for ``sbp.flax.jit``."""
        names = list(inspect.signature(run).parameters.values())
        found: dict[str, Any] = {}
        for i, x in enumerate(args):
            if i in whole:
                continue
            star = i >= len(names) or names[i].kind is inspect.Parameter.VAR_POSITIONAL
            root = f"{names[-1].name}/{i - len(names) + 1}" if star else names[i].name
            for path, leaf in jax.tree_util.tree_flatten_with_path(x)[0]:
                if counts(leaf, size):
                    rest = jax.tree_util.keystr(path, simple=True, separator="/")
                    found[f"{root}/{rest}" if rest else root] = _split(self.placement)
        return found


@dataclass(slots=True)
class _Made:
    """For arguments of some shapes: which positions are state, the batch's size, and the planned function."""

    whole: set[int]
    size: int | None
    function: Any = None


@dataclass(frozen=True, slots=True)
class _Described:
    """A tree's structure, shapes and types."""

    tree: Any
    leaves: tuple[Any, ...]


def _described(tree: Any) -> _Described:
    leaves, structure = jax.tree.flatten(tree)
    return _Described(structure, tuple((x.shape, str(x.dtype)) for x in leaves))


def _subtrees(results: Any) -> list[_Described]:
    parts = list(results) if isinstance(results, tuple | list) else (
        list(results.values()) if isinstance(results, dict) else []
    )  # fmt: skip
    return [_described(x) for x in (results, *parts) if jax.tree.leaves(x)]


def batch_size(batch: Any) -> int | None:
    """The leading dimension that most arrays of a batch have; of several alike, that of the largest array."""
    count: dict[int, tuple[int, int]] = {}
    for x in jax.tree.leaves(batch):
        shape = tuple(np.shape(x))
        if shape:
            many, most = count.get(shape[0], (0, 0))
            count[shape[0]] = many + 1, max(most, math.prod(shape))
    return max(count, key=lambda n: count[n]) if count else None


def _split(where: Placement) -> Signature:
    return Signature((Split(0),) * where.ndim)


def _whole(where: Placement) -> Signature:
    return Signature((broadcast,) * where.ndim)


def _all_devices() -> Placement:
    return placement.all(jax.default_backend())


def _shape(x: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), x)


def _look(args: Any) -> Any:
    """What of arguments the pins hang on."""
    leaves, tree = jax.tree.flatten(args)
    return tree, tuple((np.shape(x), str(getattr(x, "dtype", type(x)))) for x in leaves)


def _as_arrays(tree: Any) -> Any:
    """A tree with global tensors as their logical arrays. Without any it stays what it is: an nnx model is itself."""

    def is_tensor(x: Any) -> bool:
        return isinstance(x, GlobalTensor)

    if not any(map(is_tensor, jax.tree.leaves(tree, is_leaf=is_tensor))):
        return tree
    return jax.tree.map(lambda x: x.array if is_tensor(x) else x, tree, is_leaf=is_tensor)


def _positional(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments by position."""
    if not kwargs:
        return tuple(args)
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise PlanError(f"{getattr(fn, '__name__', 'the function')}: {error}") from error
    if bound.kwargs:
        raise PlanError(
            f"arguments {sorted(bound.kwargs)} can be passed by name only: bind them before, functools.partial(fn, ...)"
        )
    return bound.args


def _nnx() -> Any:
    """``flax.nnx``, where somebody has imported it: without that there are no objects of it."""
    return sys.modules.get("flax.nnx")


def _is_nnx(x: Any) -> bool:
    nnx = _nnx()
    return nnx is not None and isinstance(x, nnx.Module)


def _has_nnx(x: Any) -> bool:
    if _nnx() is None:
        return False
    from ..flax.variables import is_object

    return any(map(is_object, jax.tree.leaves(x, is_leaf=is_object)))


def _applied(fn: Any) -> Callable[..., Any]:
    """A model as a function."""
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(fn, linen.Module):
        return fn.apply
    if _is_nnx(fn):

        def forward(model: Any, *args: Any) -> Any:
            return model(*args)

        return forward
    return fn


def _take_from_process_0(model: Any) -> None:
    """Give a model the variables that process 0's has, so that all begin alike."""
    if jax.process_count() == 1:
        return
    from flax import nnx
    from jax.experimental import multihost_utils

    state = nnx.state(model)
    leaves, tree = jax.tree.flatten(state)
    if any(isinstance(x, jax.Array) and not x.is_fully_addressable for x in leaves):
        return  # made across processes: one value already
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    raw = [jax.random.key_data(x) if is_key else x for x, is_key in zip(leaves, keys, strict=True)]
    same = multihost_utils.broadcast_one_to_all([np.asarray(x) for x in raw])
    new = [
        jax.random.wrap_key_data(jnp.asarray(x), impl=jax.random.key_impl(old)) if is_key else jnp.asarray(x, old.dtype)
        for x, old, is_key in zip(same, leaves, keys, strict=True)
    ]
    nnx.update(model, jax.tree.unflatten(tree, new))
