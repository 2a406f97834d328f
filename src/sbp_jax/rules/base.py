"""What a rule is: a factor map, and how one device computes its piece.

An op is described the way einops would write it. Every dimension of every operand and result is named by
the factors it is made of, the slowest first; from that follow all its signatures on one mesh axis:

* choose a factor: operands and results that have it are ``S(dim)`` there, operands that do not are ``B``;
  results that do not are ``P(op)`` when the factor is *reduced* by ``op``, else the choice does not exist;
* choose a linearity: the named operands are ``P``, the others ``B``, the results ``P``;
* choose nothing: everything is ``B``.

Rules speak of one mesh axis only; ``widen.py`` widens them to n axes.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import SbpError
from ..pieces import span
from ..signature import ReduceOp

Dims = tuple[tuple[int, ...], ...]


class Operand(Protocol):
    """What a rule may know of an operand or result: shape, dtype, and a literal scalar's value."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def literal(self) -> Any: ...


class OpLike(Protocol):
    """What a rule may know of an op."""

    name: str
    params: Mapping[str, Any]
    primitive: Any

    @property
    def ins(self) -> Sequence[Operand]: ...
    @property
    def outs(self) -> Sequence[Operand]: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """``f`` of a reduction of terms is a reduction of ``f`` of the terms, jointly in ``operands``.

    ``takes`` is the reduction going in, ``gives`` the one coming out (they differ under negation). With ``narrows``
    the terms lose digits that their sum would have kept (float32 terms to bfloat16): only with the user's leave.
    """

    operands: frozenset[int]
    takes: ReduceOp = "sum"
    gives: ReduceOp = "sum"
    narrows: bool = False


@dataclass(frozen=True, slots=True)
class Factors:
    """The factor map of one op: factor ids by dimension of each operand and result.

    ``sizes`` gives every factor's length; a ``blocked`` factor cannot be split; ``reduced`` lists the summed
    (max, min) factors; ``addends`` are operands that are added once to a reduced result, so they turn
    partial with it (the accumulator of ``scatter_add``). ``flops`` counts the whole op. ``once``: only one device may
    run it, so along no axis is everything whole (``once.py``). ``even``: pieces must have equal lengths, for what lies
    in the padding of longer ones could do harm.
    """

    ins: tuple[Dims, ...]
    outs: tuple[Dims, ...]
    sizes: tuple[int, ...]
    blocked: frozenset[int] = frozenset()
    reduced: tuple[tuple[int, ReduceOp], ...] = ()
    linear: tuple[Linear, ...] = ()
    addends: frozenset[int] = frozenset()
    flops: float = 0.0
    once: bool = False
    even: bool = False


@dataclass(slots=True)
class Builder:
    """Collects factors while a rule is written down."""

    sizes: list[int] = field(default_factory=list)
    blocked: set[int] = field(default_factory=set)
    reduced: dict[int, ReduceOp] = field(default_factory=dict)

    def factor(self, size: int, blocked: bool = False, reduced: ReduceOp | None = None) -> tuple[int, ...]:
        """A new factor as a one-element tuple; nothing at all for size 1."""
        if size == 1:
            return ()
        self.sizes.append(size)
        index = len(self.sizes) - 1
        if blocked:
            self.blocked.add(index)
        if reduced is not None:
            self.reduced[index] = reduced
        return (index,)

    def dims(self, shape: Sequence[int], blocked: Sequence[int] = (), reduced: ReduceOp | None = None) -> Dims:
        """One new factor for each dimension."""
        return tuple(self.factor(n, blocked=d in blocked, reduced=reduced) for d, n in enumerate(shape))

    def build(
        self,
        ins: Sequence[Dims],
        outs: Sequence[Dims],
        linear: Sequence[Linear] = (),
        addends: Sequence[int] = (),
        flops: float = 0.0,
    ) -> Factors:
        """The finished map. A factor that an output lacks and nothing reduces is blocked here."""
        for out in outs:
            present = {f for dim in out for f in dim}
            self.blocked |= set(range(len(self.sizes))) - present - set(self.reduced)
        return Factors(
            tuple(ins),
            tuple(outs),
            tuple(self.sizes),
            frozenset(self.blocked),
            tuple(sorted(self.reduced.items())),
            tuple(linear),
            frozenset(addends),
            flops,
        )


@dataclass(slots=True)
class Local:
    """Where a device's piece lies, for ops whose parameters or values depend on it.

    ``in_codes`` and ``out_codes`` are signatures as tuples of ints by mesh axis (``dim`` of a split, negative
    otherwise); ``out_shapes`` are the local shapes of the results, ``ranks`` the devices, row by row. Valid inside a
    ``shard_map`` that is manual on all axes.
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    in_codes: tuple[tuple[int, ...], ...]
    out_codes: tuple[tuple[int, ...], ...]
    in_shapes: tuple[tuple[int, ...], ...]
    out_shapes: tuple[tuple[int, ...], ...]
    ranks: tuple[int, ...] = ()

    def index(self, axis: int) -> Any:
        """This device's position on mesh axis number ``axis``."""
        return lax.axis_index(self.axis_names[axis])

    def span(self, code: Sequence[int], whole: int, dim: int) -> tuple[Any, Any]:
        """First index and length of this device's piece along ``dim``, ``whole`` long, of a tensor with ``code``."""
        axes = [axis for axis, component in enumerate(code) if component == dim]
        return span(whole, [self.axis_sizes[a] for a in axes], [self.index(a) for a in axes])

    def start(self, code: Sequence[int], whole: int, dim: int) -> Any:
        """This device's first index along ``dim``, ``whole`` long, of a tensor with signature ``code``."""
        return self.span(code, whole, dim)[0]

    def is_padded(self, operand: int, shape: Sequence[int]) -> bool:
        """Whether devices store an operand, ``shape`` as a whole, with padding at the end of some of their pieces."""
        return is_padded(self.in_shapes[operand], shape, self.in_codes[operand], self.axis_sizes)

    def is_split(self, code: Sequence[int], dim: int) -> bool:
        """Whether any mesh axis splits ``dim``."""
        return dim in code

    def is_first(self, code: Sequence[int], dim: int) -> Any:
        """Whether this device is the first along every mesh axis that splits ``dim``."""
        here = [self.index(a) == 0 for a, component in enumerate(code) if component == dim]
        return functools.reduce(operator.and_, here, True)


