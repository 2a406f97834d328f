"""SBP signatures: how a logical tensor relates to what the devices of a mesh hold.

One component for each mesh axis, outermost first: ``Split(d)`` cuts dimension ``d`` in rank order,
``Broadcast()`` copies, ``Partial(op)`` leaves every device a term whose sum (max, min) is the value.
The notation is OneFlow's (Yuan et al., "OneFlow: Redesign the Distributed Deep Learning Framework
from Scratch", arXiv:2110.15032, section 3.1).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, overload

from .errors import SignatureError

ReduceOp = Literal["sum", "max", "min"]
REDUCE_OPS: tuple[ReduceOp, ...] = ("sum", "max", "min")


@dataclass(frozen=True, slots=True)
class Split:
    """Dimension ``dim`` is cut into equal pieces along the mesh axis, in rank order. Prints ``S(0)``.

    A negative ``dim`` counts from the end and is resolved against a tensor's rank at use.
    """

    dim: int

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise SignatureError(f"split(dim) takes an integer dimension, got {self.dim!r}")

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every device along the mesh axis holds the whole value. Prints ``B``."""

    def __call__(self) -> "Broadcast":
        return self

    def __str__(self) -> str:
        return "B"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every device along the mesh axis holds a term; ``op`` over them is the value. Prints ``P``."""

    op: ReduceOp = "sum"

    def __post_init__(self) -> None:
        if self.op not in REDUCE_OPS:
            raise SignatureError(f"Partial(op) takes one of {', '.join(REDUCE_OPS)}, got {self.op!r}")

    def __str__(self) -> str:
        return "P" if self.op == "sum" else f"P({self.op})"


Component: TypeAlias = Split | Broadcast | Partial

broadcast = Broadcast()
partial_sum = Partial("sum")
partial_max = Partial("max")
partial_min = Partial("min")


def split(dim: int) -> Split:
    """The component ``S(dim)``. Negative dims are resolved against the tensor's rank at use."""
    return Split(dim)


_COMPONENT = re.compile(r"\s*(?:S\(\s*(-?\d+)\s*\)|(B)|P(?:\(\s*(\w+)\s*\))?)\s*")


def parse_component(text: str) -> Component:
    """One component from its notation: ``S(0)``, ``B``, ``P``, ``P(max)``."""
    match = _COMPONENT.fullmatch(text)
    if match is None:
        raise SignatureError(
            f"cannot read {text!r} as a signature component; possible are S(dim), B, P, P(max), P(min)"
        )
    dim, whole, op = match.groups()
    if dim is not None:
        return Split(int(dim))
    if whole:
        return broadcast
    if op is not None and op not in REDUCE_OPS:
        raise SignatureError(f"P({op}) in {text!r}: the reduction is one of {', '.join(REDUCE_OPS)}")
    return Partial(op or "sum")  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """One component per mesh axis, the outermost first. ``str()`` and ``parse`` round-trip.

    Equal to another signature, and to a tuple, of the same components.
    """

    components: tuple[Component, ...]
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.components))  # routes look signatures up millions of times

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Signature):
            return self._hash == other._hash and self.components == other.components
        return self.components == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["Signature"], tuple[tuple[Component, ...]]]:
        return Signature, (self.components,)  # without the hash: every process hashes text differently

    @staticmethod
    def parse(text: str) -> "Signature":
        """Read the notation: ``"S(0), B"``; round brackets or square ones around it are accepted."""
        body = text.strip()
        if body[:1] + body[-1:] in ("()", "[]"):
            body = body[1:-1]
        body = body.rstrip().removesuffix(",")
        return Signature(tuple(parse_component(part) for part in body.split(",")) if body else ())

    @staticmethod
    def of(value: "SignatureLike") -> "Signature":
        """A ``Signature`` from itself, its text, one component, or a sequence of components."""
        if isinstance(value, Signature):
            return value
        if isinstance(value, str):
            return Signature.parse(value)
        if isinstance(value, Split | Broadcast | Partial):
            return Signature((value,))
        if isinstance(value, Iterable):
            return Signature(tuple(_component(part) for part in value))
        raise SignatureError(f"cannot read {value!r} ({type(value).__name__}) as a signature")

    def __len__(self) -> int:
        return len(self.components)

    def __iter__(self) -> Iterator[Component]:
        return iter(self.components)

    @overload
    def __getitem__(self, index: int) -> Component: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Component, ...]: ...
    def __getitem__(self, index):
        return self.components[index]

    def __str__(self) -> str:
        return ", ".join(map(str, self.components))

    @property
    def has_partial(self) -> bool:
        """Whether any component is a partial value."""
        return any(isinstance(c, Partial) for c in self.components)

    def replace(self, axis: int, component: Component) -> "Signature":
        """The signature with the component of one mesh axis exchanged."""
        return Signature((*self.components[:axis], component, *self.components[axis + 1 :]))

    def resolve(self, ndim: int) -> "Signature":
        """Negative dims made positive for a tensor of rank ``ndim``; a dim out of range raises."""
        return Signature(tuple(_resolve(c, ndim, self) for c in self.components))

    def split_axes(self, dim: int) -> tuple[int, ...]:
        """The mesh axes that split dimension ``dim``, outermost first."""
        return tuple(i for i, c in enumerate(self.components) if isinstance(c, Split) and c.dim == dim)


