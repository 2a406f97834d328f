"""Rules of the user's own, for primitives and for functions that the library does not look into."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..errors import SbpError
from ..signature import ReduceOp
from .base import Factors, Linear, Local, OpLike, lookup, register
from .notation import FactorMap, parse

Function = Callable[..., Any]


def register_rule(
    target: Any,
    map: str | None = None,
    /,
    *,
    reduced: dict[str, ReduceOp] | None = None,
    whole: Sequence[str] = (),
    linear: Sequence[int | Sequence[int] | Linear] = (),
) -> Any:
    """Say how a function, or a primitive, may be split.

    ``map`` names the dims of operands and results as einops does: ``"b k, k n -> b n"``. Operands and results are
    separated by commas, dims by spaces; ``(h d)`` is one dim made of two factors, the slower first; ``_`` is a dim
    that is never split. A device that holds its pieces of the operands along a name computes its piece of the
    results, by calling the function on the pieces. A name missing from a result needs a word: ``reduced={"k": "sum"}``
    where the results of the pieces add up (or ``"max"``, ``"min"``), ``whole=("k",)`` where it is not to be split.
    ``linear`` lists the operands through which a sum of terms passes: ``(0, 1)`` each alone, ``((0, 1),)`` together.

    A function gives back a function of arrays to use in its place, also as a decorator with the map alone. Its body
    is opaque to the planner, so Pallas kernels, ``jax.ffi`` calls and callbacks may be in it. ``vmap`` adds a dim
    that can be split. Its derivative is the derivative of its body and is planned from what that consists of: give
    a kernel and its gradient a rule each, and join the two with ``jax.custom_vjp``.

    A primitive (or its name) gets the rule itself: its parameters must not mention its operands' shapes.

    >>> @register_rule("b k, k n -> b n", reduced={"k": "sum"}, linear=(0, 1))
    ... def matmul(x, w):
    ...     return my_kernel(x, w)

    Raises ``SignatureError`` for a malformed map, pointing at the place, and ``SbpError`` for a primitive that has a
    factor map already.
    """
    options: Any = {"reduced": reduced, "whole": whole, "linear": linear}
    if map is None:
        if not isinstance(target, str):
            raise SbpError(f"register_rule takes a factor map, got only {target!r}: register_rule(f, 'b k -> b')")
        parse(target, **options)
        return lambda function: register_rule(function, target, **options)
    found = parse(map, **options)
    if isinstance(target, str | Primitive):
        _register_primitive(target if isinstance(target, str) else target.name, found)
        return target
    if not callable(target):
        raise SbpError(f"register_rule takes a function, a primitive or its name, got {target!r}")
    return _wrap(target, found)


REGISTERED: set[str] = set()  # primitives whose rule is a user's
_KERNELS = ("sbp.user", "pallas_call", "dot_product_attention")


def is_opaque_kernel(name: str) -> bool:
    """Whether a primitive is written for one device's arrays, so that XLA's partitioner cannot split it."""
    return name in REGISTERED or name.startswith(_KERNELS)


def _register_primitive(name: str, found: FactorMap) -> None:
    known = lookup(name)
    if known is not None and not known.reason and name not in REGISTERED:
        raise SbpError(f"primitive {name!r} has a factor map already: {known.factors.__doc__}")
    REGISTERED.add(name)

    def users(op: OpLike) -> Factors:
        return found.factors([x.shape for x in op.ins], [x.shape for x in op.outs])

    users.__doc__ = f"``{found.text}``"
    register(name, again=True, even=True)(users)


@dataclass(frozen=True, eq=False, slots=True)
class Opaque:
    """What an op of a user's function is: arrays to a list of arrays, and the map it was registered with."""

    name: str
    function: Function
    map: FactorMap
    batched: dict[tuple[bool, ...], "Opaque"] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.name}({self.map.text})"

    def over(self, mapped: tuple[bool, ...]) -> "Opaque":
        """This function over a new leading dim of the ``mapped`` operands and of every result."""
        if mapped not in self.batched:
            function = jax.vmap(self.function, in_axes=tuple(0 if m else None for m in mapped))
            self.batched[mapped] = Opaque(self.name, function, self.map.over(mapped))
        return self.batched[mapped]


def _wrap(function: Function, found: FactorMap) -> Function:
    known: dict[Any, Opaque] = {}

    @functools.wraps(function)
    def call(*args: Any, **static: Any) -> Any:
        arrays = [jnp.asarray(x) for x in args]
        key = tuple(sorted(static.items()))
        if key not in known:
            inner = functools.partial(function, **static)
            known[key] = Opaque(function.__name__, lambda *xs: jax.tree.leaves(inner(*xs)), found)
        tree = jax.tree.structure(jax.eval_shape(functools.partial(function, **static), *arrays))
        return jax.tree.unflatten(tree, user_p.bind(*arrays, call=known[key]))

    return call


user_p = Primitive("sbp.user")
user_p.multiple_results = True


@user_p.def_impl
def _run(*args: Any, call: Opaque) -> list[Any]:
    return call.function(*args)


@user_p.def_abstract_eval
def _shapes(*args: Any, call: Opaque) -> list[ShapedArray]:
    outs = jax.eval_shape(call.function, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args))
    call.map.factors([a.shape for a in args], [x.shape for x in outs])  # a map that does not fit is told here
    return [ShapedArray(x.shape, x.dtype) for x in outs]


def _derivative(primals: Sequence[Any], tangents: Sequence[Any], *, call: Opaque) -> tuple[list[Any], list[Any]]:
    """The results from the op itself, their tangents from its body."""
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def body(*xs: Any) -> list[Any]:
        given = dict(zip(moving, xs, strict=True))
        return call.function(*(given.get(i, p) for i, p in enumerate(primals)))

    outs = user_p.bind(*primals, call=call)
    _, dots = jax.jvp(body, [primals[i] for i in moving], [tangents[i] for i in moving])
    return outs, [_zero(y) if d.dtype == jax.dtypes.float0 else d for y, d in zip(outs, dots, strict=True)]


def _zero(y: Any) -> Any:
    """The tangent of a result that has none: an integer's."""
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def _batch(args: Sequence[Any], dims: Sequence[int | None], *, call: Opaque) -> tuple[list[Any], list[int]]:
    """One more dim, in front."""
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    outs = user_p.bind(*moved, call=call.over(tuple(d is not None for d in dims)))
    return outs, [0] * len(outs)


ad.primitive_jvps[user_p] = _derivative
batching.primitive_batchers[user_p] = _batch
mlir.register_lowering(user_p, mlir.lower_fun(_run, multiple_results=True))


def _local(op: OpLike, local: Local, *args: Any) -> Any:
    return op.params["call"].function(*args)


@register("sbp.user", local=_local, even=True)
def users_function(op: OpLike) -> Factors:
    """What the user said. Of what it does with padding, the map says nothing."""
    return op.params["call"].map.factors([x.shape for x in op.ins], [x.shape for x in op.outs])