def is_padded(stored: Sequence[int], shape: Sequence[int], code: Sequence[int], axis_sizes: Sequence[int]) -> bool:
    """Whether devices store pieces (``stored``) of a value (``shape``) with padding at the end of some of them."""
    if tuple(stored) == tuple(shape):
        return False
    pieces = list(stored)
    for n, d in zip(axis_sizes, code, strict=True):
        if d >= 0:
            pieces[d] *= n
    return pieces != list(shape)


FactorRule = Callable[[OpLike], Factors]
LocalRule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A primitive's factor map, and how its piece is computed when binding its own parameters would be wrong.

    ``reason`` says why nothing of it is split, where that is so.
    """

    name: str
    factors: FactorRule
    local: LocalRule | None = None
    reason: str = ""


_REGISTRY: dict[str, Rule] = {}


def register(
    *names: str, local: LocalRule | None = None, reason: str = "", again: bool = False, even: bool = False
) -> Callable[[FactorRule], FactorRule]:
    """Register one rule for primitives ``names``; a second rule for a name raises ``SbpError``, but ``again``.

    Whatever the rule says, nothing passes that the operands' types cannot reduce: see ``fit_types``.

    ``even``: pieces must have equal lengths. Without it the rule promises that what lies in padding stays there: along
    a factor that the results keep, every element is computed from its own elements only, and always ends; along a
    reduced one, operands that are neutral (0 in a sum) contribute what is neutral.
    """

    def add(rule: FactorRule) -> FactorRule:
        @functools.wraps(rule)
        def fitting(op: OpLike) -> Factors:
            factors = fit_types(op, rule(op))
            return replace(factors, even=True) if even else factors

        for name in names:
            if name in _REGISTRY and not again:
                raise SbpError(f"primitive {name!r} has a rule already: {_REGISTRY[name].factors.__name__}")
            _REGISTRY[name] = Rule(name, fitting, local, reason)
        return rule

    return add


def fit_types(op: OpLike, factors: Factors) -> Factors:
    """The map without linearities that the types spoil.

    Booleans and keys have no sum; complex numbers and keys have no order. Integer sums wrap, so they pass only to
    integers no wider: from there on it is arithmetic modulo the same power of two, which any widening would leave.
    """
    if not factors.linear:
        return factors
    kept = _fitting(factors.linear, tuple([x.dtype for x in op.ins]), tuple([x.dtype for x in op.outs]))
    return factors if len(kept) == len(factors.linear) else replace(factors, linear=kept)


@functools.lru_cache(maxsize=4096)
def _fitting(linear: tuple[Linear, ...], ins: tuple[Any, ...], outs: tuple[Any, ...]) -> tuple[Linear, ...]:
    """The linearities that operands and results of these dtypes have."""

    def fits(item: Linear) -> bool:
        types = [ins[i] for i in item.operands]
        if item.takes != "sum":
            return not any(is_a(t, np.complexfloating) or is_a(t, jax.dtypes.extended) for t in types)
        if not all(is_a(t, np.number) for t in types):
            return False
        narrowest = min((jnp.iinfo(t).bits for t in types if is_a(t, np.integer)), default=0)
        return narrowest == 0 or all(is_a(t, np.integer) and jnp.iinfo(t).bits <= narrowest for t in outs)

    return tuple([item for item in linear if fits(item)])


@functools.lru_cache(maxsize=1024)
def is_a(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind, JAX's own dtypes (bfloat16, keys) included."""
    return bool(jnp.issubdtype(dtype, kind))


def lookup(name: str) -> Rule | None:
    """The rule of a primitive, or None."""
    return _REGISTRY.get(name)


def names() -> list[str]:
    """Every primitive that has a rule."""
    return sorted(_REGISTRY)


def whole(op: OpLike) -> Factors:
    """No factor can be split: every operand and result is whole. What a primitive without a rule gets."""
    b = Builder()
    ins = [b.dims(x.shape, blocked=range(len(x.shape))) for x in op.ins]
    outs = [b.dims(x.shape, blocked=range(len(x.shape))) for x in op.outs]
    return b.build(ins, outs, flops=float(sum(size(x.shape) for x in op.outs)))


def size(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    n = 1
    for d in shape:
        n *= d
    return n


def sums(*operands: int) -> Linear:
    """Linear in ``operands`` jointly: sums pass."""
    return Linear(frozenset(operands))


def any_partial(*operands: int) -> list[Linear]:
    """Data movement: every reduction passes unchanged."""
    group = frozenset(operands)
    return [Linear(group), Linear(group, "max", "max"), Linear(group, "min", "min")]
