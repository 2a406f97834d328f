"""Gradients of a function of a batch, as a whole or of its parts one after another."""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def counts(x: Any, size: int | None) -> bool:
    """Whether an array's leading dimension counts examples."""
    shape = np.shape(x)
    return bool(shape) and shape[0] == size


def gradient(fn: Any, parts: int, has_aux: bool, size: int | None, whole: Collection[int]) -> Callable[..., Any]:
    """``jax.value_and_grad`` of ``fn``, of ``parts`` of a batch of ``size`` examples one after another: their mean.

    ``whole``: the positions of the arguments that are no batch.
    """
    graded = jax.value_and_grad(fn, has_aux=has_aux)
    if parts == 1:
        return _named(fn, graded)

    def accumulated(*args: Any) -> Any:
        # Every device's rows stay its own: part k is every parts-th example.
        fixed, cut = _parted(args, parts, size, whole)

        def one(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, graded(*fixed(part))), None

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(graded, *args))
        total, _ = jax.lax.scan(one, zeros, cut)
        return jax.tree.map(lambda x: x / parts, total)

    return _named(fn, accumulated)


def nnx_gradient(fn: Any, parts: int, has_aux: bool, size: int | None, whole: Collection[int]) -> Callable[..., Any]:
    """As ``gradient``, of an ``nnx`` model, by ``nnx.value_and_grad``."""
    from flax import nnx

    graded = nnx.value_and_grad(fn, has_aux=has_aux)

    def run(*args: Any) -> Any:
        if parts == 1:
            return graded(*args)
        fixed, cut = _parted(args, parts, size, whole)
        # The model may change from part to part (running statistics), so no scan.
        found = [graded(*fixed(jax.tree.map(lambda x, k=k: x[k], cut))) for k in range(parts)]
        return jax.tree.map(lambda *x: sum(x[1:], x[0]) / parts, *found)

    return _named(fn, run)


def _parted(
    args: Sequence[Any], parts: int, size: int | None, whole: Collection[int]
) -> tuple[Callable[..., Any], Any]:
    """The batch's arrays, part by part along a new leading dimension, and what puts a part back among the arguments."""
    leaves = {i: jax.tree.flatten(x) for i, x in enumerate(args) if i not in whole}

    def cut(x: Any) -> Any:
        return jnp.moveaxis(jnp.reshape(x, (x.shape[0] // parts, parts, *x.shape[1:])), 1, 0)

    pieces = {i: [cut(x) for x in found if counts(x, size)] for i, (found, _) in leaves.items()}

    def fixed(part: dict[int, list[Any]]) -> tuple[Any, ...]:
        given = list(args)
        for i, (found, tree) in leaves.items():
            supply = iter(part[i])
            given[i] = jax.tree.unflatten(tree, [next(supply) if counts(x, size) else x for x in found])
        return tuple(given)

    return fixed, pieces


def _named(fn: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` with the name and the parameters of ``fn``."""

    def named(*args: Any) -> Any:
        return run(*args)

    try:
        named.__signature__ = inspect.signature(fn)  # pyright: ignore[reportFunctionMemberAccess]
    except (TypeError, ValueError):
        pass
    named.__name__ = named.__qualname__ = f"value_and_grad of {getattr(fn, '__name__', 'loss')}"
    return named
