"""``sbp.to_global`` inside a traced function: a primitive that pins its result's signature.

It computes nothing. Its gradient is pinned to the dual signature, where a split stays a split and broadcast
and partial change places (OneFlow's ``to_global``), or to ``grad_sbp``.
"""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..placement import Placement
from ..signature import Broadcast, Partial, Signature, SignatureLike, Split, broadcast, partial_sum, signature_for

pin_p = Primitive("sbp.pin")
pin_p.def_impl(lambda x, **_: x)
pin_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(pin_p, lambda _, x, **__: [x])


def dual(signature: Signature) -> Signature:
    """The signature of the gradient: S <-> S, B <-> P."""
    return Signature(
        tuple(c if isinstance(c, Split) else partial_sum if isinstance(c, Broadcast) else broadcast for c in signature)
    )


def _transpose(cotangent: Any, x: Any, *, signature: Signature, gradient: Signature) -> list[Any]:
    return [pin_p.bind(cotangent, signature=gradient, gradient=signature)]


def _batch(args: Any, dims: Any, *, signature: Signature, gradient: Signature) -> Any:
    (x,), (d,) = args, dims

    def shift(s: Signature) -> Signature:
        return Signature(tuple(Split(c.dim + (c.dim >= d)) if isinstance(c, Split) else c for c in s))

    return pin_p.bind(x, signature=shift(signature), gradient=shift(gradient)), d


ad.deflinear2(pin_p, _transpose)
batching.primitive_batchers[pin_p] = _batch


def pin(x: Any, sbp: SignatureLike, placement: Placement | None = None, grad_sbp: SignatureLike | None = None) -> Any:
    """``x``, its signature in the plan fixed to ``sbp``. The value is unchanged; outside a plan it does nothing.

    Args:
        x: an array, inside a function that is planned.
        sbp: the signature, one component for each axis of the plan's placement.
        placement: the plan's placement, to check against; may be left out.
        grad_sbp: the gradient's signature; the dual one where it is left out.

    Raises:
        SignatureError: where the signature does not fit the rank, or the placement's axes.
    """
    ndim = jax.numpy.ndim(x)
    wanted = Signature.of(sbp).resolve(ndim)
    if placement is not None:
        wanted = signature_for(wanted, ndim, placement.shape)
    gradient = Signature.of(grad_sbp).resolve(ndim) if grad_sbp is not None else dual(wanted)
    has_no_reduction = not any(isinstance(c, Partial) and c.op != "sum" for c in wanted)
    return pin_p.bind(jax.numpy.asarray(x), signature=wanted, gradient=gradient if has_no_reduction else wanted)
