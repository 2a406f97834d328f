"""What an op's parameter says, as text that is the same in every process: for fingerprints.

Equal parameters give equal text, whatever their addresses and the order of sets; ``1``, ``1.0`` and ``True`` do not.
Arrays count by their contents, jaxprs by their equations, functions by their name, code and what they closed over.
An object that only is itself (``object.__eq__``) counts by its class and ``repr``, without addresses.
"""

import dataclasses
import enum
import functools
import hashlib
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from .._compat import is_tracer, opened
from ..signature import Signature

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|(?<=[=( ])0x[0-9a-fA-F]{6,}")
# Where something was written, not what it is.
_SOURCE_INFO = {"DebugInfo", "SourceInfo", "NameAndSrcInfo", "Traceback"}


def canonical_text(x: Any) -> str:
    """Any value as text that is the same in every process."""
    return Canonical()(x)


class Canonical:
    """Writes parameters as text. One for a whole program, which remembers jaxprs and dtypes."""

    def __init__(self) -> None:
        self._jaxprs: dict[int, tuple[Any, str]] = {}  # with what has the id, so that it stays
        self._dtypes: dict[Any, str] = {}
        self._open: dict[int, int] = {}  # what is being written: a function may close over itself

    def params(self, params: Mapping[str, Any]) -> str:
        """An op's parameters by name. One that is None says what its absence says."""
        return ",".join([f"{k}={self(v)}" for k, v in sorted(params.items()) if v is not None])

    def __call__(self, x: Any) -> str:
        """Any value."""
        kind = type(x)
        if kind is int or kind is bool or x is None or kind is str:
            return repr(x)
        if kind is tuple:
            return f"({','.join([self(v) for v in x])})"
        if kind is float:
            return x.hex()
        if isinstance(x, np.dtype):
            return self.dtype(x)
        if isinstance(x, enum.Enum):
            return f"{kind.__qualname__}.{x.name}"
        if jex_jaxpr(x) is not None:
            return self.jaxpr(x)
        if id(x) in self._open:
            return f"above {self._open[id(x)]}"
        self._open[id(x)] = len(self._open)
        try:
            return self._other(x, kind)
        finally:
            del self._open[id(x)]

    def dtype(self, dtype: Any) -> str:
        """A dtype by its name, JAX's own included."""
        if dtype not in self._dtypes:
            self._dtypes[dtype] = str(dtype)
        return self._dtypes[dtype]

    def jaxpr(self, x: Any) -> str:
        """A jaxpr: its equations with their variables numbered, literals, constants by their contents."""
        known = self._jaxprs.get(id(x))
        if known is not None:
            return known[1]
        jaxpr, consts = opened(x)
        numbers: dict[Any, int] = {}

        def atom(v: Any) -> str:
            if isinstance(v, jex.Literal):
                literal: Any = v
                return f"{self(literal.val)}:{self._aval(literal.aval)}"
            return f"%{numbers.setdefault(v, len(numbers))}:{self._aval(v.aval)}"

        arguments = [atom(v) for v in (*jaxpr.constvars, *jaxpr.invars)]
        lines = [
            f"{[atom(v) for v in e.outvars]}={e.primitive.name}[{self.params(e.params)}]{[atom(v) for v in e.invars]}"
            for e in jaxpr.eqns
        ]
        text = f"jaxpr{arguments}{lines}{[atom(v) for v in jaxpr.outvars]}{[self(c) for c in consts]}"
        text = f"jaxpr {hashlib.sha256(text.encode()).hexdigest()}"
        self._jaxprs[id(x)] = x, text
        return text

    def _aval(self, aval: Any) -> str:
        shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
        if shape is None or dtype is None:
            return _ADDRESS.sub("", str(aval))
        return f"{type(aval).__name__}{self.dtype(dtype)}{tuple(shape)}{'~' * bool(getattr(aval, 'weak_type', False))}"

    def _other(self, x: Any, kind: type) -> str:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(x, int | float | complex | str | bytes) and not isinstance(x, np.generic):
            return f"{name} {x!r}"
        if isinstance(x, type):
            return f"type {x.__module__}.{x.__qualname__}"
        if isinstance(x, np.generic | np.ndarray | jax.Array):
            return self._array(x)
        if isinstance(x, Signature):
            return f"({x})"
        if isinstance(x, tuple | list):  # named ones, too
            return f"{name}[{','.join([self(v) for v in x])}]"
        if isinstance(x, Mapping):
            return f"{name}{sorted([(self(k), self(v)) for k, v in x.items()])}"
        if isinstance(x, set | frozenset):
            return f"{name}{sorted([self(v) for v in x])}"
        if callable(x) and (text := self._function(x)) is not None:
            return text
        if kind.__name__ in _SOURCE_INFO:
            return kind.__name__
        if isinstance(x, jex.Primitive):
            return f"primitive {x.name}"
        if isinstance(x, types.ModuleType):
            return f"module {x.__name__}"
        if isinstance(x, jax.sharding.Mesh):
            return f"{x!r}{[d.id for d in x.devices.flat]}"
        if dataclasses.is_dataclass(x):
            found = [(f.name, self(getattr(x, f.name, None))) for f in dataclasses.fields(x) if f.compare]
            return f"{name}{found}"
        # Of JAX's own, those that hold users' functions: others keep caches, or say all in their repr.
        is_jaxs = kind.__module__.split(".")[0] in ("jax", "jaxlib")
        if kind.__eq__ is not object.__eq__ and (callable(x) or not is_jaxs):
            return f"{name}{self._attributes(x)}"
        return f"{name} {_ADDRESS.sub('', repr(x))}"

    def _array(self, x: Any) -> str:
        if is_tracer(x) or not getattr(x, "is_fully_addressable", True):  # there is nothing to read, or not all of it
            return self._aval(jax.typeof(x))
        if jax.numpy.issubdtype(x.dtype, jax.dtypes.extended):
            return f"{self.dtype(x.dtype)}{self._array(jax.random.key_data(x))}"
        data = np.ascontiguousarray(x)
        digest = hashlib.sha256(data.tobytes() if data.dtype != object else repr(data.tolist()).encode())
        weak = "~" * bool(getattr(x, "weak_type", False))
        return f"{self.dtype(data.dtype)}{np.shape(x)}{weak}{digest.hexdigest()}"

    def _function(self, x: Callable[..., Any]) -> str | None:
        """A function; None for other callables."""
        if isinstance(x, types.MethodType):
            return f"method {self(x.__func__)} of {self(x.__self__)}"
        if isinstance(x, functools.partial):
            return f"partial {self(x.func)}{self(x.args)}{self(x.keywords)}"
        if isinstance(x, types.FunctionType):
            closed = [self(cell.cell_contents) if _is_full(cell) else "" for cell in x.__closure__ or ()]
            defaults = self(x.__defaults__), self(x.__kwdefaults__)
            return f"function {x.__module__}.{x.__qualname__}{self._code(x.__code__)}{closed}{defaults}"
        if isinstance(x, types.BuiltinFunctionType):
            return f"builtin {x.__module__}.{x.__qualname__}"
        if hasattr(x, "__wrapped__"):  # jax.jit's, functools.lru_cache's
            return f"{type(x).__qualname__} {self(x.__wrapped__)}"
        return None

    def _code(self, code: types.CodeType) -> str:
        consts = [self._code(c) if isinstance(c, types.CodeType) else self(c) for c in code.co_consts]
        text = f"{code.co_code.hex()}{consts}{code.co_names}{code.co_varnames}{code.co_freevars}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _attributes(self, x: Any) -> list[tuple[str, str]]:
        """What an object that says itself what it equals is made of."""
        slots: Sequence[str] = [s for c in type(x).__mro__ for s in _names(getattr(c, "__slots__", ()))]
        found = {s: getattr(x, s) for s in slots if hasattr(x, s) and s not in ("__dict__", "__weakref__")}
        found |= getattr(x, "__dict__", {})
        # A hash that is kept is another one in every process.
        return sorted((k, self(v)) for k, v in found.items() if "hash" not in k)


def jex_jaxpr(x: Any) -> Any:
    """``x`` if it is a jaxpr, open or closed."""
    return x if isinstance(x, jex.Jaxpr | jex.ClosedJaxpr) else None


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names(slots: str | Sequence[str]) -> Sequence[str]:
    return (slots,) if isinstance(slots, str) else slots
