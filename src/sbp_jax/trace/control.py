"""Control flow: bodies become graphs of their own, and every value that crosses a boundary a node.

``enter`` brings a value in, ``carry`` is one value over all iterations (initial value and body's result in;
body's argument and final result out), ``unstack``/``stack`` are what a scan takes and collects slice by slice,
``join`` is a result of a conditional, ``whole`` a predicate.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from .._compat import opened, scan_operands
from .graph import Atom, Lit, Op, Structured
from .scope import Tracer


def barrier(t: Tracer, ins: Sequence[Atom], info: Any) -> list[Atom]:
    """An optimisation barrier over several values: each keeps a signature of its own, lowered as one tuple."""
    links: list[Op] = []
    outs: list[Atom] = []
    for x in ins:
        if isinstance(x, Lit):
            outs.append(x)
            continue
        out = t.like(x)
        links.append(Op("sbp.barrier", (x,), (out,), info=info))
        outs.append(out)
    if links:
        t.ops.append(Structured("barrier", {}, (), {"barrier": links}, info))
    return outs


def _enter(inner: Tracer, x: Atom, var: Any, info: Any) -> Op:
    return Op("sbp.enter", (x,), (inner.value(var.aval),), info=info)


def scan(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """``lax.scan``: constants, carry, stacked inputs; carry, stacked outputs."""
    p, info = eqn.params, eqn.source_info
    (n_consts, n_carry), (jaxpr, consts), length = scan_operands(p), opened(p["jaxpr"]), p["length"]
    inner = t.scoped(length)
    variables = jaxpr.invars
    enter = [_enter(inner, x, v, info) for x, v in zip(ins[:n_consts], variables, strict=False)]
    body_carry = [inner.value(v.aval) for v in variables[n_consts : n_consts + n_carry]]
    unstack = [
        Op("sbp.unstack", (x,), (inner.value(v.aval),), info=info)
        for x, v in zip(ins[n_consts + n_carry :], variables[n_consts + n_carry :], strict=True)
    ]
    arguments = [*(op.outs[0] for op in enter), *body_carry, *(op.outs[0] for op in unstack)]
    results = inner.inline(jaxpr, consts, arguments)
    carry = [
        Op("sbp.carry", (x, y), (v, t.like(v)), info=info)
        for x, y, v in zip(ins[n_consts : n_consts + n_carry], results, body_carry, strict=False)
    ]
    stack = [
        Op("sbp.stack", (y,), (t.value(v.aval),), info=info)
        for y, v in zip(results[n_carry:], eqn.outvars[n_carry:], strict=True)
    ]
    body = inner.finish(arguments, results)
    roles = {"enter": enter, "carry": carry, "unstack": unstack, "stack": stack}
    params = {"length": length, "reverse": p["reverse"], "unroll": p["unroll"]}
    t.ops.append(Structured("scan", params, (body,), roles, info))
    return [*(op.outs[1] for op in carry), *(op.outs[0] for op in stack)]


def while_loop(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """``lax.while_loop``: the condition is whole on every device, so that all stop together.

    A condition with effects is computed before the loop and at the end of its body, and carried: so does JAX where the
    effects are ordered, and the collectives that send its result are then the plan's. Under ``vmap`` the condition has
    an element for each loop of the batch: while one of them goes on, the others keep what they arrived at.
    """
    p, info = eqn.params, eqn.source_info
    (cond, cond_consts), (body, body_consts) = opened(p["cond_jaxpr"]), opened(p["body_jaxpr"])
    n_cond, n_body = p["cond_nconsts"], p["body_nconsts"]
    initial = ins[n_cond + n_body :]
    trips = _trip_count(cond, body, n_cond, n_body, initial)
    times = 1.0 if trips is None else trips
    inner_cond, inner = t.scoped(times), t.scoped(times)
    cond_enter = [_enter(inner_cond, x, v, info) for x, v in zip(ins, cond.invars[:n_cond], strict=False)]
    body_enter = [_enter(inner, x, v, info) for x, v in zip(ins[n_cond:], body.invars[:n_body], strict=False)]
    cond_carry = [inner_cond.value(v.aval) for v in cond.invars[n_cond:]]
    body_carry = [inner.value(v.aval) for v in body.invars[n_body:]]
    results = inner.inline(body, body_consts, [*(o.outs[0] for o in body_enter), *body_carry])
    if cond.effects:
        again = [_enter(inner, x, v, info) for x, v in zip(ins, cond.invars[:n_cond], strict=False)]
        initial = [*t.inline(cond, cond_consts, [*ins[:n_cond], *initial]), *initial]
        cond_carry = [inner_cond.value(cond.outvars[0].aval), *cond_carry]
        body_carry = [inner.value(cond.outvars[0].aval), *body_carry]
        predicate: list[Atom] = [cond_carry[0]]
        if predicate[0].shape:
            results = _kept(inner, eqn, body_carry[0], results, body_carry[1:])
        results = [*inner.inline(cond, cond_consts, [*(o.outs[0] for o in again), *results]), *results]
        body_enter, cond_enter = [*body_enter, *again], []
    else:
        predicate = inner_cond.inline(cond, cond_consts, [*(o.outs[0] for o in cond_enter), *cond_carry])
        if predicate[0].shape:
            again = [_enter(inner, x, v, info) for x, v in zip(ins, cond.invars[:n_cond], strict=False)]
            (goes_on,) = inner.inline(cond, cond_consts, [*(o.outs[0] for o in again), *body_carry])
            results = _kept(inner, eqn, goes_on, results, body_carry)
            body_enter = [*body_enter, *again]
    if predicate[0].shape:
        predicate = inner_cond.expand(eqn, *opened(jax.make_jaxpr(jnp.any)(_like(predicate[0]))), predicate)
    carry = [
        Op("sbp.carry", (x, y), (v, t.like(v), c), info=info)
        for x, y, v, c in zip(initial, results, body_carry, cond_carry, strict=True)
    ]
    roles = {
        "cond_enter": cond_enter,
        "body_enter": body_enter,
        "carry": carry,
        "predicate": [Op("sbp.whole", (predicate[0],), (), info=info)],
    }
    cond_graph = inner_cond.finish([*(o.outs[0] for o in cond_enter), *cond_carry], predicate)
    body_graph = inner.finish([*(o.outs[0] for o in body_enter), *body_carry], results)
    params = {"trip_count": trips}
    t.ops.append(Structured("while", params, (cond_graph, body_graph), roles, info))
    return [op.outs[1] for op in (carry[1:] if cond.effects else carry)]


def _like(x: Atom) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _kept(t: Tracer, eqn: Any, goes_on: Atom, new: Sequence[Atom], old: Sequence[Atom]) -> list[Atom]:
    """What a loop under ``vmap`` carries on: the new values of elements that go on, the old ones of those that stopped.

    ``goes_on`` has the leading dims of the others.
    """

    def select(goes_on: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
        return lax.select(lax.broadcast_in_dim(goes_on, old.shape, range(goes_on.ndim)), new, old)

    return [
        t.expand(eqn, *opened(jax.make_jaxpr(select)(*map(_like, (goes_on, x, x)))), [goes_on, y, x])[0]
        for y, x in zip(new, old, strict=True)
    ]


def _trip_count(cond: Any, body: Any, n_cond: int, n_body: int, initial: Sequence[Atom]) -> float | None:
    """The iterations of ``fori_loop``'s pattern ``i < literal`` with ``i + 1``; None where it is not that."""
    if len(cond.eqns) != 1 or cond.eqns[0].primitive.name != "lt":
        return None
    left, right = cond.eqns[0].invars
    carried = list(cond.invars[n_cond:])

    def start(v: Any) -> Any:
        if isinstance(v, jex.Literal):
            return v.val
        if v not in carried:
            return None
        k = carried.index(v)
        x = initial[k]
        steps = body.outvars[k] is body.invars[n_body + k]
        return x.literal if isinstance(x, Lit) and steps else None

    if isinstance(left, jex.Literal) or left not in carried:
        return None
    k = carried.index(left)
    bound, first = start(right), initial[k]
    increment = next((e for e in body.eqns if body.outvars[k] in e.outvars and e.primitive.name == "add"), None)
    if bound is None or not isinstance(first, Lit) or increment is None:
        return None
    operands = increment.invars
    by_one = any(isinstance(v, jex.Literal) and np.all(v.val == 1) for v in operands)
    own = any(v is body.invars[n_body + k] for v in operands)
    return float(max(0, int(bound) - int(first.literal))) if by_one and own else None


