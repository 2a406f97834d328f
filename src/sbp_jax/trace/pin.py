"""``sbp.to_global`` inside a traced function: a primitive that pins its result's signature.

It computes nothing. Its gradient is pinned to the dual signature, where a split stays a split and broadcast
and partial change places (OneFlow's ``to_global``), or to ``grad_sbp``.
"""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from ..shardings import PlacementLike, SbpLike, as_placement, signature_on
from ..signature import Broadcast, Partial, Signature, Split, broadcast, partial_sum

pin_p = Primitive("sbp.pin")
pin_p.def_impl(lambda x, **_: x)
pin_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(pin_p, lambda _, x, **__: [x])


def dual(signature: Signature) -> Signature:
    """The signature of the gradient: S <-> S, B <-> P."""
    return Signature(
        tuple(c if isinstance(c, Split) else partial_sum if isinstance(c, Broadcast) else broadcast for c in signature)
    )


def _transpose(cotangent: Any, x: Any, *, signature: Any, gradient: Any) -> list[Any]:
    return [pin_p.bind(cotangent, signature=gradient, gradient=signature)]


def _batch(args: Any, dims: Any, *, signature: Any, gradient: Any) -> Any:
    (x,), (d,) = args, dims

    def shift(s: Any) -> Any:
        if isinstance(s, NamedSharding):
            return NamedSharding(s.mesh, shift(s.spec))
        if isinstance(s, PartitionSpec):
            entries = (*s, *[None] * (x.ndim - 1 - len(s)))
            return s.update(partitions=(*entries[:d], None, *entries[d:]))
        return Signature(tuple(Split(c.dim + (c.dim >= d)) if isinstance(c, Split) else c for c in s))

    return pin_p.bind(x, signature=shift(signature), gradient=shift(gradient)), d


ad.deflinear2(pin_p, _transpose)
batching.primitive_batchers[pin_p] = _batch


def pin(x: Any, sbp: SbpLike, placement: PlacementLike | None = None, grad_sbp: SbpLike | None = None) -> Any:
    """``x``, its signature in the plan fixed to ``sbp``. The value is unchanged; outside a plan it does nothing.

    Args:
        x: an array, inside a function that is planned.
        sbp: the signature, one component for each axis of the plan's placement; or a ``PartitionSpec`` of its axes, or
            a ``NamedSharding`` of its mesh.
        placement: the plan's placement, to check against; may be left out.
        grad_sbp: the gradient's signature; where it is left out the dual one, of a sharding the same.

    Raises:
        SignatureError: where the signature does not fit the rank, or the placement's axes.
    """
    ndim = jax.numpy.ndim(x)
    wanted, gradient = _read(sbp, ndim, placement), None if grad_sbp is None else _read(grad_sbp, ndim, placement)
    if isinstance(wanted, Signature):
        gradient = dual(wanted) if gradient is None else gradient
        if any(isinstance(c, Partial) and c.op != "sum" for c in wanted):
            gradient = wanted
    return pin_p.bind(jax.numpy.asarray(x), signature=wanted, gradient=wanted if gradient is None else gradient)


def _read(given: SbpLike, ndim: int, placement: PlacementLike | None) -> Signature | PartitionSpec | NamedSharding:
    """A signature, resolved as far as it can be without the plan's placement."""
    if isinstance(given, PartitionSpec | NamedSharding):
        spec = given.spec if isinstance(given, NamedSharding) else given
        if placement is None or PartitionSpec.UNCONSTRAINED in tuple(spec):
            return given
        return signature_on(given, ndim, as_placement(placement))
    signature = Signature.of(given).resolve(ndim)
    return signature if placement is None else signature_on(signature, ndim, as_placement(placement))
