"""jaxpr -> logical graph: calls are inlined, control flow keeps its bodies, random bits become arithmetic."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from .._compat import opened
from . import calls, constraint, control, effects, expand
from .graph import Atom, Graph, Lit, Op, Program, Structured, Value
from .source import is_users_function

# What computes nothing at the level of logical values.
_ALIASES = {"copy", "copy_p", "stop_gradient", "name", "pvary", "layout_constraint", "relayout",
            "xla_metadata_value"}  # fmt: skip


_HANDLERS = {**control.HANDLERS, **calls.HANDLERS, **constraint.HANDLERS}
_first = operator.itemgetter(0)


class Tracer:
    """Walks a jaxpr and writes the graph of one scope; ``scoped`` gives one for a body."""

    def __init__(self, shared: "Shared", times: float = 1.0) -> None:
        self.shared = shared
        self.times = times
        self.ops: list[Op | Structured] = []
        self._seen: dict[Any, tuple[Value, ...]] = {}
        self._cause: Any = None

    def value(self, aval: Any, name: str = "") -> Value:
        """A new value of this scope."""
        self.shared.count += 1
        weak = getattr(aval, "weak_type", False)
        return Value(self.shared.count, tuple(aval.shape), aval.dtype, self.times, name, weak=weak)

    def like(self, x: Value) -> Value:
        """A new value of this scope that looks like another."""
        self.shared.count += 1
        return Value(self.shared.count, x.shape, x.dtype, self.times, weak=x.weak)

    def scoped(self, times: float) -> "Tracer":
        """A tracer for a body that runs ``times`` times as often as this scope."""
        return Tracer(self.shared, self.times * times)

    def emit(
        self, name: str, ins: Sequence[Atom], avals: Sequence[Any], params: Any = None, primitive: Any = None,
        info: Any = None, has_effect: bool = False,
    ) -> tuple[Value, ...]:  # fmt: skip
        """Add an op unless the same one is there already; its results. An op with an effect is never shared."""
        key = None if has_effect else _key(name, ins, params)
        try:
            known = self._seen.get(key)
        except TypeError:  # parameters that cannot be compared
            key = known = None
        if known is not None:
            return known
        outs = tuple(self.value(a) for a in avals)
        label = constraint.called(params) if name == "sbp.pin" else ""
        self.ops.append(
            Op(name, tuple(ins), outs, params or {}, primitive, self._cause or info, label, has_effect=has_effect)
        )
        if key is not None:
            self._seen[key] = outs
        return outs

    def constant(self, value: Any) -> Atom:
        """A constant met while tracing: a literal, an argument of the program, or cut out where it is needed."""
        if np.ndim(value) == 0 and not _is_key(value):
            return Lit(np.asarray(value)[()], np.asarray(value).dtype if not hasattr(value, "dtype") else value.dtype)
        return self.shared.constant(self, value)

    def inline(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Atom]) -> list[Atom]:
        """Write the jaxpr's equations into this scope; its results."""
        env: dict[Any, Atom] = {}
        env.update(zip(jaxpr.constvars, (self.constant(c) for c in consts), strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(v: Any) -> Atom:
            literal: Any = v
            return (
                Lit(literal.val, literal.aval.dtype, weak=literal.aval.weak_type)
                if isinstance(v, jex.Literal)
                else env[v]
            )

        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(v) for v in eqn.invars])
            env.update((v, x) for v, x in zip(eqn.outvars, results, strict=True) if not isinstance(v, jex.DropVar))
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
        """One equation; its results."""
        name = eqn.primitive.name
        params, asked = (eqn.params, None) if name in _HANDLERS else constraint.without_shardings(eqn.params)
        if asked is not None:
            results = self.plain(eqn, name, params, ins)
            return [constraint.pinned_result(self, x, asked, eqn.source_info) for x in results]
        return self.plain(eqn, name, params, ins)

    def plain(self, eqn: Any, name: str, params: Any, ins: list[Atom]) -> Sequence[Atom]:
        """One equation, whatever it says of how its result lies; its results."""
        if name in _ALIASES or _is_noop(name, params, ins, eqn):
            return ins[: len(eqn.outvars)]
        if name in calls.BODIES:
            where = calls.BODIES[name]
            body, consts = opened(params[where] if where in params else params["jaxpr"])

            def written_out(ins: list[Atom]) -> list[Atom]:
                if is_users_function(body):
                    return self.inline(body, consts, ins)
                return self.expand(eqn, body, consts, ins)

            return constraint.around_call(self, eqn, written_out, ins)
        if name in ("remat2", "remat", "checkpoint"):
            return self._remat(eqn, ins)
        if name == "optimization_barrier":
            return control.barrier(self, ins, eqn.source_info)
        handler: Callable[..., Sequence[Atom]] | None = _HANDLERS.get(name)
        if handler is not None:
            return handler(self, eqn, ins)
        expansion = expand.EXPANSIONS.get(name)
        expanded = expansion(eqn, ins) if expansion is not None else None
        if expanded is not None:
            return self.expand(eqn, *opened(expanded), ins)
        if effects.concerns(eqn):
            return effects.emit(self, eqn, ins)
        return self.emit(name, ins, [v.aval for v in eqn.outvars], params, eqn.primitive, eqn.source_info)

    def expand(self, eqn: Any, jaxpr: Any, consts: Sequence[Any], ins: Sequence[Atom]) -> list[Atom]:
        """Write out library code in the place of one equation: the line to name is the equation's."""
        outer, self._cause = self._cause, self._cause or eqn.source_info
        results = self.inline(jaxpr, consts, ins)
        self._cause = outer
        return results

    def _remat(self, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
        if eqn.params.get("differentiated") and eqn.params.get("prevent_cse", True):
            ins = list(control.barrier(self, ins, eqn.source_info))
        return self.inline(*opened(eqn.params["jaxpr"]), ins)

    def finish(self, inputs: Sequence[Value], outputs: Sequence[Atom]) -> Graph:
        """This scope as a graph."""
        return Graph(list(inputs), list(outputs), self.ops, self.times)


class Shared:
    """What all scopes of one program share: the value counter, constants that became arguments."""

    def __init__(self) -> None:
        self.count = 0
        self.constants: list[Any] = []
        self.constant_values: list[Value] = []
        self._by_id: dict[int, Value] = {}

    def constant(self, tracer: Tracer, value: Any) -> Value:
        """A non-scalar constant: an argument at top level, an op that cuts it out inside bodies."""
        if tracer.times != 1.0 or tracer is not self.top:
            array = np.asarray(value)
            return tracer.emit("constant", (), [jax.ShapeDtypeStruct(array.shape, array.dtype)], {"value": array})[0]
        if id(value) not in self._by_id:
            aval = jax.typeof(value)
            self.constants.append(value)
            self._by_id[id(value)] = tracer.value(aval, f"constant {len(self.constants)}")
            self.constant_values.append(self._by_id[id(value)])
        return self._by_id[id(value)]

    top: Tracer | None = None


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.extended)


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


def _key(name: str, ins: Sequence[Atom], params: Any) -> Any:
    """What makes two ops the same; None for those that are not to be shared."""
    if name in ("constant", "empty2"):
        return None
    operands = tuple(
        [x.id if isinstance(x, Value) else ("literal", x.dtype, np.asarray(x.literal).tobytes()) for x in ins]
    )
    return name, operands, tuple(sorted(params.items(), key=_first)) if params else ()


def handled() -> set[str]:
    """The primitives that never become ops of the graph: calls, control flow, and what computes nothing."""
    other = {"remat2", "remat", "checkpoint", "optimization_barrier"}
    return _ALIASES | other | calls.BODIES.keys() | _HANDLERS.keys()


def build(closed: Any, names: Sequence[str] = (), boundary: tuple[str, str] = ("sbp.input", "sbp.output")) -> Program:
    """The program of a closed jaxpr.

    ``names`` are labels for its arguments (tree paths), ``boundary`` the nodes that stand for arguments and results.
    """
    shared = Shared()
    top = Tracer(shared)
    shared.top = top
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