def cond(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """``lax.cond``/``switch``: every branch planned; results join in one signature. A known index: its branch."""
    branches, info = eqn.params["branches"], eqn.source_info
    index, operands = ins[0], ins[1:]
    if isinstance(index, Lit):
        known = min(max(int(index.literal), 0), len(branches) - 1)
        return t.inline(*opened(branches[known]), operands)
    bodies, entries, results = [], [], []
    for branch, consts in map(opened, branches):
        inner = t.scoped(1.0)
        enter = [_enter(inner, x, v, info) for x, v in zip(operands, branch.invars, strict=True)]
        arguments = [op.outs[0] for op in enter]
        results.append(inner.inline(branch, consts, arguments))
        bodies.append(inner.finish(arguments, results[-1]))
        entries.append(enter)
    joins = [
        Op("sbp.join", tuple(r[k] for r in results), (t.value(v.aval),), info=info) for k, v in enumerate(eqn.outvars)
    ]
    roles: dict[str, list[Op]] = {"predicate": [Op("sbp.whole", (index,), (), info=info)]}
    roles.update({f"enter{i}": enter for i, enter in enumerate(entries)})
    roles["join"] = joins
    t.ops.append(Structured("cond", {}, tuple(bodies), roles, info))
    return [op.outs[0] for op in joins]


HANDLERS = {"scan": scan, "while": while_loop, "cond": cond}
