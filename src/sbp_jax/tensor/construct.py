"""Constructors: tensors made where they will be, every device its own component.

Random ones hold the numbers that ``jax.random`` gives for the seed, on any placement and in any signature.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from .._compat import is_tracer
from ..errors import SignatureError
from ..shardings import PlacementLike, SbpLike, placement_for
from . import storage as stores
from .call import call
from .core import Stored
from .global_tensor import GlobalTensor
from .incoming import spec_of
from .spec import np_dtype, spec_for

Shape = Sequence[int] | int
_FLOAT = float  # as JAX has it: 32 bits unless x64 is enabled


def tensor(
    data: Any, dtype: Any = None, *, placement: PlacementLike | None = None, sbp: SbpLike | None = None
) -> GlobalTensor:
    """A global tensor of ``data`` (nested lists, numpy, ``jax.Array``, another global tensor).

    Where the signature is partial, the first device along the axis holds the value and the others the identity.
    ``sbp`` None is broadcast. In a program of several processes all must pass the same data.
    """
    placement = placement_for(placement, sbp)
    if isinstance(data, GlobalTensor):
        moved = data if dtype is None else data.astype(dtype)
        return moved.to_global(placement=placement, sbp=spec_for(data.shape, data.dtype, placement, sbp).sbp)
    if isinstance(data, jax.Array) and not (is_tracer(data) or data.is_fully_addressable):
        held = GlobalTensor(*spec_of(data))
        return tensor(held, dtype, placement=placement, sbp=sbp)
    array = data if isinstance(data, jax.Array) else _as_numpy(data)
    if dtype is not None:
        array = array.astype(np_dtype(dtype))
    spec = spec_for(array.shape, array.dtype, placement, sbp)
    return GlobalTensor(
        spec, stores.from_logical(spec, array if array.dtype == spec.dtype else array.astype(spec.dtype))
    )


def _as_numpy(data: Any) -> np.ndarray:
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise SignatureError(f"data is no regular array: {error}") from error
    np_dtype(array.dtype)
    return array


def local_to_global(locals_: Any, *, placement: PlacementLike | None = None, sbp: SbpLike) -> GlobalTensor:
    """The tensor whose components are ``locals_``: one for each rank of this process in the placement's order, or a
    dict by rank.

    Shapes are checked across all ranks. Along axes that are broadcast the first device's component is everybody's.
    Raises ``SignatureError`` where shapes or dtypes do not make up one tensor.
    """
    return GlobalTensor(*stores.local_to_global(locals_, placement_for(placement, sbp), sbp))


def generate(
    fn: Callable[..., Any], values: Sequence[Any], fixed: dict[str, Any], shape: Shape, dtype: Any,
    placement: PlacementLike | None, sbp: SbpLike | None,
) -> GlobalTensor:  # fmt: skip
    """``fn(*values, **fixed)``, of ``shape`` and ``dtype``, born in its signature."""
    spec = spec_for(shape, dtype, placement, sbp)
    return call(GlobalTensor, fn, tuple(values), fixed, placement=spec.placement, sbp=spec.sbp)


def full(
    shape: Shape,
    fill_value: Any,
    dtype: Any = None,
    *,
    placement: PlacementLike | None = None,
    sbp: SbpLike | None = None,
) -> GlobalTensor:
    """``fill_value`` everywhere."""
    kind = np_dtype(dtype if dtype is not None else jax.dtypes.canonicalize_dtype(np.result_type(fill_value)))
    value = np.asarray(fill_value).astype(kind)
    return generate(_full, [value], {"shape": _tuple(shape)}, shape, kind, placement, sbp)


def _full(value: Any, *, shape: tuple[int, ...]) -> Any:
    return jnp.broadcast_to(value, shape)


def zeros(
    *shape: Any, dtype: Any = _FLOAT, placement: PlacementLike | None = None, sbp: SbpLike | None = None
) -> GlobalTensor:
    """Zeros; the shape as numbers or as one tuple."""
    return full(_sizes(shape), 0, dtype, placement=placement, sbp=sbp)


def ones(
    *shape: Any, dtype: Any = _FLOAT, placement: PlacementLike | None = None, sbp: SbpLike | None = None
) -> GlobalTensor:
    """Ones; the shape as numbers or as one tuple."""
    return full(_sizes(shape), 1, dtype, placement=placement, sbp=sbp)


def empty(
    *shape: Any, dtype: Any = _FLOAT, placement: PlacementLike | None = None, sbp: SbpLike | None = None
) -> GlobalTensor:
    """As ``zeros``: JAX has no uninitialised arrays."""
    return zeros(*shape, dtype=dtype, placement=placement, sbp=sbp)


def arange(
    start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, placement: PlacementLike | None = None,
    sbp: SbpLike | None = None,
) -> GlobalTensor:  # fmt: skip
    """``jax.numpy.arange``."""
    bounds = (0, start, step) if stop is None else (start, stop, step)
    aval = jax.eval_shape(lambda: jnp.arange(*bounds, dtype=dtype))
    fixed = {"bounds": bounds, "dtype": np.dtype(aval.dtype)}
    return generate(_arange, [], fixed, aval.shape, aval.dtype, placement, sbp)


def _arange(*, bounds: tuple[Any, Any, Any], dtype: Any) -> Any:
    return jnp.arange(*bounds, dtype=dtype)


def eye(
    n: int,
    m: int | None = None,
    dtype: Any = _FLOAT,
    *,
    placement: PlacementLike | None = None,
    sbp: SbpLike | None = None,
) -> GlobalTensor:
    """``jax.numpy.eye``."""
    size = (n, n if m is None else m)
    return generate(_eye, [], {"n": size[0], "m": size[1], "dtype": np_dtype(dtype)}, size, dtype, placement, sbp)


def _eye(*, n: int, m: int, dtype: Any) -> Any:
    return jnp.eye(n, m, dtype=dtype)


def linspace(
    start: float, stop: float, num: int = 50, dtype: Any = _FLOAT, *, placement: PlacementLike | None = None,
    sbp: SbpLike | None = None,
) -> GlobalTensor:  # fmt: skip
    """``jax.numpy.linspace``."""
    fixed = {"bounds": (start, stop, num), "dtype": np_dtype(dtype)}
    return generate(_linspace, [], fixed, (num,), dtype, placement, sbp)


def _linspace(*, bounds: tuple[float, float, int], dtype: Any) -> Any:
    return jnp.linspace(*bounds, dtype=dtype)


_calls = itertools.count()


def _key_data(seed: Any) -> Any:
    """The words of a seed's key. Without one: the next of a stream that is the same in every process."""
    if seed is None:
        seed = jax.random.fold_in(jax.random.key(0), next(_calls))
    elif isinstance(seed, int | np.integer):
        seed = jax.random.key(int(seed))
    return jax.random.key_data(seed) if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) else seed


