"""What one device runs for all: effects, host callbacks, randomness that is not made from a key.

A step is one ``shard_map``: whatever is in it runs on every device. Eight devices would print eight times, and a number
that the host (or the device's own generator) gives would be another one on each. Such an op runs on one device only.
Its results are then terms of a sum (``P`` along every axis: the value there, zeros elsewhere), so that sending them to
all is a boxing as any other: the plan lists it with its price, ``verify`` knows it.

Results travel as unsigned integers of their width: adding zeros then changes no bit (-0.0, NaN), and nothing computes
with the terms before they are sent.
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.experimental import io_callback

from ..errors import PlacementError
from . import host
from .base import Factors, Linear, Local, OpLike, is_a, register, whole

REASON = "one device runs it, once, and sends the result to all"


@dataclass(frozen=True, eq=False, slots=True)
class Once:
    """The primitive that one device runs, with its parameters, in ``params["once"]`` of an op.

    No two are equal: what has an effect is never one op with another. A plan does not depend on what the host does, so
    fingerprints leave ``params`` out: a callback's closure (a list that it appends to) changes from call to call.
    """

    primitive: Any
    params: Mapping[str, Any] = field(compare=False)
    is_ordered: bool = False

    def __call__(self, *args: Any) -> list[Any]:
        """Run it: its results as words."""
        return [w for y in self.results(args) for w in to_words(y)]

    def results(self, args: Sequence[Any]) -> Sequence[Any]:
        name, params = self.primitive.name, dict(self.params)
        if name.startswith("debug_") and (self.is_ordered or any(map(host.is_wide, args))):
            told = host.under_setting(functools.partial(self.primitive.impl, **params), args, ())
            # JAX refuses ordered debugging effects on several devices (0.10 to 0.12), but not ordered IO.
            return io_callback(told, (), *map(host.from_device, args), ordered=self.is_ordered)
        if "sharding" in params:
            params["sharding"] = None
        if name not in ("io_callback", "pure_callback"):
            outs = self.primitive.bind(*args, **params)
            return outs if self.primitive.multiple_results else [outs]
        avals = params["result_avals"]
        params["callback"] = host.under_setting(params["callback"], args, avals)
        params["result_avals"] = tuple(ShapedArray(x.shape, x.dtype) for x in map(host.as_sent, avals))
        outs = self.primitive.bind(*map(host.from_device, args), **params)
        return [host.on_device(y, a) for y, a in zip(outs, avals, strict=True)]

    def place(self, local: Local) -> tuple[int, ...]:
        """The coordinates of the device that runs it: the first, or the one that ``sharding=`` names."""
        sharding = self.params.get("sharding")
        if sharding is None:
            return (0,) * len(local.axis_sizes)
        device = next(iter(sharding.device_set))
        rank = jax.devices(device.platform).index(device)
        if rank not in local.ranks:
            raise PlacementError(
                f"{self} has sharding={sharding}, whose device {device} is none of the placement's (ranks "
                f"{list(local.ranks)}). Name one of them, or leave sharding= out: the first device runs the callback"
            )
        return tuple(map(int, np.unravel_index(local.ranks.index(rank), local.axis_sizes)))

    def __repr__(self) -> str:
        function = getattr(self.params.get("callback"), "callback_func", self.params.get("callback"))
        return f"{self.primitive.name}({getattr(function, '__qualname__', '')})"


def to_words(x: Any) -> list[Any]:
    """An array as arrays whose sum with zeros is exact: unsigned words of floats, integers as they are."""
    dtype = jnp.result_type(x)
    if is_a(dtype, np.complexfloating):
        return [*to_words(jnp.real(x)), *to_words(jnp.imag(x))]
    (word,) = words_of(dtype)
    if is_a(dtype, np.inexact) and dtype.itemsize == word.itemsize and _bits(dtype) >= 8:
        return [lax.bitcast_convert_type(x, word)]
    return [lax.convert_element_type(x, word)]


def words_of(dtype: Any) -> list[np.dtype[Any]]:
    """The types of the words that an array of ``dtype`` travels as."""
    if is_a(dtype, np.complexfloating):
        return [np.dtype(f"uint{4 * np.dtype(dtype).itemsize}")] * 2
    if dtype == np.bool_:
        return [np.dtype(np.uint8)]
    if _bits(dtype) < 8:
        return [np.dtype(np.int8)] if is_a(dtype, np.integer) else [np.dtype(np.float32)]
    return [np.dtype(f"uint{_bits(dtype)}") if is_a(dtype, np.inexact) else np.dtype(dtype)]


def from_words(words: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """``to_words`` of several arrays undone."""
    supply = iter(words)
    found = []
    for dtype in dtypes:
        parts = [next(supply) for _ in words_of(dtype)]
        if is_a(dtype, np.complexfloating):
            real = np.dtype(f"float{4 * np.dtype(dtype).itemsize}")
            found.append(lax.complex(*(lax.bitcast_convert_type(w, real) for w in parts)))
        elif dtype == np.bool_:
            found.append(parts[0] != 0)
        elif is_a(dtype, np.inexact) and _bits(dtype) >= 8:
            found.append(lax.bitcast_convert_type(parts[0], dtype))
        else:
            found.append(lax.convert_element_type(parts[0], dtype))
    return found


def _bits(dtype: Any) -> int:
    if is_a(dtype, np.inexact):
        return jnp.finfo(dtype).bits
    return jnp.iinfo(dtype).bits if is_a(dtype, np.integer) else 8 * np.dtype(dtype).itemsize


def run_once(op: OpLike, local: Local, *args: Any) -> list[Any]:
    """The results on the device that runs it, zeros on the others."""
    call: Once = op.params["once"]
    axes = [axis for axis, n in enumerate(local.axis_sizes) if n > 1]
    if not axes:
        return call(*args)
    place = call.place(local)
    here = functools.reduce(operator.and_, [local.index(axis) == place[axis] for axis in axes])
    return lax.cond(here, lambda: call(*args), lambda: [jnp.zeros(v.shape, v.dtype) for v in op.outs])


@register("sbp.once", "io_callback", "pure_callback", "buffer_callback", "debug_callback", "debug_print", "rng_uniform",
          reason=REASON, local=run_once)  # fmt: skip
def once(op: OpLike) -> Factors:
    """Operands whole, results terms: one device's, and zeros."""
    return replace(whole(op), linear=(Linear(frozenset()),), once=True)
