"""A call of a function of nnx objects, taken apart: the objects, the arrays, and what stays Python."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..calls.values import typed
from ..errors import PlanError
from .variables import is_object, path_of


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a call is put together again. ``kinds``: by leaf of the named arguments its kind and path. Hashable."""

    tree: Any
    kinds: tuple[tuple[str, str], ...]
    statics: tuple[tuple[str, Any], ...]
    types: Any = ()
    """Of the statics: 2 equals 2.0 and True equals 1, but they are other programs."""

    def arguments(self, objects: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        """The named arguments with these objects and arrays."""
        leaves = [objects[path] if kind == "object" else arrays[path] for kind, path in self.kinds]
        return jax.tree.unflatten(self.tree, leaves) | dict(self.statics)


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's signature, and the names of its static arguments."""

    name: str
    inspected: inspect.Signature
    statics: frozenset[str]

    @classmethod
    def of(
        cls, fn: Callable[..., Any], static_argnums: int | Sequence[int], static_argnames: str | Iterable[str]
    ) -> "Signature":
        """Of a function; numbers and names of static arguments as ``jax.jit``'s."""
        name = getattr(fn, "__name__", type(fn).__name__)
        inspected = inspect.signature(fn)
        names = list(inspected.parameters)
        numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        named = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        has_more = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in inspected.parameters.values())
        wrong = [i for i in numbers if not -len(names) <= i < len(names)]
        wrong += [] if has_more else [n for n in named if n not in names]
        if wrong:
            raise PlanError(f"static_argnums/static_argnames {wrong}: {name} has the arguments {', '.join(names)}")
        return cls(name, inspected, frozenset((*named, *(names[i] for i in numbers))))

    def take_apart(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Recipe, dict[str, Any], dict[str, Any]]:
        """A call's recipe, its nnx objects and its arrays, by path (the argument's name first)."""
        named = self._named(args, kwargs)
        statics = tuple(sorted((k, v) for k, v in named.items() if k in self.statics))
        for k, v in statics:
            try:
                hash(v)
            except TypeError:
                raise PlanError(f"static argument {k!r} of {self.name} cannot be hashed: {type(v).__name__}") from None
        dynamic = {k: v for k, v in named.items() if k not in self.statics}
        leaves, tree = jax.tree_util.tree_flatten_with_path(dynamic, is_leaf=is_object)
        kinds, objects, arrays = [], {}, {}
        for path, x in leaves:
            where = path_of(path)
            if is_object(x):
                objects[where] = x
            elif (hasattr(x, "shape") and hasattr(x, "dtype")) or isinstance(x, int | float | complex | np.generic):
                arrays[where] = x
            else:
                raise PlanError(
                    f"argument {where} of {self.name} is a {type(x).__name__}: neither an nnx object nor an array. "
                    f"A Python value that the function only looks at is named in static_argnames={path_of(path[:1])!r}"
                )
            kinds.append(("object" if is_object(x) else "array", where))
        return Recipe(tree, tuple(kinds), statics, typed(tuple(v for _, v in statics))), objects, arrays

    def call(self, fn: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """``fn`` with named arguments."""
        positional, keywords = [], {}
        for name, parameter in self.inspected.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional += arguments.get(name, ())
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                keywords |= {k: arguments[k] for k in arguments if k not in self.inspected.parameters}
            elif name in arguments and parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keywords[name] = arguments[name]
            elif name in arguments:
                if len(positional) == list(self.inspected.parameters).index(name):
                    positional.append(arguments[name])
                else:
                    keywords[name] = arguments[name]
        return fn(*positional, **keywords)

    def _named(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self.inspected.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        for name, parameter in self.inspected.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                bound |= bound.pop(name, {})
        return bound
