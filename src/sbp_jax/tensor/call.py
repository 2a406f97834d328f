"""Calling a function on global tensors: which arguments are values, which are fixed; the step's cache; the results."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._compat import context_number
from ..errors import PlacementError, SbpError, SignatureError
from ..placement import Placement
from ..shardings import SbpLike
from .core import Stored
from .engine import STEPS, Step, invoke, same_placement, step_for, weak_aval
from .spec import Spec, np_dtype
from .storage import replicate

_NUMBERS = (float, complex)


Make = Callable[[Spec, Any], Any]


def call(
    make: Make, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], name: str = "",
    placement: Placement | None = None, sbp: SbpLike | None = None,
) -> Any:  # fmt: skip
    """``fn(*args, **kwargs)`` of logical values; results are made by ``make`` from spec and storage.

    Global tensors, arrays, floats and complex numbers among the positional arguments are values (nested in lists,
    tuples and dicts too); everything else, and numbers in ``kwargs``, is fixed, and part of what the step is compiled
    for. ``placement`` and ``sbp`` say where results live, for functions without tensors among their arguments.
    """
    steps, context = STEPS.of(fn), context_number()
    if not kwargs and sbp is None:  # tensors alone: the usual case, and the quick one
        try:
            step = steps.get((context, *[x.spec for x in args]))
        except (AttributeError, TypeError):
            step = None
        if step is not None:
            return finish(make, step, [x.storage for x in args], name or fn)
    leaves, tree = jax.tree.flatten((tuple(args), kwargs), is_leaf=_is_leaf)
    n_positional = len(leaves) if not kwargs else len(jax.tree.leaves(tuple(args), is_leaf=_is_leaf))
    values = [k for k, x in enumerate(leaves) if _is_value(x, k < n_positional)]
    chosen = set(values)
    fixed = tuple((k, type(x), _exact(x)) for k, x in enumerate(leaves) if k not in chosen)
    specs = [x.spec for x in leaves if isinstance(x, Stored)]
    where = same_placement(specs, name or _name(fn)) if specs else placement
    if where is None:
        raise PlacementError(
            f"{name or _name(fn)} got no global tensor, so there is no placement to compute on: pass placement=..., or "
            "make one of the arguments a global tensor"
        )
    signs = tuple(_sign(leaves[k]) for k in values)
    key = (context, tree, fixed, signs, where, sbp)
    try:
        step = steps.get(key)
    except TypeError as error:
        raise SbpError(f"{name or _name(fn)}: an argument that is no value must be hashable: {error}") from None
    if step is None:
        step = steps[key] = _make(fn, leaves, tree, values, where, sbp, name or _name(fn))
        if sbp is None and not kwargs and all(isinstance(x, Stored) for x in args):
            steps[context, *(x.spec for x in args)] = step
    return finish(make, step, [storage_of(leaves[k], where) for k in values], name or fn)


def finish(make: Make, step: Step, storages: Sequence[Any], name: Any) -> Any:
    """Run a step; its results in the function's own structure."""
    results = invoke(step, storages, name)
    if step.is_single:
        return make(step.specs[0], results[0])
    return jax.tree.unflatten(step.tree, [make(s, x) for s, x in zip(step.specs, results, strict=True)])


class Eager:
    """A function of tensors, arrays and numbers with one result, without control flow: the short way for operators."""

    __slots__ = ("fn", "name", "steps")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.name = fn, _name(fn)
        self.steps: dict[Any, Step] = {}

    def __call__(self, make: Make, *xs: Any) -> Any:
        key = (context_number(), *[x.spec if isinstance(x, Stored) else _sign(x) for x in xs])
        step = self.steps.get(key)
        if step is None:
            step = self.steps[key] = self._make(xs)
        spec = step.specs[0]
        storages = [x.storage if isinstance(x, Stored) else storage_of(x, spec.placement) for x in xs]
        return make(spec, invoke(step, storages, self.name)[0])

    def _make(self, xs: Sequence[Any]) -> Step:
        where = same_placement([x.spec for x in xs if isinstance(x, Stored)], self.name)
        given = [aval_of(x) for x in xs]
        return step_for(self.fn, given, where, None, self.name, _inlining(self.name, given))


def storage_of(x: Any, where: Placement) -> Any:
    """What a step takes for a value: a tensor's storage, an array on all devices, a number as it is."""
    if isinstance(x, Stored):
        return x.storage
    return x if isinstance(x, bool | int | float | complex) else replicate(x, where)


def aval_of(x: Any) -> Spec | jax.ShapeDtypeStruct:
    """What a step is made for."""
    if isinstance(x, Stored):
        return x.spec
    if isinstance(x, bool | int | float | complex):
        return weak_aval(x)
    array = x if hasattr(x, "dtype") else np.asarray(x)
    return jax.ShapeDtypeStruct(array.shape, np_dtype(array.dtype), weak_type=getattr(x, "weak_type", False))


def _exact(x: Any) -> Any:
    """A fixed value as a key: 0.0 and -0.0 are equal to Python, and nan is not to itself."""
    return repr(x) if isinstance(x, float | complex) else x


def _sign(x: Any) -> Any:
    """What of a value the step depends on."""
    if isinstance(x, Stored):
        return x.spec
    if isinstance(x, bool | int | float | complex):
        return type(x)
    return (x.shape, x.dtype, getattr(x, "weak_type", False))


def _is_leaf(x: object) -> bool:
    return isinstance(x, Stored) or x is None


def _is_value(x: Any, positional: bool) -> bool:
    if isinstance(x, Stored | jax.Array | np.ndarray):
        return True
    return positional and isinstance(x, _NUMBERS) and not isinstance(x, np.generic)


def _make(
    fn: Callable[..., Any], leaves: Sequence[Any], tree: Any, values: Sequence[int], where: Placement,
    sbp: SbpLike | None, name: str,
) -> Step:  # fmt: skip
    """Trace, plan and lower one call."""
    rest = list(leaves)
    for k in values:
        rest[k] = None

    def of_values(*xs: Any) -> Any:
        filled = list(rest)
        for k, x in zip(values, xs, strict=True):
            filled[k] = x
        args, kwargs = jax.tree.unflatten(tree, filled)
        return fn(*args, **kwargs)

    given = [aval_of(leaves[k]) for k in values]
    return step_for(of_values, given, where, sbp, name, _blaming(name, given))


@contextlib.contextmanager
def _blaming(name: str, given: Sequence[Any]) -> Iterator[None]:
    """Errors of tracing a function, as ours that name it and what it was given."""
    try:
        yield
    except SbpError:
        raise
    except (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError) as error:
        raise SbpError(
            f"{name} needs values to know the shape of its result, which a compiled function cannot give; "
            f"jax.numpy's size= argument fixes the shape, or take x.numpy(). ({str(error).splitlines()[0]})"
        ) from error
    except (TypeError, ValueError) as error:
        raise SignatureError(f"{name}({', '.join(map(str, given))}): {error}") from error


@contextlib.contextmanager
def _inlining(name: str, given: Sequence[Any]) -> Iterator[None]:
    """The same for a function without control flow: the jitted ones of ``jax.numpy`` in it are traced in place."""
    with _blaming(name, given), jax.disable_jit():
        yield


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
