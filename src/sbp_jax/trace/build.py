"""jaxpr -> logical graph: calls are inlined, control flow keeps its bodies, random bits become arithmetic."""

from collections.abc import Callable, Sequence
from typing import Any

from .._compat import opened
from ..rules import lookup
from . import calls, constraint, control, effects, expand
from .graph import Atom, Op, Program, Value
from .scope import Shared, Tracer
from .source import is_users_function

# What computes nothing at the level of logical values.
_ALIASES = {"copy", "copy_p", "stop_gradient", "name", "pvary", "layout_constraint", "relayout",
            "xla_metadata_value"}  # fmt: skip


_HANDLERS = {**control.HANDLERS, **calls.HANDLERS, **constraint.HANDLERS}


def _equation(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """One equation; its results."""
    name = eqn.primitive.name
    params, asked = (eqn.params, None) if name in _HANDLERS else constraint.without_shardings(eqn.params)
    if asked is not None:
        results = _plain(t, eqn, name, params, ins)
        return [constraint.pinned_result(t, x, asked, eqn.source_info) for x in results]
    return _plain(t, eqn, name, params, ins)


def _plain(t: Tracer, eqn: Any, name: str, params: Any, ins: list[Atom]) -> Sequence[Atom]:
    """One equation, whatever it says of how its result lies; its results."""
    if name in _ALIASES or _is_noop(name, params, ins, eqn):
        return ins[: len(eqn.outvars)]
    if name in calls.BODIES:
        where = calls.BODIES[name]
        body, consts = opened(params[where] if where in params else params["jaxpr"])

        def written_out(ins: list[Atom]) -> list[Atom]:
            if is_users_function(body):
                return t.inline(body, consts, ins)
            return t.expand(eqn, body, consts, ins)

        return constraint.around_call(t, eqn, written_out, ins)
    if name in ("remat2", "remat", "checkpoint"):
        return _remat(t, eqn, ins)
    if name == "optimization_barrier":
        return control.barrier(t, ins, eqn.source_info)
    handler: Callable[..., Sequence[Atom]] | None = _HANDLERS.get(name)
    if handler is not None:
        return handler(t, eqn, ins)
    expansion = expand.EXPANSIONS.get(name)
    expanded = expansion(eqn, ins) if expansion is not None else None
    if lookup(name) is None:
        expanded = calls.written_out(eqn)
    if expanded is not None:
        return t.expand(eqn, *opened(expanded), ins)
    if effects.concerns(eqn):
        return effects.emit(t, eqn, ins)
    label = constraint.called(params) if name == "sbp.pin" else ""
    return t.emit(name, ins, [v.aval for v in eqn.outvars], params, eqn.primitive, eqn.source_info, label)


def _remat(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    if eqn.params.get("differentiated") and eqn.params.get("prevent_cse", True):
        ins = list(control.barrier(t, ins, eqn.source_info))
    return t.inline(*opened(eqn.params["jaxpr"]), ins)


def _is_noop(name: str, params: Any, ins: Sequence[Atom], eqn: Any) -> bool:
    if name == "convert_element_type":
        return params["new_dtype"] == ins[0].dtype
    if name == "integer_pow":
        return params["y"] == 1
    if name in ("reshape", "transpose", "broadcast_in_dim", "squeeze"):
        same = isinstance(ins[0], Value) and ins[0].shape == tuple(eqn.outvars[0].aval.shape)
        order = params.get({"transpose": "permutation", "reshape": "dimensions"}.get(name, ""))
        return same and (order is None or tuple(order) == tuple(range(len(ins[0].shape))))
    return False


def handled() -> set[str]:
    """The primitives that never become ops of the graph: calls, control flow, and what computes nothing."""
    other = {"remat2", "remat", "checkpoint", "optimization_barrier"}
    return _ALIASES | other | calls.BODIES.keys() | _HANDLERS.keys()


def writer(after: int) -> Tracer:
    """Writes a new program, whose values have numbers beyond ``after``."""
    shared = Shared(_equation)
    shared.count = after
    shared.top = Tracer(shared)
    return shared.top


def build(closed: Any, names: Sequence[str] = (), boundary: tuple[str, str] = ("sbp.input", "sbp.output")) -> Program:
    """The program of a closed jaxpr.

    ``names`` are labels for its arguments (tree paths), ``boundary`` the nodes that stand for arguments and results.
    """
    top = writer(0)
    shared = top.shared
    jaxpr, consts = opened(closed)
    labels = [*names, *[f"argument {i}" for i in range(len(names), len(jaxpr.invars))]]
    arguments = [top.value(v.aval, label) for v, label in zip(jaxpr.invars, labels, strict=False)]
    results = top.inline(jaxpr, consts, arguments)
    inputs = [*arguments, *shared.constant_values]
    graph = top.finish(inputs, results)
    expand.remove_dead(graph)
    input_ops = [Op(boundary[0], (), (v,), label=v.name) for v in arguments]
    input_ops += [Op("sbp.input", (), (v,), label=v.name) for v in shared.constant_values]
    output_ops = [Op(boundary[1], (x,), ()) for x in results]
    weak = tuple(getattr(v.aval, "weak_type", False) for v in jaxpr.outvars)
    return Program(graph, input_ops, output_ops, shared.constants, weak_results=weak)