SignatureLike: TypeAlias = Signature | Component | str | Sequence[Component | str]


def signature_for(value: SignatureLike, ndim: int, axis_sizes: Sequence[int]) -> Signature:
    """``value`` as a signature for a tensor of rank ``ndim`` on a mesh of ``axis_sizes``, or an error."""
    signature = Signature.of(value)
    if len(signature) != len(axis_sizes):
        raise SignatureError(
            f"signature ({signature}) has {len(signature)} component(s), but the placement has "
            f"{len(axis_sizes)} axis/axes {tuple(axis_sizes)}: give one component for each axis"
        )
    return signature.resolve(ndim)


def local_shape(shape: Sequence[int], signature: Signature, axis_sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of one device's component, all equal.

    Raises ``SignatureError`` where a split dimension does not divide; the message lists the dims that do.
    """
    result = list(shape)
    for axis, component in enumerate(signature):
        if isinstance(component, Split):
            if result[component.dim] % axis_sizes[axis]:
                raise SignatureError(_indivisible(shape, signature, axis_sizes, component.dim))
            result[component.dim] //= axis_sizes[axis]
    return tuple(result)


def _indivisible(shape: Sequence[int], signature: Signature, axis_sizes: Sequence[int], dim: int) -> str:
    pieces = 1
    for axis in signature.split_axes(dim):
        pieces *= axis_sizes[axis]
    would = [f"S({d})" for d, n in enumerate(shape) if n % pieces == 0 and n >= pieces]
    hint = f"dimensions that divide by {pieces}: {', '.join(would)}" if would else f"none divides by {pieces}; use B"
    return (
        f"({signature}) splits dimension {dim} of shape {tuple(shape)} into {pieces} pieces, "
        f"but {shape[dim]} is not a multiple of {pieces}; {hint}"
    )


def _component(part: object) -> Component:
    if isinstance(part, Split | Broadcast | Partial):
        return part
    if isinstance(part, str):
        return parse_component(part)
    raise SignatureError(f"cannot read {part!r} ({type(part).__name__}) as a signature component")


def _resolve(component: Component, ndim: int, whole: Signature) -> Component:
    if not isinstance(component, Split):
        return component
    dim = component.dim + ndim if component.dim < 0 else component.dim
    if not 0 <= dim < ndim:
        possible = f"0..{ndim - 1} (or {-ndim}..-1)" if ndim else "none: a scalar can only be B or P"
        raise SignatureError(f"{component} in ({whole}): the tensor has rank {ndim}, dimensions possible: {possible}")
    return Split(dim)
