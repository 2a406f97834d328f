"""One scope of the graph while it is written: the program itself, or a body of its control flow."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from .graph import Atom, Graph, Lit, Op, Structured, Value

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

    def like(self, x: Value, shape: tuple[int, ...] | None = None, name: str = "") -> Value:
        """A new value of this scope that looks like another, or has its own ``shape``."""
        self.shared.count += 1
        return Value(self.shared.count, x.shape if shape is None else shape, x.dtype, self.times, name, weak=x.weak)

    def scoped(self, times: float) -> "Tracer":
        """A tracer for a body that runs ``times`` times as often as this scope."""
        return Tracer(self.shared, self.times * times)

    def emit(
        self, name: str, ins: Sequence[Atom], avals: Sequence[Any], params: Any = None, primitive: Any = None,
        info: Any = None, label: str = "", has_effect: bool = False,
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
            results = self.shared.equation(self, eqn, [read(v) for v in eqn.invars])
            env.update((v, x) for v, x in zip(eqn.outvars, results, strict=True) if not isinstance(v, jex.DropVar))
        return [read(v) for v in jaxpr.outvars]

    def expand(self, eqn: Any, jaxpr: Any, consts: Sequence[Any], ins: Sequence[Atom]) -> list[Atom]:
        """Write out library code in the place of one equation: the line to name is the equation's."""
        outer, self._cause = self._cause, self._cause or eqn.source_info
        results = self.inline(jaxpr, consts, ins)
        self._cause = outer
        return results

    def finish(self, inputs: Sequence[Value], outputs: Sequence[Atom]) -> Graph:
        """This scope as a graph."""
        return Graph(list(inputs), list(outputs), self.ops, self.times)


class Shared:
    """What all scopes of one program share: how an equation is written, the value counter, constants that became
    arguments."""

    def __init__(self, equation: Callable[[Tracer, Any, list[Atom]], Sequence[Atom]]) -> None:
        self.equation = equation
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


def _key(name: str, ins: Sequence[Atom], params: Any) -> Any:
    """What makes two ops the same; None for those that are not to be shared."""
    if name in ("constant", "empty2"):
        return None
    operands = tuple(
        [x.id if isinstance(x, Value) else ("literal", x.dtype, np.asarray(x.literal).tobytes()) for x in ins]
    )
    return name, operands, tuple(sorted(params.items(), key=_first)) if params else ()
