"""Rewriting on the way in: random bits as counting and hashing, so that each device makes its own; dead code.

``random_bits`` of the default generator is Threefry-2x32 applied to the positions of the elements
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; JAX's partitionable form). Written
out as ``iota`` and ``threefry2x32`` it splits along any dimension by its ordinary rules.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry2x32_p

from .graph import Atom, Graph, Op, Structured, Value

_WORDS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}


def _positions(shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The row-major position of every element, as its high and low 32 bits."""
    return row_major([lax.broadcasted_iota(jnp.uint32, shape, dim) for dim in range(len(shape))], shape)


def row_major(indices: Sequence[jax.Array], shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Row-major positions in ``shape`` of elements with ``indices`` (uint32, one array a dim): high and low 32 bits."""
    like = indices[0] if indices else jnp.zeros((), jnp.uint32)
    high, low = jnp.zeros_like(like), jnp.zeros_like(like)
    is_long = math.prod(shape) > 2**32
    stride = 1
    for index, length in zip(reversed(indices), reversed(shape), strict=True):
        low_stride, high_stride = jnp.uint32(stride % 2**32), jnp.uint32(stride >> 32)
        term = index * low_stride
        if is_long:  # 64-bit arithmetic in two words: the product's upper half, and the sum's carry
            upper = lax.mulhi(index, jnp.full_like(index, low_stride)) + index * high_stride
            high = high + upper + (low > ~term).astype(jnp.uint32)
        low = low + term
        stride *= length
    return high, low


def _threefry_bits(keys: jax.Array, shape: tuple[int, ...], bit_width: int) -> jax.Array:
    words = jax.random.key_data(keys)
    high, low = _positions(shape)
    if keys.ndim:  # each key hashes the same positions
        words = words.reshape(*keys.shape, *(1,) * len(shape), 2)
        high, low = (lax.broadcast_in_dim(x, (*keys.shape, *shape), range(keys.ndim, keys.ndim + len(shape)))
                     for x in (high, low))  # fmt: skip
    first, second = threefry2x32_p.bind(words[..., 0], words[..., 1], high, low)
    dtype = _WORDS[bit_width]
    if bit_width == 64:
        return (first.astype(dtype) << dtype(32)) | second.astype(dtype)
    return (first ^ second).astype(dtype)


def random_bits(eqn: Any, ins: Sequence[Atom]) -> Any:
    """The expansion, or None where the generator is another, or positions need over 64 bits."""
    keys = ins[0]
    shape, width = tuple(eqn.params["shape"]), eqn.params["bit_width"]
    if (
        str(keys.dtype) != "key<fry>"
        or not jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
        or math.prod(shape) >= 2**64
        or width not in _WORDS
        or (width == 64 and not jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    ):
        return None
    return jax.make_jaxpr(lambda k: _threefry_bits(k, shape, width))(jax.ShapeDtypeStruct(keys.shape, keys.dtype))


def reshape(eqn: Any, ins: Sequence[Atom]) -> Any:
    """A reshape of reordered dimensions (gradients of grouped convolutions have them) as transpose and reshape."""
    order, new_sizes = eqn.params["dimensions"], eqn.params["new_sizes"]
    if order is None:
        return None
    given = jax.ShapeDtypeStruct(ins[0].shape, ins[0].dtype)
    return jax.make_jaxpr(lambda x: lax.reshape(lax.transpose(x, order), new_sizes))(given)


def dot_general(eqn: Any, ins: Sequence[Atom]) -> Any:
    """A product that sums over nothing as what it is, element by element; so does XLA (``AlgebraicSimplifier``)."""
    (contracted, _), batches = eqn.params["dimension_numbers"]
    if contracted:
        return None
    out, n = eqn.outvars[0].aval, len(batches[0])

    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        order = [[*b, *(d for d in range(z.ndim) if d not in b)] for z, b in zip((x, y), batches, strict=True)]
        x, y = (lax.transpose(z, o).astype(out.dtype) for z, o in zip((x, y), order, strict=True))
        left = lax.broadcast_in_dim(x, out.shape, range(x.ndim))
        right = lax.broadcast_in_dim(y, out.shape, (*range(n), *range(x.ndim, len(out.shape))))
        return left * right

    return jax.make_jaxpr(product)(*(jax.ShapeDtypeStruct(z.shape, z.dtype) for z in ins))


EXPANSIONS = {"random_bits": random_bits, "reshape": reshape, "dot_general": dot_general}


def remove_dead(graph: Graph) -> None:
    """Drop ops whose results nobody reads, in place; bodies too. Ops with side effects stay."""
    live = {x.id for x in graph.outputs if isinstance(x, Value)}
    kept: list[Op | Structured] = []
    for op in reversed(graph.ops):
        if isinstance(op, Op):
            if any(v.id in live for v in op.outs) or not op.outs or op.has_effect:
                kept.append(op)
                live.update(x.id for x in op.ins if isinstance(x, Value))
        elif _trim(op, live):
            kept.append(op)
            inner = {v.id for body in op.bodies for v in body.inputs}
            live.update(x.id for x in op.ins if isinstance(x, Value) and x.id not in inner)
    graph.ops[:] = reversed(kept)


def _trim(op: Structured, live: set[int]) -> bool:
    """Remove what a structured op brings in or collects in vain; False when all of it is dead."""
    if op.kind == "barrier":
        op.roles["barrier"] = [b for b in op.roles["barrier"] if b.outs[0].id in live]
        return bool(op.roles["barrier"])
    results = {v.id for link in op.links for v in link.outs} - {v.id for b in op.bodies for v in b.inputs}
    if not results & live and not any(_has_effect(body) for body in op.bodies):
        return False
    if op.kind == "scan":
        op.roles["stack"] = [s for s in op.roles["stack"] if s.outs[0].id in live]
    if op.kind in ("scan", "while"):
        _trim_carry(op, live)
    if op.kind == "cond":
        op.roles["join"] = [j for j in op.roles["join"] if j.outs[0].id in live]
    for index, body in enumerate(op.bodies):
        body.outputs = _body_results(op, index, body)
        remove_dead(body)
        used = {x.id for inner in body.ops for x in inner.ins if isinstance(x, Value)}
        used |= {x.id for x in body.outputs if isinstance(x, Value)}
        for role in ("enter", "unstack", "cond_enter", "body_enter", f"enter{index}"):
            if role in op.roles:
                other = {v.id for k, b in enumerate(op.bodies) if k != index for v in b.inputs}
                op.roles[role] = [e for e in op.roles[role] if e.outs[0].id in used or e.outs[0].id in other]
        keep = {v.id for link in op.links for v in link.outs}
        body.inputs = [v for v in body.inputs if v.id in keep]
    return True


def _trim_carry(op: Structured, live: set[int]) -> None:
    """Remove what a loop carries for itself alone: nobody reads it afterwards, and no result or condition needs it."""
    *conds, body = op.bodies
    wanted = {x.id for s in op.roles.get("stack", ()) for x in s.ins if isinstance(x, Value)}
    for cond in conds:
        wanted |= _needed(cond, {x.id for x in cond.outputs if isinstance(x, Value)})
    carries = list(op.roles["carry"])
    kept: set[int] = set()
    while True:
        needed = wanted | _needed(body, wanted)
        more = {
            k for k, c in enumerate(carries)
            if k not in kept and (c.outs[1].id in live or any([v.id in needed for v in (c.outs[0], *c.outs[2:])]))
        }  # fmt: skip
        if not more:
            break
        kept |= more
        wanted |= {x.id for k in more if isinstance(x := carries[k].ins[1], Value)}
    op.roles["carry"] = [carries[k] for k in sorted(kept)]
    if conds:  # a condition has no results but its own
        body.outputs = [c.ins[1] for c in op.roles["carry"]]


def _needed(graph: Graph, wanted: set[int]) -> set[int]:
    """What values take to compute, and effects: ids of values in a graph, those outside its bodies alone."""
    needed = set(wanted)
    for op in reversed(graph.ops):
        if isinstance(op, Op):
            if op.has_effect or not op.outs or any([v.id in needed for v in op.outs]):
                needed |= {x.id for x in op.ins if isinstance(x, Value)}
        elif any(map(_has_effect, op.bodies)) or any([v.id in needed for link in op.links for v in link.outs]):
            needed |= {x.id for link in op.links for x in link.ins if isinstance(x, Value)}
    return needed


def _body_results(op: Structured, index: int, body: Graph) -> list[Atom]:
    """What the boundary still reads of a body."""
    if op.kind == "scan":
        return [*(c.ins[1] for c in op.roles["carry"]), *(s.ins[0] for s in op.roles["stack"])]
    if op.kind == "cond":
        return [j.ins[index] for j in op.roles["join"]]
    return body.outputs


def _has_effect(graph: Graph) -> bool:
    return any(op.has_effect if isinstance(op, Op) else any(map(_has_effect, op.bodies)) for op in graph.ops)
