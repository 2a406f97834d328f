"""What a restored state is to be: each saved leaf compared with what is expected, and where it goes.

Differences are collected and told together; nothing is cast, cut or padded to fit.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from ..errors import CheckpointError, PlacementError, SignatureError
from ..pieces import balanced
from ..placement import Placement
from ..shardings import from_sharding, to_sharding
from ..signature import Component, Partial, Signature, Split, broadcast
from ..tensor import GlobalTensor
from ..tensor.spec import Spec, make_spec
from .leaves import Leaf, dtype_of, flatten, from_json, key_dtype, names

_MOST_TOLD = 8


@dataclass(frozen=True, slots=True)
class Target:
    """Where a leaf goes: a Python value, numpy, a ``jax.Array`` with ``sharding`` (None: the default device, not
    committed to it), or a global tensor of ``spec``. ``note``: what could not stay as it was."""

    leaf: Leaf
    value: Any = None
    is_value: bool = False
    is_numpy: bool = False
    sharding: Sharding | None = None
    spec: Spec | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A placement with a signature; None: as it was."""

    placement: Placement | None = None
    signature: Signature | None = None


def targets(leaves: Sequence[Leaf], like: Any, placement: Placement | None, where: str) -> tuple[list[Target], Any]:
    """The targets in the order of ``like``'s leaves with its structure; without ``like`` in the leaves' own order, and
    None. Raises ``CheckpointError`` that lists the differences.
    """
    if like is None:
        return [_target(leaf, None, placement) for leaf in leaves], None
    wanted, structure = flatten(like)
    saved = dict(zip(names([x.keys for x in leaves]), leaves, strict=True))
    expected = dict(zip(names([keys for keys, _ in wanted]), [x for _, x in wanted], strict=True))
    told, found = [], []
    for path, x in expected.items():
        leaf = saved.get(path)
        if leaf is None:
            found.append(Target(Leaf((), "empty"), x, is_value=True))
            continue
        fault = difference(leaf, x)
        if fault:
            told.append(f"{path or 'the state'}: {fault}")
            continue
        try:
            found.append(_target(leaf, x, placement))
        except (SignatureError, PlacementError, CheckpointError) as error:
            told.append(f"{path or 'the state'}: {error}")
    # None, and containers with nothing in them, may come and go.
    there = [path for path, leaf in saved.items() if not _is_nothing(leaf)]
    told += _tree_differences(there, [path for path, x in expected.items() if not _is_empty(x)], set(saved))
    if told:
        raise CheckpointError(_listed(where, told))
    return found, structure


def _is_nothing(leaf: Leaf) -> bool:
    return leaf.kind == "empty" or (leaf.kind == "python" and from_json(leaf.value) is None)


def _is_empty(x: Any) -> bool:
    return not isinstance(x, GlobalTensor) and not jax.tree_util.tree_leaves(x)


def _listed(where: str, told: Sequence[str]) -> str:
    more = f"\n  and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    lines = "".join(f"\n  {line}" for line in told[:_MOST_TOLD])
    count = "1 difference" if len(told) == 1 else f"{len(told)} differences"
    return (
        f"the checkpoint {where} is not of this state, {count}:{lines}{more}\n"
        "Restore with like= of the model that was saved, or without like= to get what is there; nothing is converted"
    )


def _tree_differences(saved: Sequence[str], expected: Sequence[str], known: set[str]) -> list[str]:
    """What is missing in the checkpoint, with the nearest name that is left there, and what is only there."""
    told, wanted = [], set(expected)
    left = [path for path in saved if path not in wanted]
    for path in expected:
        if path not in known:
            near = difflib.get_close_matches(path, left, 1, 0.6)
            told.append(f"{path}: not in the checkpoint" + (f", which has {near[0]}" if near else ""))
    return told + [f"{path}: only in the checkpoint" for path in left]


def difference(leaf: Leaf, x: Any) -> str:
    """How a saved leaf differs from what is expected, in words; empty if it does not."""
    if isinstance(x, Sharding):
        return "" if leaf.has_data else f"saved {leaf}, expected an array"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return _array_difference(leaf, tuple(x.shape), x.dtype)
    if leaf.has_data:
        fits = leaf.logical_shape == () and not leaf.prng and _python_type(leaf) is type(x)
        return "" if fits else f"saved {leaf}, expected {_said(x)}"
    if _is_nothing(leaf) or _is_empty(x):
        return "" if _is_nothing(leaf) and _is_empty(x) else f"saved {leaf}, expected {_said(x)}"
    return "" if type(from_json(leaf.value)) is type(x) else f"saved {leaf}, expected {_said(x)}"