def _draw(key_data: Any, *bounds: Any, sampler: str, shape: tuple[int, ...], dtype: Any) -> Any:
    return getattr(jax.random, sampler)(jax.random.wrap_key_data(key_data), shape, dtype, *bounds)


def _random(
    sampler: str, shape: tuple[Any, ...], bounds: Sequence[Any], seed: Any, dtype: Any, placement: Any,
    sbp: SbpLike | None,
) -> GlobalTensor:  # fmt: skip
    sizes, kind = _tuple(_sizes(shape)), np_dtype(dtype)
    fixed = {"sampler": sampler, "shape": sizes, "dtype": kind}
    return generate(_draw, [_key_data(seed), *bounds], fixed, sizes, kind, placement, sbp)


def randn(
    *shape: Any,
    seed: Any = None,
    dtype: Any = _FLOAT,
    placement: PlacementLike | None = None,
    sbp: SbpLike | None = None,
) -> GlobalTensor:
    """``jax.random.normal(jax.random.key(seed), shape)``; ``seed`` an int or a key."""
    return _random("normal", shape, (), seed, dtype, placement, sbp)


def rand(
    *shape: Any,
    seed: Any = None,
    dtype: Any = _FLOAT,
    placement: PlacementLike | None = None,
    sbp: SbpLike | None = None,
) -> GlobalTensor:
    """``jax.random.uniform(jax.random.key(seed), shape)``; ``seed`` an int or a key."""
    return _random("uniform", shape, (), seed, dtype, placement, sbp)


def randint(
    low: int, high: int, shape: Shape, *, seed: Any = None, dtype: Any = "int32",
    placement: PlacementLike | None = None, sbp: SbpLike | None = None,
) -> GlobalTensor:  # fmt: skip
    """``jax.random.randint(jax.random.key(seed), shape, low, high)``."""
    sizes, kind = _tuple(shape), np_dtype(dtype)
    fixed = {"shape": sizes, "bounds": (int(low), int(high)), "dtype": kind}
    return generate(_randint, [_key_data(seed)], fixed, sizes, kind, placement, sbp)


def _randint(key_data: Any, *, shape: tuple[int, ...], bounds: tuple[int, int], dtype: Any) -> Any:
    return jax.random.randint(jax.random.wrap_key_data(key_data), shape, *bounds, dtype)


def _like(make: Callable[..., GlobalTensor]) -> Callable[..., GlobalTensor]:
    def like(
        x: Stored, *, dtype: Any = None, placement: PlacementLike | None = None, sbp: SbpLike | None = None
    ) -> GlobalTensor:
        if placement is None and not isinstance(sbp, NamedSharding):
            placement = x.placement
        where = placement_for(placement, sbp)
        kept = sbp if sbp is not None else x.sbp if where.ndim == x.placement.ndim else None
        return make(x.shape, dtype=dtype or x.dtype, placement=where, sbp=kept)

    like.__name__ = like.__qualname__ = f"{make.__name__}_like"
    like.__doc__ = (
        f"``{make.__name__}`` of the shape, dtype, placement and signature of ``x``, where not said otherwise."
    )
    return like


zeros_like, ones_like, empty_like = map(_like, (zeros, ones, empty))
rand_like, randn_like = map(_like, (rand, randn))


def full_like(x: Stored, fill_value: Any, *, dtype: Any = None) -> GlobalTensor:
    """``fill_value`` everywhere, in the shape, placement and signature of ``x``."""
    return full(x.shape, fill_value, dtype or x.dtype, placement=x.placement, sbp=x.sbp)


def _sizes(shape: tuple[Any, ...]) -> Shape:
    return shape[0] if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape


def _tuple(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(n) for n in shape)