def _array_difference(leaf: Leaf, shape: tuple[int, ...], dtype: Any) -> str:
    expected = f"{dtype}{list(shape)}"
    if leaf.kind == "python":
        value = from_json(leaf.value)
        fits = shape == () and isinstance(value, bool | int | float | complex) and _holds(dtype, value)
        return "" if fits else f"saved {leaf}, expected {expected}"
    if not leaf.has_data:
        return f"saved {leaf}, expected {expected}"
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        same = bool(leaf.prng) and str(dtype) == str(key_dtype(leaf.prng))
    else:
        same = not leaf.prng and np.dtype(dtype) == dtype_of(leaf.dtype)
    return "" if same and shape == leaf.logical_shape else f"saved {leaf}, expected {expected}"


def _said(x: Any) -> str:
    return "None" if x is None else f"a Python {type(x).__name__}"


def _python_type(leaf: Leaf) -> type | None:
    dtype = dtype_of(leaf.dtype)
    kinds = ((np.bool_, bool), (np.integer, int), (np.floating, float), (np.complexfloating, complex))
    return next((python for kind, python in kinds if jnp.issubdtype(dtype, kind)), None)


def _holds(dtype: Any, value: Any) -> bool:
    """Whether an array of a dtype can hold a Python number as it is: of its kind, and within its range."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return False
    if _python_type(Leaf((), "numpy", np.dtype(dtype).name)) is not type(value):
        return False
    info = np.iinfo(dtype) if type(value) is int else None
    return info is None or info.min <= value <= info.max


def _target(leaf: Leaf, x: Any, placement: Placement | None) -> Target:
    """Where a leaf goes that fits ``x`` (None: nothing is expected)."""
    if leaf.kind == "empty" or (x is not None and _is_empty(x)):
        return Target(leaf, {"dict": {}, "list": [], "tuple": ()}.get(leaf.value) if x is None else x, is_value=True)
    if leaf.kind == "python":
        return _python_target(leaf, from_json(leaf.value), x, placement)
    kind = leaf.kind
    if isinstance(x, GlobalTensor):
        kind = "global"
    elif isinstance(x, np.ndarray | np.generic):
        kind = "numpy"
    elif _is_array(x) or isinstance(x, Sharding):
        kind = "jax"
    if kind == "numpy":
        return Target(leaf, is_numpy=True)
    if kind == "jax":
        _check_64_bits(leaf)
        return _array_target(leaf, x, placement)
    return _tensor_target(leaf, x, placement)


def _python_target(leaf: Leaf, value: Any, x: Any, placement: Placement | None) -> Target:
    """A Python leaf; where an array without dims is expected, as such an array."""
    if not _is_array(x):
        return Target(leaf, value, is_value=True)
    whole = np.asarray(value, x.dtype)
    if isinstance(x, np.ndarray | np.generic):
        return Target(leaf, whole[()] if isinstance(x, np.generic) else whole, is_value=True)
    if isinstance(x, GlobalTensor):
        to = placement or x.placement
        return Target(leaf, whole, True, spec=make_spec((), whole.dtype, to, Signature((broadcast,) * to.ndim)))
    if placement is not None:
        return Target(leaf, whole, True, sharding=to_sharding((broadcast,) * placement.ndim, placement, 0))
    sharding = None if isinstance(x, jax.Array) and not getattr(x, "committed", True) else getattr(x, "sharding", None)
    return Target(leaf, jax.device_put(whole, sharding) if sharding is None else whole, True, sharding=sharding)


def _is_array(x: Any) -> bool:
    return not isinstance(x, Sharding) and hasattr(x, "shape") and hasattr(x, "dtype")


def _check_64_bits(leaf: Leaf) -> None:
    dtype = dtype_of(leaf.dtype)
    if not leaf.prng and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise CheckpointError(
            f"{leaf.path}: saved {leaf}, which JAX has only with jax.config.update('jax_enable_x64', True); or expect "
            "a numpy array"
        )


def _array_target(leaf: Leaf, x: Any, placement: Placement | None) -> Target:
    sharding = x if isinstance(x, Sharding) else getattr(x, "sharding", None)
    if isinstance(x, jax.Array) and not getattr(x, "committed", True):
        sharding = None
    if placement is None and (sharding is not None or isinstance(x, jax.Array)):
        if sharding is not None:
            _check_even(sharding, leaf)
        return Target(leaf, sharding=sharding)
    was = _named(sharding, len(leaf.logical_shape)) if sharding is not None else Place(leaf.placement, leaf.signature)
    if placement is None and was.placement is None:
        return Target(leaf)
    to, signature, note = _moved(leaf, was, placement, even=True)
    return Target(leaf, sharding=to_sharding(signature, to, len(leaf.logical_shape)), note=note)


def _tensor_target(leaf: Leaf, x: Any, placement: Placement | None) -> Target:
    was = Place(x.placement, x.sbp) if isinstance(x, GlobalTensor) else Place(leaf.placement, leaf.signature)
    to, signature, note = _moved(leaf, was, placement, even=False)
    dtype = key_dtype(leaf.prng) if leaf.prng else dtype_of(leaf.dtype)
    _check_64_bits(leaf)
    return Target(leaf, spec=make_spec(leaf.logical_shape, dtype, to, signature), note=note)


def _named(sharding: Any, ndim: int) -> Place:
    from ..placement import placement

    if not isinstance(sharding, NamedSharding):
        return Place()
    return Place(placement.from_mesh(sharding.mesh), from_sharding(sharding, ndim))  # pyright: ignore[reportArgumentType]


def _check_even(sharding: Sharding, leaf: Leaf) -> None:
    try:
        sharding.shard_shape(leaf.logical_shape)
    except ValueError as error:
        raise CheckpointError(
            f"{leaf} cannot be a jax.Array in {sharding}: a dim does not divide by the devices that split it. Expect a "
            "global tensor there (sbp.empty(shape, placement=..., sbp=...)), which can, or another sharding"
        ) from error


def _moved(leaf: Leaf, was: Place, to: Placement | None, even: bool) -> tuple[Placement, Signature, str]:
    """Placement and signature of a leaf that was at ``was``: each axis keeps what the axis of its name did.

    An axis that cannot split its dim there splits another, or nothing; the third result says so.
    """
    if to is None:
        if was.placement is None or was.signature is None:
            raise PlacementError(f"{leaf.path}: nothing says where it goes; pass placement=")
        try:
            _ = was.placement.mesh
        except PlacementError as error:
            raise PlacementError(
                f"it was on {was.placement}, whose devices are not here ({error}). Pass placement=, or like= with "
                "shardings or global tensors"
            ) from error
        to = was.placement
    components = _carried(was, to)
    shape, product = leaf.logical_shape, [1] * len(leaf.logical_shape)
    found: list[Component] = []
    changed = []
    for c, size, name in zip(components, to.shape, to.axis_names, strict=True):
        if isinstance(c, Partial) and not even:
            found.append(c)
            continue
        dims = [c.dim] if isinstance(c, Split) else []
        others = sorted((d for d in range(len(shape)) if d not in dims), key=lambda d: -shape[d]) if dims else []
        fit = next((d for d in dims + others if _fits(shape[d], product[d] * size, even or d not in dims)), None)
        if fit is None:
            found.append(broadcast)
        else:
            product[fit] *= size
            found.append(Split(fit))
        if dims and fit != dims[0]:
            changed.append(f"{name}: {c} became {found[-1]}")
    note = f"{leaf.path} {list(shape)} on {to} ({'; '.join(changed)})" if changed else ""
    return to, Signature(tuple(found)), note


def _carried(was: Place, to: Placement) -> list[Component]:
    if was.placement is None or was.signature is None:
        return [broadcast] * to.ndim
    by_name = dict(zip(was.placement.axis_names, was.signature, strict=True))
    if not set(by_name) & set(to.axis_names) and was.placement.ndim == to.ndim:
        return list(was.signature)
    return [by_name.get(name, broadcast) for name in to.axis_names]


def _fits(n: int, parts: int, even: bool) -> bool:
    return n % parts == 0 if even else n == 0 or min(balanced(n, parts)) > 0
